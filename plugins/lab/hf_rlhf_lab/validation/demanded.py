"""The section `reward_validation` of a run file: reports that a run requires for its rewards.

The core calls this module by the entry point `reward_validation` of the group `hf_rlhf.hooks`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.config import RewardSpec, RewardValidationSpec, keys_of, look_up
from hf_rlhf.errors import DataError, Problem, did_you_mean
from hf_rlhf.runs import Run, is_conversational, trains_by_rewards
from hf_rlhf.steps import differences
from hf_rlhf.storage import Requirement, RewardValidation, ValidatedReward, atomic_write_bytes
from hf_rlhf_lab.validation.identity import (
    identified_component,
    identified_parts,
    reward_identity,
)
from hf_rlhf_lab.validation.report import JSON_NAME, Report
from hf_rlhf_lab.validation.requirements import MEASURES, requirements

KEY = "reward_validation"
_VALIDATE = "`hf-rlhf rewards validate {} --data FILE` (package hf-rlhf-lab)"
_DIFFERENCES = 5
_FORMS = {True: "messages", False: "texts"}


def problems(run: Run) -> Iterator[Problem]:
    """Yield reasons why the run's rewards lack the required validation."""
    spec = run.spec.reward_validation
    if spec is None:
        return
    if not trains_by_rewards(run.trainer_class, run.training):
        what = f"has no effect: trainer {run.spec.plugin!r} does not learn from rewards."
        yield Problem(KEY, what, "Remove it.")
        return
    if not spec.require:
        what = "has no `require`, so that any report would do."
        yield Problem(KEY, what, "Write what the reward must reach: `require: {accuracy: 0.6}`.")
    for key in (unknown := [key for key in spec.require if key not in MEASURES]):
        what = f"`require` has {key!r}, which is not a measure{did_you_mean(key, MEASURES)}."
        yield Problem(KEY, what, f"Known: {', '.join(MEASURES)}.")
    if not unknown:
        yield from _report_problems(run, spec)


def advice(run: Run) -> Iterator[str]:
    """Yield notes on rewards without validation or below the requirements."""
    spec = run.spec.reward_validation
    if spec is not None:
        for each in _requirements(spec):
            if not each.met:
                yield f"{each.text}, which `{KEY}` does not enforce"
    elif trains_by_rewards(run.trainer_class, run.training) and trained_parts(run):
        yield f"no reward of this run was validated: {_VALIDATE.format('RUN_FILE')}"


def section(run: Run) -> RewardValidation | None:
    """Return the reports' results for the record, and whether they meet the requirements."""
    spec = run.spec.reward_validation
    if spec is None:
        return None
    return RewardValidation(
        reports=[_summary(path, folder) for path, folder in _folders(spec).items()],
        requirements=list(_requirements(spec)),
        enforced=spec.enforce,
    )


def copy_reports(run: Run) -> None:
    """Copy the reports once into the run folder, from which they are published."""
    spec = run.spec.reward_validation
    for path, folder in _folders(spec).items() if spec is not None else ():
        for source in _files(path):
            target = run.folder / folder / source.name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_bytes(target, source.read_bytes())


def trained_parts(run: Run) -> dict[str, dict[str, Any]]:
    """Return the identity of each reward and gate of the run, by label."""
    parts = identified_parts(run.reward, run.components, run.judges)
    parts = {label: part for label, part in parts.items() if part.get("weight") != 0}
    for entry in run.trainer_class.learned_rewards(run.spec.plain):
        if entry.get("weight", 1.0) == 0:
            continue
        own = keys_of(RewardSpec)
        arguments = {key: value for key, value in entry.items() if key not in own}
        component = {**look_up("rewards", entry["name"]).provenance, "arguments": arguments}
        weight = {"weight": entry["weight"]} if entry.get("weight", 1.0) != 1.0 else {}
        parts[entry["label"]] = {"component": identified_component(component), **weight}
    return parts


def _report_problems(run: Run, spec: RewardValidationSpec) -> Iterator[Problem]:
    """Yield unusable reports and, if enforced, unmet requirements."""
    reports = []
    for path in spec.reports:
        try:
            reports.append((path, Report.read(path)))
        except DataError as error:
            yield Problem(KEY, str(error))
    if len(reports) < len(spec.reports):
        return
    others = list(_other_rewards(run, reports))
    yield from others
    short = [each.text for each in _requirements(spec) if not each.met] if spec.enforce else []
    if short and not others:
        fix = "Improve the reward, or train on it all the same with "
        fix += "`--reward_validation.enforce false`: the card will say what was not met."
        yield Problem(KEY, f"the reward falls short: {'; '.join(short)}.", fix)


def _other_rewards(run: Run, reports: list[tuple[str, Report]]) -> Iterator[Problem]:
    """Yield reports on other runs' rewards, and rewards without a report."""
    parts = trained_parts(run)
    total = reward_identity(parts)
    single = {label: reward_identity(parts, label) for label in parts}
    known = {each["digest"] for each in (total, *single.values())}
    covered = {report.reward.get("digest") for _, report in reports}
    for each in run.components:
        if (
            each["kind"] in ("rewards", "judges")
            and each.get("opens")
            and each.get("files") is None
        ):
            what = f"the code of {each['label']} may read files (it names "
            what += f"{', '.join(each['opens'])}), and a report says nothing once they change."
            fix = "List them in its entry, `reads: [FILE]`, or none, `reads: []`"
            yield Problem(KEY, what, f"{fix}, and validate it again.")
    form = is_conversational(run)
    for path, report in reports:
        if report.data.get("conversational") not in (None, form):
            what = f"{path} has {_FORMS[not form]} as prompts, and the run has {_FORMS[form]}."
            yield Problem(KEY, what, f"Validate the run file: {_VALIDATE.format('RUN_FILE')}.")
        if report.reward.get("digest") not in known:
            label = str(report.reward.get("label"))
            yield Problem(
                KEY,
                f"{path} is a report on another reward, or on another version of it: {label}"
                f"{_changes(report.reward, single.get(label, total))}.",
                f"Validate this one: {_VALIDATE.format('RUN_FILE')}.",
            )
    if covered <= known and total["digest"] not in covered:
        changes = [
            {key: part[key] for key in part if key != "component"} for part in parts.values()
        ]
        terms = (
            f"{label} {each or ''}".rstrip() for label, each in zip(parts, changes, strict=True)
        )
        what = f"no report is on the total that the run trains on: {' + '.join(terms)}."
        if covered:
            what += (
                " A report on one reward counts only where the total is a positive multiple of it."
            )
        yield Problem(KEY, what, f"Validate the total: {_VALIDATE.format('RUN_FILE')}.")


def _changes(report: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    lines = differences(report.get("identity") or {}, here["identity"])
    more = f"; {len(lines) - _DIFFERENCES} more" if len(lines) > _DIFFERENCES else ""
    return f" ({'; '.join(lines[:_DIFFERENCES])}{more})" if lines else ""


def _requirements(spec: RewardValidationSpec) -> Iterator[Requirement]:
    for path in spec.reports:
        yield from requirements(Report.read(path), spec.require)


def _folders(spec: RewardValidationSpec) -> dict[str, str]:
    """Return the folder of each report in the run folder."""
    folders: dict[str, str] = {}
    for path in spec.reports:
        # The label comes from another file and must be a valid folder name here.
        label = re.sub(r"[^\w-]", "_", str(Report.read(path).reward.get("label")))
        folder = f"{KEY}/{label}"
        taken = folder in folders.values()
        folders[path] = f"{folder}-{len(folders) + 1}" if taken else folder
    return folders


def _files(path: str) -> list[Path]:
    """Return a report with its page and its plot."""
    file = Path(path) / JSON_NAME if Path(path).is_dir() else Path(path)
    beside = [file.with_suffix(end) for end in (".md", ".png")]
    return [file, *(each for each in beside if each.exists())]


def _summary(path: str, folder: str) -> ValidatedReward:
    report = Report.read(path)
    checks = [check.model_copy(update={"details": {}}) for check in report.checks]
    pictures = [each.name for each in _files(path) if each.suffix == ".png"]
    return ValidatedReward(
        label=report.reward.get("label"), digest=report.reward.get("digest"),
        headline=report.headline, data=report.data, checks=checks,
        created=report.created, command=report.command, folder=folder,
        picture=pictures[0] if pictures else None,
    )  # fmt: skip

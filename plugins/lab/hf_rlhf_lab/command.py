"""Validate or create a reward before training: `hf-rlhf rewards`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ConfigError, Problem, did_you_mean
from hf_rlhf_lab.method.command import add_parser as add_method
from hf_rlhf_lab.method.command import method
from hf_rlhf_lab.target import gold_rows, run_file, section_of, tokenizer_of

if TYPE_CHECKING:
    from hf_rlhf_lab.validation.report import Report

_AS_WRITTEN = {"name": "preference", "template": "{prompt}", "response_template": "{response}"}
"""The format in which a pairwise judge reads responses."""
_DESCRIPTION = """\
Validate a reward against gold data: agreement, calibration, length bias, repeats, known hacks.

TARGET is a run file (its rewards, judges and dataset are taken), the folder of a trained reward
model, the name of a reward, FILE.py:NAME, or a file of `hf-rlhf data ai_feedback`, whose annotator
compares the pairs of --data in both orders. Without TARGET and --data, a small example that needs
nothing. Any key of the run file is an option too: `--rewards.0.weight 0.5`.

The report is written to --out: validation.json, validation.md and validation.png. The exit status
is 1 if a check fails, and if agreement is not measurable."""


def rewards(argv: Sequence[str]) -> int:
    """Validate rewards: gold labels, calibration, length, hacks; or make a reward from criteria."""
    parser = argparse.ArgumentParser(prog="hf-rlhf rewards", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    options = verbs.add_parser(
        "validate",
        help="measure how far a reward can be trusted",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="hf-rlhf rewards validate [TARGET] [options] [--key value ...]",
    )
    options.add_argument("--data", metavar="FILE", help="preference pairs, or rows with a `grade`")
    options.add_argument("--split", help="of the dataset; default: test if there is one, or train")
    options.add_argument("--rows", type=int, metavar="N", help="at most N prompts, drawn at random")
    options.add_argument("--label", help="validate one reward of a composition, not the total")
    options.add_argument(
        "--other-data", action="append", default=[], metavar="FILE",
        help="gold data of another distribution; repeatable",
    )  # fmt: skip
    options.add_argument(
        "--attacks", action="append", metavar="NAME",
        help="attacks whose hacks are tried (`hf-rlhf list attacks`); default: text_attacks",
    )  # fmt: skip
    options.add_argument(
        "--by", action="append", default=[], metavar="COLUMN",
        help="show agreement for each value of a column of the gold data, worst first; repeatable",
    )  # fmt: skip
    options.add_argument(
        "--samples", type=int, default=10, metavar="N",
        help="show the N pairs that the reward gets most wrong; 0: no text of the data",
    )  # fmt: skip
    options.add_argument("--out", type=Path, help="default: evals/validation")
    add_method(verbs)
    # TARGET comes first because argparse would take the value of an unknown option for it.
    verb, *rest = argv or ["--help"]
    target = rest.pop(0) if rest and not rest[0].startswith("-") else None
    chosen, overrides = parser.parse_known_args([verb, *rest])
    chosen.target = target
    do = method if chosen.verb == "method" else _validate
    return do(chosen, overrides, ["hf-rlhf", "rewards", *argv])


def _validate(chosen: argparse.Namespace, overrides: Sequence[str], command: list[str]) -> int:
    import shlex

    from hf_rlhf.runs import resolve_scoring
    from hf_rlhf.training import quiet_libraries
    from hf_rlhf_lab.validation.pairwise import is_annotator
    from hf_rlhf_lab.validation.validate import validate

    quiet_libraries()
    if is_annotator(chosen.target):
        return _finish(_annotator_report(chosen, overrides, shlex.join(command)), chosen.out)
    file = run_file(chosen.target, chosen.data, overrides, chosen.label)
    scoring = resolve_scoring(file, tokenizer_of(file), plugin="rewards validate")
    if scoring.reward is None:
        fix = "Name one: `hf-rlhf rewards validate NAME`, or `rewards:` in the file."
        raise ConfigError([Problem(file.name, "there is no reward to validate.", fix)])
    labels = ["total", *(part.label for part in (*scoring.reward.rewards, *scoring.reward.gates))]
    if chosen.label not in (None, *labels):
        what = f"no reward has the label {chosen.label!r}{did_you_mean(chosen.label, labels)}."
        raise ConfigError([Problem("--label", what, f"There are: {', '.join(labels)}.")])
    gold = _gold(scoring, chosen, _data_name(file))
    others = [_other(path, file, chosen.rows) for path in chosen.other_data]
    report = validate(
        scoring,
        gold,
        label=chosen.label or "total",
        others=others,
        attacks=chosen.attacks or ["text_attacks"],
        by=chosen.by,
        samples=chosen.samples,
        command=shlex.join(command),
    )
    return _finish(report, chosen.out)


def _annotator_report(
    chosen: argparse.Namespace, overrides: Sequence[str], command: str
) -> "Report":
    """Return the report on the annotator of a file of `ai_feedback`."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.runs import resolve_scoring
    from hf_rlhf_lab.validation.pairwise import validate_annotator

    unused = [name for name in ("label", "other_data", "attacks") if getattr(chosen, name)]
    if unused or chosen.data is None:
        what = f"has no effect on {chosen.target}, whose annotator compares two responses."
        problems = [Problem(f"--{name.replace('_', '-')}", what, "Remove it.") for name in unused]
        if chosen.data is None:
            problems.append(Problem("--data", "is missing: the gold pairs.", "Name a file."))
        raise ConfigError(problems)
    file = RunFile.read(chosen.target).override(overrides)
    pairs = RunFile.from_mapping({"dataset": section_of(chosen.data, _AS_WRITTEN)}, chosen.target)
    scoring = resolve_scoring(pairs, tokenizer_of(pairs), plugin="rewards validate")
    gold = _gold(scoring, chosen, chosen.data)
    return validate_annotator(file, gold, by=chosen.by, samples=chosen.samples, command=command)


def _finish(report: "Report", out: Path | None) -> int:
    """Write and print a report; return the exit status."""
    folder = out or Path("evals") / "validation"
    report.write(folder)
    report.show(folder)
    return int(bool(report.failed) or report.checks[0].verdict == "not measurable")


def _gold(scoring: Any, chosen: argparse.Namespace, name: str) -> Any:
    """Return the gold data that the options select. Raises ConfigError for a wrong column."""
    if chosen.rows is not None and chosen.rows < 1:
        raise ConfigError([Problem("--rows", f"is {chosen.rows}.", "Write 1 or more.")])
    gold = gold_rows(scoring, chosen.split, name).sample(chosen.rows)
    for column in [name for name in chosen.by if name not in gold.columns]:
        what = f"the gold data have no column {column!r}{did_you_mean(column, gold.columns)}."
        fix = f"They have: {', '.join(gold.columns)}." if gold.columns else "They have no others."
        raise ConfigError([Problem("--by", what, fix)])
    return gold


def _other(path: str, file: Any, rows: int | None) -> Any:
    from hf_rlhf.runs import resolve_scoring

    values = {key: value for key, value in file.values.items() if key != "schema"}
    values["dataset"] = section_of(path, values.get("dataset"))
    other = type(file).from_mapping(values, path)
    scoring = resolve_scoring(other, tokenizer_of(other), plugin="rewards validate")
    return gold_rows(scoring, None, path).sample(rows)


def _data_name(file: Any) -> str:
    section = file.values["dataset"]
    return str(section.get("path") or section["name"])

"""The steps of a method in a folder: each is skipped if it is up to date, and may stop the rest."""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.config import RunFile, dump_yaml
from hf_rlhf.errors import ConfigError, JudgeError, Problem
from hf_rlhf.formatting import counted, listed, number
from hf_rlhf.rewards import ComposedReward
from hf_rlhf.runs import Scoring, resolve_run, resolve_scoring
from hf_rlhf.steps import Ledger
from hf_rlhf.storage import atomic_write_json, atomic_write_text, load_record
from hf_rlhf_lab.command import gold_rows, tokenizer_of
from hf_rlhf_lab.method.file import Method
from hf_rlhf_lab.method.signals import (
    FEW_PROMPTS,
    calibrate,
    fit_weights,
    floats,
    score_parts,
    test_rows,
)
from hf_rlhf_lab.method.training import survival, train, write_pairs
from hf_rlhf_lab.validation.gold import FEW, Array, Gold
from hf_rlhf_lab.validation.validate import identity, validate

FRAGMENT = "rewards.yaml"
Result = dict[str, Any]
Say = Callable[[str], None]


@dataclass
class Pipeline:
    """A method, with everything that its file names resolved and checked."""

    method: Method
    folder: Path
    launch: Sequence[str]
    scoring: Scoring
    gold: Gold
    """All responses; their grades are those of the data."""
    say: Say
    results: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder, folder_option="--out")
        weights = self.method.spec.weights
        self.test = test_rows(self.gold, weights.test_share, weights.seed)
        self.parts = {part.label: part for part in self._reward.rewards}
        graders = {entry["label"] for entry in self.method.graders()}
        self.signals = [label for label in self.parts if label not in graders]

    @property
    def _reward(self) -> ComposedReward:
        assert self.scoring.reward is not None, "a method has signals"
        return self.scoring.reward

    def run(self) -> str:
        """Do the steps in turn. Return the name of the one that stopped, or an empty text."""
        steps = dict(self._steps())
        with self.ledger.locked():
            for number_, (name, (inputs, compute)) in enumerate(steps.items(), 1):
                after = [list(steps)[number_ - 2]] if number_ > 1 else []
                result = self._step(name, inputs, compute, after)
                self.results[name] = result
                outcome = result["summary"] if result["passed"] else f"STOPPED: {result['reason']}"
                self.say(f"[{number_}/{len(steps)}] {name}: {outcome}.")
                if not result["passed"]:
                    return name
        return ""

    def _steps(self) -> Iterator[tuple[str, tuple[Mapping[str, Any], Callable[[], Result]]]]:
        """Yield name, inputs and computation of each step; inputs of steps before are implied."""
        spec = self.method.spec
        data = {"data": self.gold.digest, "rows": len(self.gold)}
        criteria = {name: each.model_dump() for name, each in spec.criteria.items()}
        yield "grades", ({**data, "criteria": criteria, **self._code(False)}, self._grades)
        inputs = {**spec.calibration.model_dump(), "signals": spec.signals, **self._code(True)}
        yield "calibration", (inputs, self._calibration)
        yield "weights", (spec.weights.model_dump(), self._weights)
        if spec.reward_model is not None:
            yield "reward_model", (spec.reward_model.model_dump(), self._reward_model)
        yield "validation", (spec.validation.model_dump(), self._validation)
        if spec.survival is not None:
            yield "survival", (spec.survival.model_dump(), self._survival)

    def _code(self, signals: bool) -> Mapping[str, Any]:
        """Return what the scores of the signals, or of the graders, depend on."""
        labels = [label for label in self.parts if (label in self.signals) == signals]
        return {"code": {label: identity(self.scoring, label)["digest"] for label in labels}}

    def _step(
        self,
        name: str,
        inputs: Mapping[str, Any],
        compute: Callable[[], Result],
        after: Sequence[str],
    ) -> Result:
        if self.ledger.reasons(name, inputs, after) == []:
            return self.ledger.result(name)
        began = time.perf_counter()
        with self.ledger.recording(name, inputs, after=after) as recording:
            recording.result |= compute()
            recording.notes["seconds"] = round(time.perf_counter() - began, 1)
        return self.ledger.result(name)

    def _file(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def _grades(self) -> Result:
        criteria = self.method.spec.criteria
        scores = self._scored([label for label in self.parts if label in criteria])
        for name, criterion in criteria.items():
            column = criterion.grade.get("column")
            if column == "grade":
                scores[name] = self.gold.grades.tolist()
            elif column is not None:
                scores[name] = list(self.gold.columns[column])
        total = sum(each.weight * floats(scores[name]) for name, each in criteria.items())
        grades = np.asarray(total)
        graded = ~np.isnan(grades)
        values = [float(grade) if known else None for grade, known in zip(grades, graded, strict=True)]
        atomic_write_json(self.folder / "grades.json", {"grades": values, "criteria": scores})
        reason = ""
        prompts = len(np.unique(self.gold.groups[graded]))
        if prompts < FEW:
            reason = f"{counted(prompts, 'prompt')} with a graded response, {FEW} are needed"
        elif np.ptp(grades[graded]) == 0:
            reason = f"every response has the grade {number(float(grades[graded][0]))}"
        return {
            "responses": len(grades),
            "graded": int(graded.sum()),
            "prompts": prompts,
            "mean": float(grades[graded].mean()) if graded.any() else None,
            "judges": self._usage(),
            "passed": not reason,
            "reason": reason,
            "summary": f"{int(graded.sum()):,} of {len(grades):,} responses to {prompts:,} prompts "
            f"graded by {listed(list(criteria))}",
        }

    def _graded(self) -> tuple[Gold, Array]:
        """Return the graded responses with their grades, and which rows of all they are."""
        grades = floats(self._file("grades.json")["grades"])
        rows = np.flatnonzero(~np.isnan(grades))
        return replace(self.gold.take(rows.tolist()), grades=grades[rows], labels=()), rows

    def _calibration(self) -> Result:
        gold, rows = self._graded()
        scores = self._scored(self.signals)
        atomic_write_json(self.folder / "signals.json", scores)
        self._refuse_constant({label: floats(values)[rows] for label, values in scores.items()})
        minimum = self.method.spec.calibration.min_rho
        signals = {
            label: calibrate(floats(values)[rows], gold, minimum)
            for label, values in scores.items()
        }
        kept = [label for label, each in signals.items() if each["kept"]]
        dropped = {label: each["reason"] for label, each in signals.items() if not each["kept"]}
        return {
            "signals": signals,
            "judges": self._usage(),
            "passed": bool(kept),
            "reason": f"no signal agrees with the grades (rho above {minimum:.2f}, its interval "
            "above 0)",
            "summary": f"{len(kept)} of {len(signals)} signals agree with the grades: "
            + ", ".join(f"{label} {signals[label]['rho']['mean']:.2f}" for label in kept)
            + "".join(f"; not {label}: {reason}" for label, reason in dropped.items()),
        }

    def _refuse_constant(self, scores: Mapping[str, Array]) -> None:
        problems = []
        for at, (label, values) in enumerate(scores.items()):
            valid = values[~np.isnan(values)]
            if len(valid) and np.ptp(valid) > 0:
                continue
            score = f"scores every response {valid[0]:g}" if len(valid) else "scores no response"
            fix = "It cannot agree with any grade: remove it, or correct its arguments."
            where = self.method.document.where(("signals", at))
            problems.append(Problem(where, f"{label} {score}.", fix))
        if problems:
            raise ConfigError(problems, subject="method")

    def _weights(self) -> Result:
        gold, rows = self._graded()
        kept = [k for k, each in self.results["calibration"]["signals"].items() if each["kept"]]
        scores = {label: floats(self._file("signals.json")[label])[rows] for label in kept}
        fit = fit_weights(
            scores, gold, test=self.test[rows], min_rho=self.method.spec.calibration.min_rho
        )
        rho = fit["rho"] or {}
        shares = [f"{label} {each['weight']:.2f}" for label, each in fit["signals"].items()]
        self._write_fragment(self._weighted(fit))
        return {
            **fit,
            "summary": f"{', '.join(shares)}; on the test prompts rho is {rho.get('mean', 0):.2f}",
        }

    def _weighted(self, fit: Result) -> list[Result]:
        """Return the entries of the signals with a weight, standardised."""
        entries = []
        for at, label in enumerate(self.signals):
            each = fit["signals"].get(label)
            if each is not None and each["weight"] > 0:
                zscore = [float(f"{each[name]:.6g}") for name in ("mean", "std")]
                entry = {**self.method.spec.signals[at], "label": label}
                weight = {"weight": round(each["weight"], 4), "transform": {"zscore": zscore}}
                entries.append({**entry, **weight})
        return entries

    def _entries(self) -> list[Result]:
        """Return the entries of the reward that the method made."""
        if model := self.results.get("reward_model"):
            return [{"name": "reward_model", "label": "reward_model", "model": model["model"]}]
        return self._weighted(self.results["weights"])

    def _write_fragment(self, entries: Sequence[Result]) -> None:
        judges = {"judges": self.method.spec.judges} if self.method.spec.judges else {}
        values = {**judges, "rewards": [*entries, *self.method.graders()]}
        head = (
            f"# {self.method.spec.title}: paste this into a run file. The rewards of weight 0 are "
            "the grades,\n# which are logged and not trained on.\n"
        )
        atomic_write_text(self.folder / FRAGMENT, head + dump_yaml(values))

    def _reward_model(self) -> Result:
        section = self.method.spec.reward_model
        assert section is not None, "it is a step only then"
        scoring = self._resolved(self._weighted(self.results["weights"]))
        assert scoring.reward is not None
        train_gold = self.gold.take(np.flatnonzero(~self.test).tolist())
        columns = train_gold.columns
        total = scoring.reward.score(train_gold.prompts, train_gold.completions, **columns).total
        pairs = self.folder / "pairs.jsonl"
        counts = write_pairs(pairs, train_gold, floats(total))
        file = self.method.training_file(section, dataset=pairs_section(pairs, counts["pairs"]))
        self.say(f"training a reward model on {counts['pairs']:,} pairs; {self.folder}/reward_model.log")
        run = train(file, self.folder, "reward_model", self.launch)
        after = (load_record(run).to_json().get("evaluation") or {}).get("after") or {}
        accuracy = (after.get("pair_accuracy") or {}).get("mean")
        model = str((run / "merged").resolve())
        self._write_fragment([{"name": "reward_model", "label": "reward_model", "model": model}])
        return {
            **counts,
            "model": model,
            "accuracy": accuracy,
            "passed": True,
            "reason": "",
            "summary": f"trained on {counts['pairs']:,} pairs that the weighted signals labelled; "
            f"right on {number(accuracy)} of held-out ones",
        }

    def _validation(self) -> Result:
        section = self.method.spec.validation
        gold, rows = self._graded()
        tested = gold.take(np.flatnonzero(self.test[rows]).tolist())
        scoring = self._resolved(self._entries())
        report = validate(scoring, tested, attacks=section.attacks)
        report.write(self.folder / "validation")
        failed = [check for check in report.checks if check.verdict == "fail"]
        stops = [check for check in failed if check.name in section.require]
        others = [check.name for check in failed if check not in stops]
        passed = [check.name for check in report.checks if check.verdict == "pass"]
        return {
            "report": report.as_json(),
            "passed": not stops,
            "reason": "; ".join(f"{check.name} fails: {check.summary}" for check in stops).rstrip("."),
            "summary": f"passes {listed(passed)}"
            + (f"; fails {listed(others)}, which is not required" if others else ""),
        }

    def _survival(self) -> Result:
        section = self.method.spec.survival
        assert section is not None, "it is a step only then"
        file = trial_file(self.method, self._entries())
        self.say(f"training a policy on the reward; {self.folder}/survival.log")
        run = train(file, self.folder, "survival", self.launch)
        weights = {name: each.weight for name, each in self.method.spec.criteria.items()}
        result = survival(run, weights, section.min_rho)
        gains = {name: each and each["mean"] for name, each in result["gains"].items()}
        rho = result["rho"] and result["rho"]["mean"]
        return {
            **result,
            "run": str(run),
            "summary": f"in {result['steps']} steps the reward changed by {number(gains['reward'])} "
            f"and the grade by {number(gains['grade'])}; their rho is then {number(rho)}",
        }

    def _scored(self, labels: Sequence[str]) -> dict[str, Any]:
        if not labels:
            return {}
        reward = replace(self._reward, rewards=tuple(self.parts[label] for label in labels))
        return score_parts(reward, self.gold)

    def _usage(self) -> dict[str, Any]:
        return {label: dict(judge.usage()) for label, judge in self.scoring.judges.items()}

    def _resolved(self, entries: Sequence[Result]) -> Scoring:
        """Return other rewards on the same data."""
        base = self.method.scoring_file()
        file = replace(base, values={**base.values, "rewards": list(entries)}, lines={})
        return resolve_scoring(file, tokenizer_of(file), plugin="rewards method")


def prepare(method: Method, folder: Path, launch: Sequence[str], say: Say) -> Pipeline:
    """Return the steps of a method, everything checked: names, data, judges, both trainings.

    Raises HfRlhfError with the place and the cure of what cannot work, before anything is trained.
    """
    file = method.scoring_file()
    try:
        scoring = resolve_scoring(file, tokenizer_of(file), plugin="rewards method")
    except ConfigError as error:
        raise method.renamed(error) from None
    spec, where = method.spec, method.document.where
    name = str(spec.dataset.get("path") or spec.dataset.get("name"))
    gold = gold_rows(scoring.dataset, spec.split, name).sample(spec.rows)
    pipeline = Pipeline(method, folder, launch, scoring, gold, say)
    if problems := list(_data_problems(pipeline)):
        raise ConfigError(problems, subject="method")
    for label, judge in scoring.judges.items():
        try:
            asyncio.run(judge.ping())
        except JudgeError as error:
            raise ConfigError([Problem(where(("judges", label)), str(error))], subject="method") from error
    if spec.survival is not None:
        trial = resolve_run(trial_file(method, spec.signals))
        if trial.spec.evaluation is None or not hasattr(trial.training, "max_completion_length"):
            what = f"{spec.survival.run} does not train on rewards, or has no `evaluation`."
            fix = "Name a run of ppo, grpo or rloo with an `evaluation` section."
            raise ConfigError([Problem(where(("survival", "run")), what, fix)], subject="method")
    if spec.reward_model is not None:
        with tempfile.TemporaryDirectory() as temporary:
            pairs = Path(temporary) / "pairs.jsonl"
            count = write_pairs(pairs, gold, np.arange(len(gold), dtype=np.float64))["pairs"]
            resolve_run(method.training_file(spec.reward_model, dataset=pairs_section(pairs, count)))
    return pipeline


def _data_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield what is wrong with the responses: too few prompts, an empty part, missing columns."""
    spec, where, gold = pipeline.method.spec, pipeline.method.document.where, pipeline.gold
    prompts = len(np.unique(gold.groups))
    tested = len(np.unique(gold.groups[pipeline.test]))
    if prompts < FEW:
        fix = f"{FEW} are needed for any interval; a few hundred are better."
        yield Problem(where(("dataset",)), f"has {counted(prompts, 'prompt')}.", fix)
    elif min(tested, prompts - tested) < FEW_PROMPTS:
        what = f"leaves {prompts - tested} prompts to fit weights on and {tested} to test them."
        yield Problem(where(("weights", "test_share")), what, f"Each needs {FEW_PROMPTS}.")
    for name, criterion in spec.criteria.items():
        column = criterion.grade.get("column", "grade")
        if column != "grade" and not _is_numeric(gold.columns.get(column)):
            what = f"{column!r} is not a column of numbers."
            fix = f"Columns: {', '.join(['grade', *gold.columns])}."
            yield Problem(where(("criteria", name, "grade", "column")), what, fix)


def _is_numeric(values: Sequence[Any] | None) -> bool:
    return values is not None and all(isinstance(value, int | float | None) for value in values)


def trial_file(method: Method, entries: Sequence[Result]) -> RunFile:
    """Return the run file of the training on a reward, with the graders at weight 0."""
    assert method.spec.survival is not None, "there is a training only then"
    rewards = [*entries, *method.graders()]
    judges = {"judges": method.spec.judges} if method.spec.judges else {}
    return method.training_file(method.spec.survival, rewards=rewards, **judges)


def pairs_section(path: Path, pairs: int) -> Result:
    """Return the `dataset` section of a reward model's run: a tenth of the pairs is held out."""
    return {"name": "preference", "path": str(path.resolve()), "test_rows": max(1, pairs // 10)}

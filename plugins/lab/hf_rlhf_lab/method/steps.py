"""Run the steps of a method in a folder; a step may be skipped as up to date or stop the rest."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.config import RunFile, dump_yaml
from hf_rlhf.evaluation import Scoring
from hf_rlhf.formatting import counted, listed, number
from hf_rlhf.rewards import ComposedReward, Part
from hf_rlhf.runs import resolve_scoring
from hf_rlhf.steps import Chain, Ledger, Recording, Task, digest
from hf_rlhf.storage import atomic_write_json, atomic_write_text, load_record
from hf_rlhf_lab.method.file import Method
from hf_rlhf_lab.method.signals import calibrate, drawn_for_testing, fit_weights
from hf_rlhf_lab.method.training import stopped_by_monitor, survival, train
from hf_rlhf_lab.target import tokenizer_of
from hf_rlhf_lab.validation.gold import FEW, Gold
from hf_rlhf_lab.validation.validate import identity_of, score_parts, validate

FRAGMENT = "rewards.yaml"
_READS = {
    "grades": {"split", "rows", "criteria"},
    "calibration": {"signals", "min_rho", "test_share", "seed"},
    "validation": {"require", "attacks"},
}
"""Keys of the method file, by the first step that reads them."""
_WRITES = {"grades": ["grades.json"], "calibration": ["signals.json"]}
"""Files that later steps read."""
_OUTCOMES = {"fail": "fails", "warn": "warns", "not measurable": "is not measurable"}
Result = dict[str, Any]


@dataclass
class Pipeline:
    """A method with resolved components and its results; `prepare` returns it."""

    method: Method
    folder: Path
    launch: Sequence[str]
    scoring: Scoring
    """The components of the signals and the graders."""
    gold: Gold
    """All responses, with the data's own grades."""
    say: Callable[[str], None] = print
    results: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec, graders = self.method.spec, {entry["label"] for entry in self.method.graders()}
        self.ledger = Ledger(self.folder, folder_option="--out")
        self.test = drawn_for_testing(self.gold, spec.test_share, spec.seed)
        parts = self.reward.rewards
        self.signals = {part.label: part for part in parts if part.label not in graders}
        self.graders = {part.label: part for part in parts if part.label in graders}

    @property
    def reward(self) -> ComposedReward:
        """Return signals and graders as a single reward."""
        assert self.scoring.reward is not None, "a method has signals"
        return self.scoring.reward

    def run(self) -> str:
        """Run the steps in turn; return the name of the step that stopped, or an empty string."""
        spec = self.method.spec
        steps = {"grades": self._grades, "calibration": self._calibration, "weights": self._weights}
        steps["validation"] = self._validation
        if spec.survival is not None:
            steps["survival"] = self._survival
        names = list(steps)
        tasks = [
            Task(
                step=name,
                inputs=partial(self._inputs, name),
                after=tuple(names[max(0, at - 1) : at]),
                work=partial(self._work, name, compute),
            )
            for at, (name, compute) in enumerate(steps.items())
        ]
        chain = Chain(self.ledger, tasks)
        with self.ledger.locked():
            for at, task in enumerate(tasks, start=1):
                result = self.results[task.step] = chain.do(task)
                text = result["summary"] if result["passed"] else f"STOP: {result['reason']}"
                self.say(f"[{at}/{len(tasks)}] {task.step}: {text}.")
                if not result["passed"]:
                    return task.step
        return ""

    def _work(self, name: str, compute: Callable[[], Result], recording: Recording) -> None:
        recording.result |= compute()
        recording.outputs = [Path(each) for each in _WRITES.get(name, ())]

    def _inputs(self, name: str) -> Mapping[str, Any]:
        """Return a step's inputs apart from the results of earlier steps."""
        spec = self.method.spec
        inputs = spec.model_dump(include=_READS.get(name, set()))
        if name == "grades":
            inputs |= {"data": self.gold.digest, "graders": self._digests(self.graders)}
        elif name == "calibration":
            inputs["digests"] = self._digests(self.signals)
        elif spec.survival is not None and name == "survival":
            inputs["run"] = self.method.training_file(spec.survival).values
        return inputs

    def _digests(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        return {label: identity_of(self.scoring, label)["digest"] for label in parts}

    def _file(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def _scored(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """Return the score of each response by label."""
        if not parts:
            return {}
        reward, gold = replace(self.reward, rewards=tuple(parts.values())), self.gold
        scores = score_parts(reward, gold.prompts, gold.completions, gold.columns)
        return {label: scores[label] for label in parts}

    def _usage(self) -> dict[str, Any]:
        return {label: dict(judge.usage()) for label, judge in self.scoring.judges.items()}

    def _grades(self) -> Result:
        scores = self._scored(self.graders)
        for name in self.method.spec.criteria.keys() - self.graders.keys():
            scores[name] = self.gold.grades.tolist()
        atomic_write_json(self.folder / "grades.json", scores)
        gold, _ = self._graded()
        prompts = len(np.unique(gold.prompt_numbers))
        reason = ""
        if prompts < FEW:
            reason = f"{counted(prompts, 'prompt')} with a graded response; {FEW} are needed"
        elif np.ptp(gold.grades) == 0:
            reason = f"every response has the grade {number(float(gold.grades[0]))}"
        return {
            "judges": self._usage(),
            "passed": not reason,
            "reason": reason,
            "summary": f"{len(gold):,} of {len(self.gold):,} responses to {prompts:,} prompts, by "
            f"{listed(list(self.method.spec.criteria))}",
        }

    def _graded(self) -> tuple[Gold, NDArray[np.int64]]:
        """Return the graded responses and their row indices."""
        scores, criteria = self._file("grades.json"), self.method.spec.criteria
        by_criterion = np.array([scores[name] for name in criteria], dtype=np.float64)
        grades = np.array([each.weight for each in criteria.values()]) @ by_criterion
        rows = np.flatnonzero(~np.isnan(grades))
        return replace(self.gold.take(rows.tolist()), grades=grades[rows]), rows

    def _calibration(self) -> Result:
        gold, rows = self._graded()
        written = self._scored(self.signals)
        atomic_write_json(self.folder / "signals.json", written)
        scores = {label: np.array(values, np.float64) for label, values in written.items()}
        # Signals selected on test prompts would be tested on the prompts that selected them.
        fitted = np.flatnonzero(~self.test[rows])
        part, minimum = gold.take(fitted.tolist()), self.method.spec.min_rho
        signals = {
            label: calibrate(each[rows][fitted], part, minimum) for label, each in scores.items()
        }
        chosen = [label for label, each in signals.items() if each["kept"]]
        texts = [f"{label} {signals[label]['rho']['mean']:.2f}" for label in chosen]
        texts += [f"not {k} ({signals[k]['reason']})" for k in signals if k not in chosen]
        return {
            "signals": signals,
            "judges": self._usage(),
            "passed": bool(chosen),
            "reason": f"no signal agrees with the grade: {'; '.join(texts)}",
            "summary": f"{len(chosen)} of {len(signals)} signals agree with the grade: "
            + ", ".join(texts),
        }

    def _weights(self) -> Result:
        gold, rows = self._graded()
        signals, scores = self.results["calibration"]["signals"], self._file("signals.json")
        chosen = {
            label: np.array(scores[label], np.float64)[rows]
            for label, each in signals.items()
            if each["kept"]
        }
        fit = fit_weights(chosen, gold, test=self.test[rows], min_rho=self.method.spec.min_rho)
        texts = [f"{label} {each['weight']:.2f}" for label, each in fit["signals"].items()]
        rho = (fit["rho"] or {}).get("mean")
        return {**fit, "summary": f"{', '.join(texts)}; rho {number(rho)} on the test prompts"}

    def _weighted(self) -> list[Result]:
        """Return the entries of the weighted signals, standardised."""
        entries, fit = [], self.results["weights"]
        for label, entry in zip(self.signals, self.method.spec.signals, strict=True):
            each = fit["signals"].get(label)
            if each is not None and each["weight"] > 0:
                zscore = [float(f"{each[name]:.6g}") for name in ("mean", "std")]
                own = {"weight": round(each["weight"], 4), "transform": {"zscore": zscore}}
                entries.append({**entry, "label": label, **own})
        return entries

    def write_reward(self) -> None:
        """Write the reward as a fragment of a run file."""
        judges = {"judges": self.method.spec.judges} if self.method.spec.judges else {}
        head = (
            f"# {self.method.spec.title}: paste this into a run file. What has weight 0 is the "
            "grade,\n# which is logged and not trained on.\n"
        )
        values = {**judges, "rewards": [*self._weighted(), *self.method.graders()]}
        atomic_write_text(self.folder / FRAGMENT, head + dump_yaml(values))

    def _validation(self) -> Result:
        spec, (gold, rows) = self.method.spec, self._graded()
        tested = gold.take(np.flatnonzero(self.test[rows]).tolist())
        report = validate(self._resolved(self._weighted()), tested, attacks=spec.attacks)
        report.write(self.folder / "validation")
        stops = [
            check for check in report.checks
            if check.name in spec.require and check.verdict != "pass"
        ]  # fmt: skip
        others = [check.name for check in report.failed if check not in stops]
        passed = [check.name for check in report.checks if check.verdict == "pass"]
        return {
            "report": report.to_json(),
            "passed": not stops,
            "reason": "; ".join(
                f"{check.name} {_OUTCOMES[check.verdict]}: {check.summary.rstrip('.')}"
                for check in stops
            ),
            "summary": f"passes {listed(passed)}"
            + (f"; fails {listed(others)} (not required)" if others else ""),
        }

    def _survival(self) -> Result:
        spec = self.method.spec
        self.say(f"survival: training; its log is {self.folder / 'survival'}.log")
        file = trial_file(self.method, self._weighted())
        inputs = digest([file.values, self.ledger.entry("validation")["digest"]])
        run = train(file, self.folder, "survival", inputs, self.launch)
        if reason := stopped_by_monitor(run):
            return {"run": str(run), "passed": False, "reason": reason}
        weights = {name: each.weight for name, each in spec.criteria.items()}
        result = survival(run, weights, spec.min_rho)
        reward, grade, rho = (
            number((each or {}).get("mean")) for each in (*result["gains"].values(), result["rho"])
        )
        steps = counted(load_record(run).training.steps or 0, "step")
        return {
            **result,
            "run": str(run),
            "summary": f"in {steps} the reward changed by {reward} and the grade by {grade}; "
            f"rho is then {rho}",
        }

    def _resolved(self, entries: Sequence[Result]) -> Scoring:
        """Return other rewards on the same data."""
        base = self.method.scoring_file()
        file = replace(base, values={**base.values, "rewards": list(entries)}, lines={})
        return resolve_scoring(file, tokenizer_of(file), plugin="rewards method")


def trial_file(method: Method, entries: Sequence[Result]) -> RunFile:
    """Return the run file of the trial, with the graders at weight 0."""
    assert method.spec.survival is not None, "there is a training only then"
    judges = {"judges": method.spec.judges} if method.spec.judges else {}
    rewards = [*entries, *method.graders()]
    return method.training_file(method.spec.survival, rewards=rewards, **judges)

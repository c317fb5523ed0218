"""One evaluation from plan to files. Each model is loaded alone, and nothing is made twice.

Order: for each checkpoint its completions and their log-probabilities; then each reference, for
the log-probabilities of the others' completions; then the rewards; then the comparisons.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.data import text_of
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.evaluation import generate
from hf_rlhf.rewards import TOTAL
from hf_rlhf.runs import environment
from hf_rlhf.storage import as_json, atomic_write_json, atomic_write_text, claimed, now, scrub
from hf_rlhf_classic.evaluation import intervals
from hf_rlhf_classic.evaluation.checkpoints import Checkpoint
from hf_rlhf_classic.evaluation.compare import Compared, Pair, compare
from hf_rlhf_classic.evaluation.loading import loaded
from hf_rlhf_classic.evaluation.log_probabilities import log_probabilities
from hf_rlhf_classic.evaluation.plan import Plan
from hf_rlhf_classic.evaluation.plot import frontier
from hf_rlhf_classic.evaluation.report import markdown
from hf_rlhf_classic.evaluation.results import Measured, Row, results_of
from hf_rlhf_classic.evaluation.store import Chunks, claim, fingerprint

RESULT = "evaluation.json"
PICTURE = "frontier.png"
SCHEMA = 1


def evaluate(plan: Plan, out: Path, command: Sequence[str]) -> dict[str, Any]:
    """Do what is left to do of `plan` in the folder `out`; return what `evaluation.json` says.

    Of several launched processes each takes a share of the chunks, and the first one writes.
    Raises RunFolderError when `out` is in use, or holds completions made otherwise.
    """
    from accelerate import PartialState

    state = PartialState(cpu=bool(plan.spec.use_cpu))
    with ExitStack() as held:
        if state.is_main_process:
            held.enter_context(claimed(out))
            for one in plan.checkpoints:
                claim(_folder(out, one), plan.identity(one))
                # Cheap beside generating, and a reward may be another than the last time; what a
                # judge said is in its own cache.
                shutil.rmtree(_folder(out, one) / "scores", ignore_errors=True)
        state.wait_for_everyone()
        work = _Work(plan, out, state)
        work.generate()
        work.refer()
        work.score()
        state.wait_for_everyone()
        return work.result(command) if state.is_main_process else {}


def _folder(out: Path, checkpoint: Checkpoint) -> Path:
    return out / "models" / checkpoint.label


class _Work:
    """The steps of an evaluation, each of which makes the chunks that are missing."""

    def __init__(self, plan: Plan, out: Path, state: Any) -> None:
        self.plan = plan
        self.out = out
        self.state = state
        per_prompt = plan.sampling.completions_per_prompt
        self.places = [row for row in range(len(plan.rows)) for _ in range(per_prompt)]
        size = plan.sampling.batch_size
        self.chunks = [self.places[at : at + size] for at in range(0, len(self.places), size)]

    def generate(self) -> None:
        """Let each checkpoint answer, and take the log-probabilities of its own answers."""
        for one in self.plan.checkpoints:
            completions, own = self.completions(one), self._logs(one, "policy")
            wanted = own if self.plan.reference(one) else None
            if not self._missing(completions) and not (wanted and self._missing(wanted)):
                self.say(f"{one.label}: {len(self.places)} completions are there")
                continue
            self.say(f"{one.label}: {len(self.places)} completions by {one.saved.asked}")
            with loaded(one, self.plan.spec, self.state.device) as model:
                prompts = self.plan.prompts(one)
                completions.make(self._missing(completions), self._generating(model, one, prompts))
                if wanted:
                    make = self._log_probabilities(model, one, prompts)
                    wanted.make(self._missing(wanted), make)
                del model

    def refer(self) -> None:
        """Take the log-probabilities of the completions under their reference."""
        waiting: dict[str, list[Checkpoint]] = {}
        references = {}
        for one in self.plan.checkpoints:
            reference = self.plan.reference(one)
            if reference and self._missing(self._logs(one, self._by(reference))):
                waiting.setdefault(reference.label, []).append(one)
                references[reference.label] = reference
        for label, some in waiting.items():
            reference = references[label]
            self.say(f"{label}: reference of {', '.join(one.label for one in some)}")
            with loaded(reference, self.plan.spec, self.state.device) as model:
                for one in some:
                    # The policy's own prompt tokens: the vocabulary is the same.
                    make = self._log_probabilities(model, one, self.plan.prompts(one))
                    chunks = self._logs(one, self._by(reference))
                    chunks.make(self._missing(chunks), make)
                del model

    def score(self) -> None:
        """Score the completions by the rewards. Raises RewardError, JudgeError as they do."""
        reward = self.plan.scoring.reward
        if reward is None:
            return
        for one in self.plan.checkpoints:
            scores, completions = self._scores(one), self.completions(one)
            self.say(f"{one.label}: scoring")
            scores.make(self._missing(scores), partial(self._scored, completions))

    def completions(self, one: Checkpoint) -> Chunks:
        """Return the chunks of completions of a checkpoint."""
        return Chunks(_folder(self.out, one) / "completions", len(self.chunks))

    def _logs(self, one: Checkpoint, under: str) -> Chunks:
        return Chunks(_folder(self.out, one) / f"log-{under}", len(self.chunks))

    def _scores(self, one: Checkpoint) -> Chunks:
        return Chunks(_folder(self.out, one) / "scores", len(self.chunks))

    @staticmethod
    def _by(reference: Checkpoint) -> str:
        return fingerprint(reference.saved.identity)

    def _missing(self, chunks: Chunks) -> list[int]:
        return chunks.missing(self.state.process_index, self.state.num_processes)

    def _generating(
        self, model: Any, one: Checkpoint, prompts: Sequence[Any]
    ) -> Callable[[int], Any]:
        def work(place: int) -> dict[str, Any]:
            started = time.monotonic()
            made = generate(
                model,
                self.plan.tokenizers[one.label],
                [prompts[row] for row in self.chunks[place]],
                self.plan.sampling,
                self.plan.max_new_tokens,
                # A seed per chunk: an evaluation that was stopped goes on as if it had not been.
                seed=self.plan.sampling.seed + place * self.plan.sampling.batch_size,
            )
            completions = [asdict(one) for one in made]
            return {"completions": completions, "seconds": time.monotonic() - started}

        return work

    def _log_probabilities(
        self, model: Any, one: Checkpoint, prompts: Sequence[Any]
    ) -> Callable[[int], Any]:
        completions = self.completions(one)

        def work(place: int) -> list[list[float]]:
            return log_probabilities(
                model,
                [prompts[row] for row in self.chunks[place]],
                [each["ids"] for each in completions.chunk(place)["completions"]],
                temperature=self.plan.sampling.temperature,
                pad=self.plan.tokenizers[one.label].pad_token_id,
            )

        return work

    def _scored(self, completions: Chunks, place: int) -> dict[str, Any]:
        taken = self.plan.rows.select(self.chunks[place])
        prompts = taken["prompt"][:]
        texts = [each["text"] for each in completions.chunk(place)["completions"]]
        if not isinstance(prompts[0], str):
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        columns = {name: taken[name][:] for name in taken.column_names if name != "prompt"}
        reward = self.plan.scoring.reward
        assert reward is not None
        scores = reward.score(prompts, texts, **columns)
        return {**{key: list(values) for key, values in scores.parts.items()}, TOTAL: scores.total}

    def measured(self, one: Checkpoint) -> Measured:
        """Return what is known of a checkpoint's completions."""
        made = _flat(chunk["completions"] for chunk in self.completions(one).read())
        metrics: dict[str, list[float | None]] = {}
        if self.plan.scoring.reward is not None:
            scores = self._scores(one).read()
            names = [TOTAL, *(name for name in scores[0] if name != TOTAL)]
            metrics = {name: _flat(chunk[name] for chunk in scores) for name in names}
        metrics["completion_tokens"] = [float(len(each["ids"])) for each in made]
        metrics["truncated"] = [float(each["truncated"]) for each in made]
        per_prompt = self.plan.sampling.completions_per_prompt
        reference = self.plan.reference(one)
        if reference is None:
            return Measured(metrics, per_prompt)
        log_p = _flat(self._logs(one, "policy").read())
        log_q = _flat(self._logs(one, self._by(reference)).read())
        return Measured(metrics, per_prompt, log_p, log_q)

    def result(self, command: Sequence[str]) -> dict[str, Any]:
        """Put everything together, and write it."""
        measured = {one.label: self.measured(one) for one in self.plan.checkpoints}
        compared = self._compared(measured)
        rows = {name: self._row(name, measured, compared) for name in self.plan.names}
        alone = all(len(some) == 1 for some in self.plan.names.values())
        evaluation = {
            "schema": SCHEMA,
            "made": now(),
            "command": list(command),
            **_asked(self.plan),
            "models": {
                name: [{**one.as_json(), "seconds": self._seconds(one)} for one in some]
                for name, some in self.plan.names.items()
            },
            "results": {name: results_of(row) for name, row in rows.items()},
            "rows": {
                label: {name: one.by_prompt(values) for name, values in one.metrics.items()}
                for label, one in measured.items()
            },
            "samples": self._samples(measured),
            "judges": _judges(self.plan),
            "notes": self.plan.notes() + self._abstained(measured),
            "method": intervals.METHOD if alone else intervals.OF_SEEDS,
            "environment": environment(),
        }
        clean: dict[str, Any] = scrub(as_json(evaluation)[0])
        picture = frontier(clean, self.out / PICTURE)
        if not picture:
            (self.out / PICTURE).unlink(missing_ok=True)
        atomic_write_json(self.out / RESULT, clean)
        atomic_write_text(self.out / "evaluation.md", markdown(clean, picture))
        return clean

    def _row(
        self,
        name: str,
        measured: Mapping[str, Measured],
        compared: Mapping[str, Mapping[str, Compared]],
    ) -> Row:
        some = self.plan.names[name]
        baseline = [self.plan.partner(self.plan.spec.baseline, one) for one in some]
        reference = [self.plan.reference(one) for one in some]
        return Row(
            [measured[one.label] for one in some],
            None if None in baseline else [measured[one.label] for one in baseline if one],
            None if None in reference else [measured[one.label] for one in reference if one],
            {by: [each[one.label] for one in some] for by, each in compared.items()}
            if None not in baseline
            else {},
        )

    def _compared(self, measured: Mapping[str, Measured]) -> dict[str, dict[str, Compared]]:
        """Decide all pairs by each comparison: by comparison and label."""
        found: dict[str, dict[str, Compared]] = {}
        for by in self.plan.comparisons:
            found[by.name] = {}
            for one in self.plan.checkpoints:
                other = self.plan.partner(self.plan.spec.baseline, one)
                if other is None:
                    continue
                if by.by == "judge":
                    self.say(f"{one.label} against {other.label}: asking {by.judge}")
                pairs = self._pairs(one, other, measured)
                found[by.name][one.label] = compare(pairs, by, self.plan.scoring.judges)
        return found

    def _pairs(
        self, one: Checkpoint, other: Checkpoint, measured: Mapping[str, Measured]
    ) -> list[Pair]:
        texts = [
            [
                each["text"]
                for chunk in self.completions(who).read()
                for each in chunk["completions"]
            ]
            for who in (one, other)
        ]
        scores = [_by_completion(measured[who.label].metrics) for who in (one, other)]
        rows = [dict(row) for row in self.plan.rows]
        return [
            Pair(
                text_of(rows[row]["prompt"]),
                texts[0][place],
                texts[1][place],
                scores[0][place],
                scores[1][place],
                rows[row],
            )
            for place, row in enumerate(self.places)
        ]

    def _samples(self, measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
        """Return the first prompts, each with the first completion of every checkpoint."""
        per_prompt = self.plan.sampling.completions_per_prompt
        found = []
        texts = {
            one.label: _flat(chunk["completions"] for chunk in self.completions(one).read())
            for one in self.plan.checkpoints
        }
        for row in range(min(self.plan.sampling.samples, len(self.plan.rows))):
            completions = {}
            for label, made in texts.items():
                totals = measured[label].metrics.get(TOTAL)
                reward = totals[row * per_prompt] if totals else None
                completions[label] = {"text": made[row * per_prompt]["text"], "reward": reward}
            prompt = text_of(self.plan.rows[row]["prompt"])
            found.append({"prompt": prompt, "completions": completions})
        return found

    def _abstained(self, measured: Mapping[str, Measured]) -> list[str]:
        """Return a note for each reward that gave no score for some completions."""
        said = []
        for label, one in measured.items():
            for name, values in one.metrics.items():
                if lacking := sum(value is None for value in values):
                    said.append(f"{label}: {name} abstained on {lacking} of {len(values)}.")
        return said

    def _seconds(self, one: Checkpoint) -> float:
        return float(sum(chunk["seconds"] for chunk in self.completions(one).read()))

    def say(self, text: str) -> None:
        """Print a line, once however many processes there are."""
        if self.state.is_main_process:
            print(text, flush=True)


def _asked(plan: Plan) -> dict[str, Any]:
    """Return what was measured, and how."""
    sampling, scoring = plan.sampling, plan.scoring
    keys = ("temperature", "top_p", "seed", "completions_per_prompt")
    plain = scoring.spec.plain
    return {
        "baseline": plan.spec.baseline,
        "reference": None if plan.spec.reference == "none" else plan.spec.reference,
        "comparisons": {
            by.name: {"by": by.by, "judge": by.judge}
            | ({"criterion": by.criterion, "mode": by.mode} if by.by == "judge" else {})
            for by in plan.comparisons
        },
        "data": {
            "adapter": scoring.spec.dataset.name,
            "arguments": dict(scoring.spec.dataset.arguments),
            "split": sampling.split,
            "rows": len(plan.rows),
            "report": dict(scoring.report),
        },
        "sampling": {
            **{key: getattr(sampling, key) for key in keys},
            "max_new_tokens": plan.max_new_tokens,
        },
        "reward": {key: plain.get(key) or [] for key in ("rewards", "gates")},
        "components": [dict(one) for one in scoring.components],
    }


def _judges(plan: Plan) -> list[dict[str, Any]]:
    found = []
    for label, judge in plan.scoring.judges.items():
        try:
            found.append({"label": label, **judge.describe(), "usage": dict(judge.usage())})
        except HfRlhfError as error:
            found.append({"label": label, "error": str(error)})
    return found


def _flat(chunks: Iterable[Sequence[Any]]) -> list[Any]:
    return [one for chunk in chunks for one in chunk]


def _by_completion(metrics: Mapping[str, Sequence[float | None]]) -> list[dict[str, float | None]]:
    names = list(metrics)
    return [
        dict(zip(names, values, strict=True))
        for values in zip(*(metrics[name] for name in names), strict=True)
    ]

"""One evaluation from plan to files. Each model is loaded alone, and nothing is computed twice.

Order: for each checkpoint its completions and their log-probabilities; then each reference, for
the log-probabilities of the others' completions; then the rewards; then the comparisons.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from hf_rlhf.data import text_of
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.evaluation import Completions, SavedValues, fingerprint, reserve_folder, score_texts
from hf_rlhf.rewards import TOTAL, by_row, gather_rows
from hf_rlhf.runs import environment
from hf_rlhf.storage import (
    as_json,
    atomic_write_json,
    atomic_write_text,
    locked_folder,
    now,
    redact_secrets,
)
from hf_rlhf_classic.encoding import Encoded
from hf_rlhf_classic.evaluation.checkpoints import Checkpoint
from hf_rlhf_classic.evaluation.compare import Compared, Pair, compare
from hf_rlhf_classic.evaluation.plan import Plan
from hf_rlhf_classic.evaluation.plot import frontier
from hf_rlhf_classic.evaluation.report import markdown
from hf_rlhf_classic.evaluation.results import METHOD, METHOD_OF_SEEDS, Measured, Row, results_of
from hf_rlhf_classic.likelihood import likelihoods

RESULT = "evaluation.json"
PICTURE = "frontier.png"
SCHEMA = 1

Rows = list[dict[str, float | None]]
"""The metrics of each completion."""


def evaluate(plan: Plan, out: Path, command: Sequence[str]) -> dict[str, Any]:
    """Do what is left to do of `plan` in the folder `out`; return what `evaluation.json` says.

    Of several launched processes each takes a share of the batches, and the first one writes.
    Raises RunFolderError when `out` is in use, or holds other completions.
    """
    from accelerate import PartialState

    state = PartialState(cpu=bool(plan.spec.use_cpu))
    work = _Work(plan, out, state)
    with ExitStack() as stack:
        if state.is_main_process:
            stack.enter_context(locked_folder(out))
            for checkpoint in plan.checkpoints:
                reserve_folder(work.folder(checkpoint), plan.identity(checkpoint))
        state.wait_for_everyone()
        work.generate()
        work.refer()
        state.wait_for_everyone()
        # Cheap beside generating, and a reward may have changed since the last time; a judge's
        # verdicts are in its own cache.
        scores = {checkpoint.label: work.score(checkpoint) for checkpoint in plan.checkpoints}
        if not state.is_main_process:
            return {}
        return _write(work, scores, command)


class _Work:
    """The steps of an evaluation, each of which computes what is missing."""

    def __init__(self, plan: Plan, out: Path, state: Any) -> None:
        self.plan, self.out, self.state = plan, out, state
        per_prompt = plan.sampling.completions_per_prompt
        self.rows = [row for row in range(len(plan.rows)) for _ in range(per_prompt)]
        """Of each completion, the row that it answers."""
        self.items = [str(index) for index in range(len(self.rows))]
        self.prompts = cache(self._prompts)

    def folder(self, checkpoint: Checkpoint) -> Path:
        """Return where the completions of a checkpoint are saved."""
        return self.out / "models" / checkpoint.label

    def generate(self) -> None:
        """Let each checkpoint answer, and take the log-probabilities of its own answers."""
        for checkpoint in self.plan.checkpoints:
            completions = self.completions(checkpoint)
            own = self._logs(checkpoint, "policy") if self.plan.reference(checkpoint) else None
            if not completions.missing() and not (own and own.missing()):
                self.say(f"{checkpoint.label}: {len(self.rows)} completions are complete")
                continue
            self.say(
                f"{checkpoint.label}: {len(self.rows)} completions by {checkpoint.saved.source}"
            )
            with checkpoint.load(self.plan.spec, self.state.device) as model:
                completions.generate(model)
                if own:
                    own.fill(self._log_probabilities(model, checkpoint))
                del model

    def refer(self) -> None:
        """Take the log-probabilities of the completions under their reference."""
        waiting: dict[Checkpoint, list[Checkpoint]] = {}
        for checkpoint in self.plan.checkpoints:
            reference = self.plan.reference(checkpoint)
            if reference and self._logs(checkpoint, _key(reference)).missing():
                waiting.setdefault(reference, []).append(checkpoint)
        for reference, others in waiting.items():
            labels = ", ".join(checkpoint.label for checkpoint in others)
            self.say(f"{reference.label}: reference of {labels}")
            with reference.load(self.plan.spec, self.state.device) as model:
                for checkpoint in others:
                    # The policy's own prompt tokens: the vocabulary is the same.
                    self._logs(checkpoint, _key(reference)).fill(
                        self._log_probabilities(model, checkpoint)
                    )
                del model

    def score(self, checkpoint: Checkpoint) -> Rows:
        """Return the rewards' scores of all completions, on every process.

        Raises RewardError and JudgeError as the rewards do.
        """
        reward = self.plan.scoring.reward
        if reward is None:
            return [{} for _ in self.rows]
        self.say(f"{checkpoint.label}: scoring")
        completions = self.completions(checkpoint).read()
        scored: list[tuple[int, dict[str, float | None]]] = []
        try:
            with self.state.split_between_processes(list(range(len(self.rows)))) as share:
                if share:
                    taken = self.plan.rows.select([self.rows[index] for index in share])
                    texts = [completions[self.items[index]].text for index in share]
                    scores = score_texts(taken, texts, reward)
                    scored = [
                        (index, {TOTAL: scores.total[at], **by_row(scores.parts, at)})
                        for at, index in enumerate(share)
                    ]
        except HfRlhfError as error:
            gather_rows([], failed=error)
            raise
        return [scores for _, scores in sorted(gather_rows(scored), key=lambda row: row[0])]

    def completions(self, checkpoint: Checkpoint) -> Completions:
        """Return the completions of a checkpoint."""
        prompts = self.prompts(checkpoint)
        return Completions(
            self.folder(checkpoint),
            {item: prompts[row] for item, row in zip(self.items, self.rows, strict=True)},
            self.plan.tokenizers[checkpoint.label],
            self.plan.sampling,
            self.plan.max_new_tokens,
        )

    def _prompts(self, checkpoint: Checkpoint) -> list[list[int]]:
        return self.plan.prompts(checkpoint)

    def _logs(self, checkpoint: Checkpoint, under: str) -> SavedValues:
        size = self.plan.sampling.batch_size
        return SavedValues(self.folder(checkpoint), f"log-{under}", self.items, size)

    def _log_probabilities(
        self, model: Any, checkpoint: Checkpoint
    ) -> Callable[[Sequence[str]], list[list[float]]]:
        completions, prompts = self.completions(checkpoint).read(), self.prompts(checkpoint)

        def compute(items: Sequence[str]) -> list[list[float]]:
            sequences = []
            for item in items:
                prompt, answer = prompts[self.rows[int(item)]], completions[item].ids
                counted = [False] * len(prompt) + [True] * len(answer)
                sequences.append(Encoded([*prompt, *answer], counted))
            # Of the distribution that was sampled from, but for what `top_p` cuts off.
            rows = likelihoods(
                model,
                sequences,
                self.plan.tokenizers[checkpoint.label],
                temperature=self.plan.sampling.temperature,
            )
            return [list(each.log_probs) for each in rows]

        return compute

    def measured(self, checkpoint: Checkpoint, scores: Rows) -> Measured:
        """Return what is known of a checkpoint's completions."""
        completions = list(self.completions(checkpoint).read().values())
        metrics: dict[str, list[float | None]] = {
            name: [row[name] for row in scores] for name in scores[0]
        }
        metrics["completion_tokens"] = [float(len(each.ids)) for each in completions]
        metrics["truncated"] = [float(each.truncated) for each in completions]
        per_prompt = self.plan.sampling.completions_per_prompt
        reference = self.plan.reference(checkpoint)
        under = ("policy", _key(reference)) if reference else ()
        logs = [list(self._logs(checkpoint, name).read().values()) for name in under]
        log_p, log_q = logs or ([], [])
        return Measured(
            metrics,
            per_prompt,
            log_p,
            log_q,
            texts=[each.text for each in completions],
            seconds=sum(each.seconds for each in completions),
        )

    def compared(self, measured: Mapping[str, Measured]) -> dict[str, dict[str, Compared]]:
        """Decide all pairs by each comparison: by comparison and label."""
        outcomes: dict[str, dict[str, Compared]] = {}
        for by in self.plan.comparisons:
            outcomes[by.name] = {}
            for checkpoint in self.plan.checkpoints:
                other = self.plan.partner(self.plan.spec.baseline, checkpoint)
                if other is None:
                    continue
                if by.by == "judge":
                    self.say(f"{checkpoint.label} against {other.label}: asking {by.judge}")
                pairs = self._pairs(measured[checkpoint.label], measured[other.label])
                outcomes[by.name][checkpoint.label] = compare(pairs, by, self.plan.scoring.judges)
        return outcomes

    def _pairs(self, mine: Measured, other: Measured) -> list[Pair]:
        rows = [dict(row) for row in self.plan.rows]
        return [
            Pair(
                text_of(rows[row]["prompt"]),
                mine.texts[index],
                other.texts[index],
                by_row(mine.metrics, index),
                by_row(other.metrics, index),
                rows[row],
            )
            for index, row in enumerate(self.rows)
        ]

    def say(self, text: str) -> None:
        """Print a line, once however many processes there are."""
        if self.state.is_main_process:
            print(text, flush=True)


def _key(reference: Checkpoint) -> str:
    return fingerprint(reference.saved.identity)


def _write(work: _Work, scores: Mapping[str, Rows], command: Sequence[str]) -> dict[str, Any]:
    """Put everything together, and write it."""
    plan, out = work.plan, work.out
    measured = {
        checkpoint.label: work.measured(checkpoint, scores[checkpoint.label])
        for checkpoint in plan.checkpoints
    }
    compared = work.compared(measured)
    alone = all(len(some) == 1 for some in plan.names.values())
    evaluation = {
        "schema": SCHEMA,
        "made": now(),
        "command": list(command),
        **_settings(plan),
        "models": {
            name: [
                {**checkpoint.as_json(), "seconds": measured[checkpoint.label].seconds}
                for checkpoint in some
            ]
            for name, some in plan.names.items()
        },
        "results": {name: results_of(_row(plan, name, measured, compared)) for name in plan.names},
        "rows": {
            label: {
                name: checkpoint.by_prompt(values) for name, values in checkpoint.metrics.items()
            }
            for label, checkpoint in measured.items()
        },
        "samples": _samples(plan, measured),
        "judges": _judges(plan),
        "notes": plan.notes() + _abstentions(measured),
        "method": METHOD if alone else METHOD_OF_SEEDS,
        "environment": environment(),
    }
    clean: dict[str, Any] = redact_secrets(as_json(evaluation)[0])
    picture = frontier(clean, out / PICTURE)
    if not picture:
        (out / PICTURE).unlink(missing_ok=True)
    atomic_write_json(out / RESULT, clean)
    atomic_write_text(out / "evaluation.md", markdown(clean, picture))
    return clean


def _row(
    plan: Plan,
    name: str,
    measured: Mapping[str, Measured],
    compared: Mapping[str, Mapping[str, Compared]],
) -> Row:
    some = plan.names[name]
    baseline = [plan.partner(plan.spec.baseline, checkpoint) for checkpoint in some]
    reference = [plan.reference(checkpoint) for checkpoint in some]
    return Row(
        [measured[checkpoint.label] for checkpoint in some],
        None
        if None in baseline
        else [measured[checkpoint.label] for checkpoint in baseline if checkpoint],
        None
        if None in reference
        else [measured[checkpoint.label] for checkpoint in reference if checkpoint],
        {by: [each[checkpoint.label] for checkpoint in some] for by, each in compared.items()}
        if None not in baseline
        else {},
    )


def _samples(plan: Plan, measured: Mapping[str, Measured]) -> list[dict[str, Any]]:
    """Return the first prompts, each with the first completion of every checkpoint."""
    per_prompt = plan.sampling.completions_per_prompt
    samples = []
    for row in range(min(plan.sampling.samples, len(plan.rows))):
        completions = {}
        for label, result in measured.items():
            totals = result.metrics.get(TOTAL)
            reward = totals[row * per_prompt] if totals else None
            completions[label] = {"text": result.texts[row * per_prompt], "reward": reward}
        samples.append({"prompt": text_of(plan.rows[row]["prompt"]), "completions": completions})
    return samples


def _abstentions(measured: Mapping[str, Measured]) -> list[str]:
    """Return a note for each reward that gave no score for some completions."""
    return [
        f"{label}: {name} abstained on {lacking} of {len(values)}."
        for label, result in measured.items()
        for name, values in result.metrics.items()
        if (lacking := sum(value is None for value in values))
    ]


def _settings(plan: Plan) -> dict[str, Any]:
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
        "components": [dict(checkpoint) for checkpoint in scoring.components],
    }


def _judges(plan: Plan) -> list[dict[str, Any]]:
    entries = []
    for label, judge in plan.scoring.judges.items():
        try:
            entries.append({"label": label, **judge.describe(), "usage": dict(judge.usage())})
        except HfRlhfError as error:
            entries.append({"label": label, "error": str(error)})
    return entries

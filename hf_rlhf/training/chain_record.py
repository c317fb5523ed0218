"""The record of a chain's training, made of the records of its phases."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.cards.markdown import duration
from hf_rlhf.runs.estimate import planned_steps
from hf_rlhf.runs.phases import Chain, Phase, data_summary
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import EvaluationSection, TrainingSection

TITLE = "Phases"
"""Of the table in the card, under `training.report`."""


def composed(
    chain: Chain, runs: Sequence[Run], records: Sequence[RunRecord | None]
) -> TrainingSection | None:
    """Return the section `training` of a chain: sums, and its phases one after another.

    `records` has None for a phase that has not begun. The steps of the history go on from one phase
    to the next. None if none has been trained.
    """
    trained = [
        record.training for record in records if record is not None and record.training.steps
    ]
    if not trained:
        return None
    last, peaks = trained[-1], [item.peak_memory for item in trained if item.peak_memory]
    rows = [
        _row(link, run, record)
        for link, run, record in zip(chain.links, runs, records, strict=True)
    ]
    return TrainingSection(
        steps=sum(item.steps or 0 for item in trained),
        planned_steps=_planned(runs, records),
        epochs=_sum(item.epochs for item in trained),
        seconds=_sum(item.seconds for item in trained),
        world_size=last.world_size,
        distributed=last.distributed,
        final=last.final,
        history=_history(trained),
        report={TITLE: rows, **_of_the_last(chain, last.report)},
        peak_memory=max(peaks, key=lambda item: item.get("bytes") or 0) if peaks else None,
    )


def _of_the_last(chain: Chain, report: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{title} (phase {chain.links[-1].name})": value for title, value in report.items()}


def _planned(runs: Sequence[Run], records: Sequence[RunRecord | None]) -> int:
    known = [None if record is None else record.training.planned_steps for record in records]
    return sum(steps or planned_steps(run) for run, steps in zip(runs, known, strict=True))


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _history(trained: Sequence[TrainingSection]) -> list[dict[str, Any]]:
    result, done = [], 0
    for training in trained:
        result += [
            {**entry, "step": entry["step"] + done}
            for entry in training.history
            if entry.get("step") is not None
        ]
        done += training.steps or 0
    return result


def _row(link: Phase, run: Run, record: RunRecord | None) -> dict[str, Any]:
    """Return what the card says of a phase; what is not known of it is left empty."""
    training = TrainingSection() if record is None else record.training
    tokens = [entry["num_tokens"] for entry in training.history if "num_tokens" in entry]
    return {
        "phase": f"{link.number} {link.name}",
        "data": data_summary(link.own) or run.spec.dataset.name,
        "rows": len(run.dataset["train"]),
        "tokens": int(tokens[-1]) if tokens else None,
        "epochs": training.epochs,
        "learning rate": f"{run.training.learning_rate:g}",
        "steps": training.steps,
        **_held_out(record, run),
        "time": None if training.seconds is None else duration(training.seconds),
    }


def _held_out(record: RunRecord | None, run: Run) -> dict[str, str | None]:
    """Return what the trainer measures first, before and after the phase, on its own rows."""
    metric = next(iter(run.trainer_class.held_out_metrics), None)
    if metric is None:
        return {}
    evaluation = (record.evaluation if record else None) or EvaluationSection()
    means = [evaluation.estimate(at, metric).mean for at in ("before", "after")]
    text = " → ".join("?" if mean is None else f"{mean:.3f}" for mean in means)
    return {f"held-out {metric}": None if set(means) == {None} else text}

"""The record of a chain's training, made of the records of its phases."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.cards.markdown import duration
from hf_rlhf.runs.estimate import planned_steps
from hf_rlhf.runs.phases import Chain, Link, said_of
from hf_rlhf.runs.run import Run

Record = Mapping[str, Any]
TITLE = "Phases"
"""Of the table in the card, under `training.report`."""


def composed(
    chain: Chain, runs: Sequence[Run], records: Sequence[Record | None]
) -> dict[str, Any] | None:
    """Return the section `training` of a chain: sums, and its phases one after another.

    `records` has None for a phase that has not begun. The steps of the history go on from one phase
    to the next. None if none has been trained.
    """
    trained = [one["training"] for one in records if one is not None and one["training"]["steps"]]
    if not trained:
        return None
    last, peaks = trained[-1], [one["peak_memory"] for one in trained if one["peak_memory"]]
    rows = [
        _row(link, run, record)
        for link, run, record in zip(chain.links, runs, records, strict=True)
    ]
    return {
        **{key: last[key] for key in ("world_size", "distributed", "final")},
        "steps": sum(one["steps"] for one in trained),
        "planned_steps": _planned(runs, records),
        "epochs": _sum(one["epochs"] for one in trained),
        "seconds": _sum(one["seconds"] for one in trained),
        "history": _history(trained),
        "report": {TITLE: rows, **_of_the_last(chain, last["report"] or {})},
        "peak_memory": max(peaks, key=lambda one: one.get("bytes") or 0) if peaks else None,
    }


def _of_the_last(chain: Chain, report: Record) -> dict[str, Any]:
    return {f"{title} (phase {chain.links[-1].name})": one for title, one in report.items()}


def _planned(runs: Sequence[Run], records: Sequence[Record | None]) -> int:
    known = [(one or {}).get("training", {}).get("planned_steps") for one in records]
    return sum(steps or planned_steps(run) for run, steps in zip(runs, known, strict=True))


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _history(trained: Sequence[Record]) -> list[dict[str, Any]]:
    found, done = [], 0
    for training in trained:
        found += [
            {**entry, "step": entry["step"] + done}
            for entry in training["history"]
            if entry.get("step") is not None
        ]
        done += training["steps"]
    return found


def _row(link: Link, run: Run, record: Record | None) -> dict[str, Any]:
    """Return what the card says of a phase; what is not known of it is left empty."""
    training: Record = (record or {}).get("training") or {}
    history = training.get("history") or []
    tokens = [entry["num_tokens"] for entry in history if "num_tokens" in entry]
    seconds = training.get("seconds")
    return {
        "phase": f"{link.number} {link.name}",
        "data": said_of(link.own) or run.spec.dataset.name,
        "rows": len(run.dataset["train"]),
        "tokens": int(tokens[-1]) if tokens else None,
        "epochs": training.get("epochs"),
        "learning rate": f"{run.training.learning_rate:g}",
        "steps": training.get("steps"),
        **_held_out(record, run),
        "time": None if seconds is None else duration(seconds),
    }


def _held_out(record: Record | None, run: Run) -> dict[str, str | None]:
    """Return what the trainer measures first, before and after the phase, on its own rows."""
    metric = next(iter(getattr(run.trainer_class, "held_out_metrics", ())), None)
    if metric is None:
        return {}
    evaluation = (record or {}).get("evaluation") or {}
    means = [
        ((evaluation.get(at) or {}).get(metric) or {}).get("mean") for at in ("before", "after")
    ]
    told = " → ".join("?" if mean is None else f"{mean:.3f}" for mean in means)
    return {f"held-out {metric}": None if set(means) == {None} else told}

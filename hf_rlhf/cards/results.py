"""Held-out results of a run: the table, the card's headline, the method."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.data.messages import TOOL_METRICS
from hf_rlhf.formatting import code, counted, interval, listed, number, plain, verdict
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import Estimate, EvaluationSection

OF_COMPLETIONS = {
    TOTAL: "the composed reward",
    "completion_tokens": "tokens of a completion",
    "truncated": "share of completions that were cut at the token limit",
    **TOOL_METRICS,
}
"""Metrics of every completion, beside the rewards."""


def results(record: RunRecord) -> list[dict[str, Any]]:
    """Return a row for each held-out metric with the verdict of its paired interval.

    The composed reward comes first.
    """
    evaluation = record.evaluation or EvaluationSection()
    before, after = evaluation.before or {}, evaluation.after or {}
    differences = evaluation.difference or {}
    return [
        {
            "metric": metric,
            "before": before.get(metric),
            "after": after.get(metric),
            "difference": differences.get(metric),
            "of": partial_count(evaluation.rows, after.get(metric) or before.get(metric)),
            "verdict": verdict(differences.get(metric)),
        }
        for metric in sorted({**after, **before}, key=lambda name: name != TOTAL)
    ]


def partial_count(rows: int | None, estimate: Estimate | None) -> int | None:
    """Return the number of rows of a metric, if not all rows were measured."""
    count = None if estimate is None else estimate.n
    return count if rows is not None and count is not None and count < rows else None


def headline(record: RunRecord) -> str:
    """Return the first sentence of the card: the main result with its interval, as Markdown.

    The main result is the composed reward; without one, the trainer's first metric.
    """
    row = _main_row(record)
    if row is None or row["after"] is None or row["after"].mean is None:
        return (
            "No held-out evaluation of these weights is recorded, so this card claims no "
            "improvement."
        )
    name = "the reward" if row["metric"] == TOTAL else code(row["metric"])
    before, after, difference = row["before"], row["after"], row["difference"]
    rows = after.n if difference is None else difference.n
    where = "On held-out rows" if rows is None else f"On {counted(rows, 'held-out row')}"
    if row["verdict"] in ("rose", "fell"):
        return (
            f"{where}, {name} {row['verdict']} from {number(before.mean)} to {number(after.mean)}: "
            f"{interval(difference, signed=True)} (paired difference with 95% interval)."
        )
    start = "" if before is None else f", from {number(before.mean)} before it"
    if row["verdict"] == "no change shown":
        change = f"no change shown (paired difference {interval(difference, signed=True)})"
    else:
        change = "no change shown, because the difference has no interval"
    return f"{where}, {name} was {number(after.mean)} after training{start}; {change}."


def _main_row(record: RunRecord) -> dict[str, Any] | None:
    rows = {row["metric"]: row for row in results(record)}
    of_trainer = record.evaluation.metrics if record.evaluation else {}
    return next((rows[name] for name in (TOTAL, *of_trainer, *rows) if name in rows), None)


def how_measured(record: RunRecord) -> str:
    """Return which metrics are from generated completions, and their sampling."""
    evaluation = record.evaluation or EvaluationSection()
    if not (sampling := evaluation.sampling):
        return ""
    labels = record.reward.labels()
    benchmarks = [each.get("metric") for each in evaluation.benchmarks]  # on separate rows
    names = [row["metric"] for row in results(record) if row["metric"] not in benchmarks]
    of_text = [name for name in names if name in labels or name in OF_COMPLETIONS]
    others = [name for name in names if name not in of_text]
    sentence = f"are of completions that the model wrote: {_sampled(sampling)}."
    if not others or not of_text:
        return f"The numbers {sentence}" if of_text else ""
    verb = "is" if len(others) == 1 else "are"
    return (
        f"{listed([code(name) for name in of_text])} {sentence} "
        f"{listed([code(name) for name in others])} {verb} measured by the trainer itself on the "
        "same rows."
    )


def _sampled(sampling: Mapping[str, Any]) -> str:
    rest = dict(sampling)
    count, temperature = rest.pop("completions_per_prompt", None), rest.pop("temperature", None)
    limit = rest.pop("max_new_tokens", None)
    parts = [] if count is None else [f"{count} for each row"]
    if temperature == 0:
        # Neither has an effect without sampling.
        rest = {key: value for key, value in rest.items() if key not in ("top_p", "seed")}
        parts.append("decoded greedily")
    elif temperature is not None:
        parts.append(f"sampled at temperature {temperature:g}")
    parts += [f"{code(key)} {plain(value)}" for key, value in rest.items() if value is not None]
    if limit is not None:
        parts.append(f"at most {limit:,} tokens long")
    return ", ".join(parts)


def measures(record: RunRecord) -> list[tuple[str, str]]:
    """Return the descriptions of metrics in the results, as (name, text)."""
    descriptions = {**OF_COMPLETIONS, **(record.evaluation.metrics if record.evaluation else {})}
    names = [row["metric"] for row in results(record)]
    return [(name, descriptions[name]) for name in names if descriptions.get(name)]

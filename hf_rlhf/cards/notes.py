"""Notes of a card: the author's, and important facts from the record."""

from collections.abc import Iterator, Mapping
from typing import Any

from hf_rlhf.cards.history import reward_history
from hf_rlhf.cards.metadata import hub_base
from hf_rlhf.cards.results import results
from hf_rlhf.formatting import code, counted, number, plain, share, words
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.record import RunRecord

LOSSES = ("cut", "dropped", "truncated", "shortened")
"""Words in the keys of an adapter's report that indicate lost data."""

FEW = 20
"""For 20 values a percentile bootstrap is 9% narrower than Student's interval, for 4 values half as
wide: z sqrt((n-1)/n) against t with n-1 degrees of freedom (Hesterberg 2015, arXiv:1411.5279).
"""

MAX_RESUMPTIONS = 5
"""Number of last resumptions to list."""
_ENDED = {
    "failed": "failed",
    "finished": "finished",
    "killed": "was killed",
    "interrupted": "was interrupted",
}


def known_notes(record: RunRecord) -> list[str]:
    """Return the author's notes, then notes from the record, as Markdown."""
    return [
        *record.author.known_notes,
        *_ending(record),
        *_sessions(record),
        *_phases(record),
        *_rows(record.data.report),
        *_used(record.data.used),
        *(f"Warning at the start of training: {plain(note)}" for note in record.advice),
        *_abstentions(record),
        *_selection(record),
        *_measurement(record),
        *_origin(record),
        *(f"In the record, {plain(note)}." for note in record.notes),
    ]


def _ending(record: RunRecord) -> Iterator[str]:
    training = record.training
    steps, planned = training.steps, training.planned_steps
    reached = "before its first step" if steps is None else f"at step {steps:,}"
    if steps is not None and planned is not None:
        reached += f" of {planned:,}"
    if record.status in ("interrupted", "failed"):
        yield f"The run {_ENDED[record.status]} {reached}."
    elif record.status == "running":
        yield "The run had not ended when this card was written."
    elif record.status is None:
        yield "How the run ended is not recorded."
    elif training.validation is not None and training.validation.stopped_early:
        return  # set in the run file and listed in the training setup
    elif steps is not None and planned is not None and steps < planned:
        yield f"The run ended {reached} planned steps."


def _selection(record: RunRecord) -> Iterator[str]:
    validation = record.training.validation
    if validation is None or validation.separate or record.evaluation is None:
        return
    if validation.restored or validation.stopped_early:
        yield (
            "The weights were chosen by rows on which the results are measured too, so the results "
            "are optimistic."
        )


def _phases(record: RunRecord) -> Iterator[str]:
    phases = [phase for phase in record.config.get("phases") or () if isinstance(phase, Mapping)]
    if len(phases) > 1:
        last = code(phases[-1].get("name"))
        yield (
            f"Data, results and samples describe the last phase, {last}; the earlier phases are in "
            "the table of phases."
        )


def _sessions(record: RunRecord) -> Iterator[str]:
    """Describe resumptions and changes of the environment."""
    sessions = record.sessions
    ended = [_ENDED.get(str(session.status), "ended without a status") for session in sessions]
    resumptions = [
        f"from step {after.from_step or 0:,} (the session before {how})"
        for how, after in zip(ended, sessions[1:], strict=False)
    ]
    if resumptions:
        last = "last " if len(resumptions) > MAX_RESUMPTIONS else ""
        listed = "; ".join(resumptions[-MAX_RESUMPTIONS:])
        yield f"The run took {len(sessions)} sessions; it resumed {last}{listed}."
    reported = set[str]()
    for session in sessions:
        if new := [change for change in session.changed if change not in reported]:
            reported.update(new)
            where = f"the session from step {session.from_step or 0:,}"
            yield f"The environment changed in {where}: {plain('; '.join(new))}."


def _rows(report: Mapping[str, Any]) -> Iterator[str]:
    dropped = report.get("dropped")
    reasons = dropped if isinstance(dropped, Mapping) else {"": dropped}
    counts = [
        f"{plain(words(why))}: {n:,}" if why else f"{n:,}"
        for why, n in reasons.items()
        if isinstance(n, (int, float)) and n
    ]
    if counts:
        yield f"The dataset adapter dropped rows ({'; '.join(counts)})."
    for name, value in report.items():
        lost = name != "dropped" and any(word in name for word in LOSSES)
        if lost and isinstance(value, (int, float)) and value:
            yield f"The dataset adapter reports {plain(words(name))}: {number(value)}."


def _used(used: Mapping[str, Any]) -> Iterator[str]:
    """Describe how many of the adapter's rows the trainer used, and why others were dropped."""
    for split, split_counts in used.items():
        lost = {**(split_counts.get("dropped") or {}), **(split_counts.get("cut") or {})}
        if reasons := [f"{plain(why)}: {count:,}" for why, count in lost.items() if count]:
            yield (
                f"Of {split_counts['rows']:,} rows of {code(split)} the trainer used "
                f"{split_counts['kept']:,} ({'; '.join(reasons)})."
            )


def _abstentions(record: RunRecord) -> Iterator[str]:
    for judge in record.reward.judges:
        usage = judge.get("usage") or {}
        if usage.get("failed"):
            calls = usage.get("calls") or usage.get("questions")
            of = f" of {calls:,.0f}" if calls else ""
            label = code(judge.get("label") or "judge")
            yield (
                f"Judge {label} returned no verdict {usage['failed']:,.0f}{of} times; these count "
                "as missing, never as a score."
            )
    for row in reward_history(record.training.history, record.reward)["rows"]:
        if row["none"] and row["label"] != TOTAL:
            yield (
                f"{code(row['label'])} abstained on {number(row['none'])} completions per logged "
                "step, on average."
            )
        if row["label"] == TOTAL and row["flat"]:
            yield (
                f"In {share(row['flat'])} of the groups all completions earned the same total; "
                "such a group has zero advantage and does not train the model."
            )


def _measurement(record: RunRecord) -> Iterator[str]:
    if record.evaluation is None or not record.evaluation.after:
        return  # as in the headline
    count = record.evaluation.rows
    if count is not None and count < FEW:
        yield (
            f"Only {counted(count, 'held-out row')}: of so few, a result is little more than "
            "chance, and an interval is too narrow."
        )
    rows = results(record)
    few = [row for row in rows if row["of"] is not None and row["of"] < FEW <= (count or 0)]
    if few:
        listed = ", ".join(f"{code(row['metric'])} of {row['of']:,}" for row in few)
        yield f"Few of {count:,} held-out rows could be measured: {listed}. This is weak evidence."
    for row in rows:
        if row["metric"] == "truncated" and row["after"] and row["after"].mean:
            yield (
                f"{share(row['after'].mean)} of the held-out completions after training were "
                "cut at the token limit."
            )


def _origin(record: RunRecord) -> Iterator[str]:
    if record.model.base and not hub_base(record):
        yield "The base model is not on the Hub, so the metadata names none."
    used = {"hf-rlhf", *(each.package for each in (record.plugin, *record.components))}
    for name, source in record.environment.sources.items():
        if name in used and source.dirty:
            yield f"{code(name)} had uncommitted changes: its commit is not the code that ran."

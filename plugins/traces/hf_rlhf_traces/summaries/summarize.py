"""Summarise each sample of `steps`, by extraction or a model: the step `summarize`.

Summaries are stored as they arrive and never repeated, so the same command continues after a stop.
The next call retries failed samples.
"""

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any, Protocol

import orjson

from hf_rlhf.errors import JudgeError
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Split
from hf_rlhf_traces.shards import SPLITS, dataset_rows
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.summaries.parts import FOLDER, Outcome, Row, SummaryParts, stored_outcomes
from hf_rlhf_traces.terminal import bars

STEP = "summarize"
FAILED = "failed.jsonl"
"""A line per sample without a summary: its id, the reason, the detail."""
FAILURE_WINDOW = 100
PROGRESS_S = 30.0
"""Seconds between progress lines outside a terminal."""
MAX_FAILURE_RATE = 0.5
"""Maximum share of failures in the last samples before a call stops."""
FIRST_FAILURES = 20
"""Number of failures without any success before it stops."""


class Summarizer(Protocol):
    """A way to make summaries."""

    def settings(self) -> Mapping[str, Any]:
        """Return the settings of a summary."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return tokens and cost so far."""
        ...

    def summarize_all(
        self, samples: Iterable[tuple[int, Row]], save: Callable[[int, Outcome], None]
    ) -> None:
        """Save the outcome of each sample under its number, in any order."""
        ...


@dataclass
class _Progress:
    """Counts the outcomes of a call and stops it after too many failures."""

    show: Callable[[int, int], None]
    summarised: int = 0
    failed: int = 0
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=FAILURE_WINDOW))

    def add(self, outcome: Outcome) -> None:
        failed = "failed" in outcome
        self.failed += failed
        self.summarised += not failed
        self.show(self.summarised, self.failed)
        self._recent.append(failed)
        count = len(self._recent)
        share = sum(self._recent) / count
        enough = count == FAILURE_WINDOW or (count >= FIRST_FAILURES and not self.summarised)
        if failed and enough and share > MAX_FAILURE_RATE:
            raise JudgeError(
                f"{share:.0%} of the last {count} samples could not be summarised. The "
                f"last cause: {outcome['detail']} Finished summaries are stored; the same command "
                "continues."
            )


def summarize(
    store: Store,
    form: Format,
    summarizer: Summarizer,
    *,
    limit: int | None = None,
    overwrite: bool = False,
) -> Mapping[str, Any]:
    """Summarise the samples of a store that lack a summary, or at most `limit` of them.

    Returns the report on all samples.

    Raises RunFolderError for summaries with other settings without `overwrite` and for a full disk,
    JudgeError if no sample could be summarised, and the errors of `summarizer`. Finished summaries
    are always stored.
    """
    steps = store.entry("steps")
    settings = summarizer.settings()
    state = store.check(STEP, settings, overwrite=overwrite)
    if state == "done":
        report = store.report(STEP)
        if not report["missing"] and not report["failed"]:
            return {**report, "done_before": True}
    folder = store.folder / FOLDER
    after = ("build", "format", "steps")
    with store.recording(STEP, settings, after=after, replaces=True) as recording:
        inputs = {"settings": settings, "format": form.settings(), "steps": steps["digest"]}
        parts = SummaryParts(folder, inputs)
        samples = sum(steps["result"]["samples"].values())
        with _progress_bar(limit or samples, summarizer.usage) as show:
            progress = _Progress(show)

            def save(number: int, outcome: Outcome) -> None:
                parts.save(number, outcome)
                progress.add(outcome)

            due = parts.due(row for _, row in steps_rows(store))
            try:
                summarizer.summarize_all(islice(due, limit), save)
            finally:
                parts.flush()
        recording.result.update(_report(store, samples))
        recording.outputs = [folder]
        call = {"summarised": progress.summarised, "failed": progress.failed}
        recording.notes["this_call"] = {**call, **summarizer.usage()}
        if not recording.result["summarised"]:
            reasons = [f"{count} {why}" for why, count in recording.result["failed"].items()]
            failed = ", ".join(reasons) or "none"
            raise JudgeError(
                f"None of {samples} samples was summarised. Failed: {failed}. "
                f"Why: {folder / FAILED}. The same command tries again."
            )
    return store.report(STEP)


def steps_rows(store: Store) -> Iterator[tuple[Split, dict[str, Any]]]:
    """Yield each sample of `steps` with its split, training first."""
    for side in SPLITS:
        for row in dataset_rows(store.folder / "datasets" / "steps", side):
            yield side, row


@contextmanager
def _progress_bar(
    total: int, usage: Callable[[], Mapping[str, float]]
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the numbers of summarised and failed samples.

    In a terminal a bar, else a line every `PROGRESS_S` seconds.
    """
    began = last = monotonic()
    with bars() as progress:
        task = progress.add_task("summarize", total=total)

        def show(summarised: int, failed: int) -> None:
            nonlocal last
            done = summarised + failed
            progress.update(task, completed=done)
            if progress.disable and (now := monotonic()) - last >= PROGRESS_S:
                last = now
                cost = f", cost {usage()['cost']:,.2f}" if usage().get("cost") else ""
                rate = done / (now - began)
                text = f"{done:,} of {total:,}, {failed:,} failed, {rate:,.1f}/s{cost}"
                print(f"summarize: {text}", file=sys.stderr, flush=True)

        yield show


def _report(store: Store, samples: int) -> dict[str, Any]:
    """Return the counts of all outcomes, and write the failures to a file."""
    counts: Counter[str] = Counter()
    failures = []
    stored = stored_outcomes(store.folder / FOLDER)
    for (_, row), outcome in zip(steps_rows(store), stored, strict=False):
        if outcome is None:
            continue
        if "failed" in outcome:
            line = {"id": row["id"], "reason": outcome["failed"], "detail": outcome["detail"]}
            failures.append(line)
            continue
        counts["summarised"] += 1
        counts["quotes"] += len(outcome["quotes"])
        counts["verbatim"] += sum(quote["verbatim"] for quote in outcome["quotes"])
        counts["without_quotes"] += not outcome["quotes"]
        counts["asked_twice"] += outcome["replies"] > 1
    lines = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in failures)
    atomic_write_bytes(store.folder / FOLDER / FAILED, lines)
    names = ("summarised", "quotes", "verbatim", "without_quotes", "asked_twice")
    return {
        "samples": samples,
        "failed": dict(sorted(Counter(line["reason"] for line in failures).items())),
        "missing": samples - counts["summarised"] - len(failures),
        **{name: counts[name] for name in names},
    }

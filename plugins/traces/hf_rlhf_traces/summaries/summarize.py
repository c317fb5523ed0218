"""The step `summarize`: a summary for each sample of `steps`, extracted here or written by a model.

What is made is appended at once and never made again, so that the same command goes on where it was
stopped. A failure is kept apart with its reason, and tried again by the next call.
"""

import asyncio
import hashlib
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any, Protocol

from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards import Messages, NoText, OpenAIText, Text
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Split
from hf_rlhf_traces.shards import SPLITS, dataset_rows
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.summaries import writer_prompt
from hf_rlhf_traces.summaries.extractive import Extractive
from hf_rlhf_traces.summaries.summary import Malformed, Summary, are_verbatim
from hf_rlhf_traces.summaries.summary_log import FOLDER, SummaryLog, disk_errors, summaries_of
from hf_rlhf_traces.terminal import bars

STEP = "summarize"
Row = Mapping[str, Any]
FAILURE_WINDOW = 100
EVERY_S = 30.0
"""Between lines of progress where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Again:
    """What is done with what failed before, and when to stop."""

    retry_failed: bool = True
    max_tries: int = 3
    """A sample that failed in so many calls is not tried any more."""
    max_failure_rate: float = 0.5
    """Stop when more than this share of the last FAILURE_WINDOW samples failed."""
    limit: int | None = None
    """Make at most so many in this call."""

    def tries(self, failure: Mapping[str, Any]) -> bool:
        """Say whether what failed so is tried again."""
        return self.retry_failed and failure["tries"] < self.max_tries

    def expected(self, samples: int, summary_log: SummaryLog) -> int:
        """Return how many samples this call is to make, of all that there are."""
        left = sum(not self.tries(failure) for failure in summary_log.failures.values())
        return min(samples - len(summary_log.offsets) - left, self.limit or samples)


class How(Protocol):
    """A way to make summaries."""

    def settings(self) -> Mapping[str, Any]:
        """Return what a summary depends on, beside its sample."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return tokens and cost so far."""
        ...

    def make(self, rows: Iterable[Row], log: "Log") -> None:
        """Tell `log` of each row's summary or failure, in any order."""
        ...


@dataclass
class Log:
    """Keeps what is made, and stops what fails too often."""

    summary_log: SummaryLog
    tell: Callable[[int, int], None]
    max_failure_rate: float
    made: int = 0
    failed: int = 0
    _last: deque[bool] = field(default_factory=lambda: deque(maxlen=FAILURE_WINDOW))

    def add(self, row: Row, summary: Summary, verbatim: Sequence[bool], asked: int = 0) -> None:
        """Keep a summary; `asked` is how often a model was asked for it."""
        quotes = [
            {"title": quote.title, "text": quote.text, "verbatim": is_verbatim}
            for quote, is_verbatim in zip(summary.quotes, verbatim, strict=True)
        ]
        content = {"question": summary.question, "reasoning": summary.reasoning, "quotes": quotes}
        self.summary_log.add({"id": row["id"], "made": row["made"], **content, "asked": asked})
        self.made += 1
        self._count(failed=False, cause="")

    def fail(self, row: Row, reason: str, detail: str) -> None:
        """Keep a failure. Raises JudgeError when there are too many of them."""
        failure = {"id": row["id"], "made": row["made"], "reason": reason, "detail": detail}
        self.summary_log.fail(failure)
        self.failed += 1
        self._count(failed=True, cause=detail)

    def _count(self, *, failed: bool, cause: str) -> None:
        self.tell(self.made, self.failed)
        self._last.append(failed)
        share = sum(self._last) / FAILURE_WINDOW
        if failed and len(self._last) == FAILURE_WINDOW and share > self.max_failure_rate:
            raise JudgeError(
                f"{share:.0%} of the last {FAILURE_WINDOW} samples could not be summarised, more "
                f"than --max_failure_rate {self.max_failure_rate:g}. The last cause: {cause} What "
                "was made is kept; the same command goes on."
            )


@dataclass
class Extracted:
    """By sentences of the context: no model, no network."""

    extractive: Extractive

    def settings(self) -> Mapping[str, Any]:
        """Return what a summary depends on."""
        return self.extractive.settings()

    def usage(self) -> Mapping[str, float]:
        """Return nothing: it costs nothing."""
        return {}

    def make(self, rows: Iterable[Row], log: Log) -> None:
        """Summarise each row, in order."""
        form = self.extractive.form
        for row in rows:
            summary = self.extractive.summarise(row)
            log.add(row, summary, are_verbatim(summary.quotes, row["prompt"], form))


@dataclass
class _Request:
    row: Row
    messages: Messages
    times: int = 1


@dataclass
class Written:
    """By a model behind an OpenAI-compatible API."""

    writer: OpenAIText
    form: Format
    _under_way: dict[int, _Request] = field(default_factory=dict)

    def settings(self) -> Mapping[str, Any]:
        """Return what a summary depends on. Not where the model is served, which may change."""
        described = {k: v for k, v in self.writer.describe().items() if k != "base_url"}
        prompt_digest = writer_prompt.prompt_sha256(self.form)
        return {"by": "model", **described, "prompt_sha256": prompt_digest}

    def usage(self) -> Mapping[str, float]:
        """Return requests, tokens and cost of this call."""
        return self.writer.usage()

    def make(self, rows: Iterable[Row], log: Log) -> None:
        """Ask for each row's summary, many at once; as few rows as are asked for are in memory.

        Raises JudgeError for what will not heal, a server that stays away, and too many failures.
        """

        def on_reply(index: int, reply: Text | NoText) -> Messages | None:
            further = self._take(self._under_way[index], reply, log)
            if not further:
                del self._under_way[index]
            return further

        try:
            asyncio.run(self.writer.write(self._requests(rows), on_reply))
        finally:
            self._under_way.clear()

    def _requests(self, rows: Iterable[Row]) -> Iterator[Messages]:
        for index, row in enumerate(rows):
            messages = writer_prompt.messages(row, self.form)
            self._under_way[index] = _Request(row, messages)
            yield messages

    def _take(self, request: _Request, reply: Text | NoText, log: Log) -> Messages | None:
        """Keep what a reply says. One that cannot be used is sent back once."""
        if isinstance(reply, NoText):
            log.fail(request.row, reply.cause, reply.reason)
            return None
        try:
            summary, verbatim = writer_prompt.read_reply(reply.content, request.row, self.form)
        except Malformed as malformed:
            if request.times == 1:
                request.times = 2
                return writer_prompt.again(
                    request.messages, reply.content, str(malformed), self.form
                )
            foreign = isinstance(malformed, writer_prompt.Foreign)
            log.fail(request.row, "foreign" if foreign else "malformed", str(malformed))
            return ()
        log.add(request.row, summary, verbatim, request.times)
        return None


def summarize(
    store: Store, form: Format, how: How, again: Again, *, overwrite: bool = False
) -> Mapping[str, Any]:
    """Make the summaries that a store lacks, and return the report: all samples by what they are.

    Raises RunFolderError when there are summaries by other settings and `overwrite` is not set,
    DataError for lines on disk that are none, JudgeError when no sample could be summarised, and
    whatever `how` raises; what was made before is kept.
    """
    samples = sum(store.report("steps")["samples"].values())
    settings = how.settings()
    state = store.check(STEP, settings, overwrite=overwrite)
    if state == "done" and not _due(store, again):
        return {**store.report(STEP), "done_before": True}
    with (
        disk_errors(store.folder / FOLDER),
        store.recording(
            STEP, settings, after=("read", "format", "steps"), replaces=True
        ) as recording,
    ):
        by = _digest(settings, form)
        summary_log = SummaryLog(store.folder / FOLDER, by)
        try:
            order: list[str] = []
            rows = _missing(store, by, summary_log, again, order)
            with _progress(again.expected(samples, summary_log), how.usage) as tell:
                log = Log(summary_log, tell, again.max_failure_rate)
                how.make(islice(rows, again.limit), log)
            for _ in rows:  # the rest has its place in the order
                pass
        finally:
            summary_log.close()
        summary_log.sort(order)
        report = recording.result
        report.update(_report(store, samples, summary_log))
        recording.outputs = [summary_log.path, summary_log.failed_path]
        recording.notes["this_call"] = {"made": log.made, "failed": log.failed, **how.usage()}
        if not report["summarised"]:
            raise JudgeError(
                f"None of {samples} samples was summarised. Failed: {report['failed']}. Why: "
                f"{summary_log.failed_path}. The same command tries again."
            )
    return store.report(STEP)


@contextmanager
def _progress(
    total: int, usage: Callable[[], Mapping[str, float]]
) -> Iterator[Callable[[int, int], None]]:
    """Give a function that takes how many samples are made and failed, and shows it.

    In a terminal a bar, else a line every `EVERY_S` seconds.
    """
    began = last = monotonic()
    with bars() as progress:
        task = progress.add_task("summarize", total=total or None)

        def tell(made: int, failed: int) -> None:
            nonlocal last
            progress.update(task, completed=made + failed)
            if progress.disable and (now := monotonic()) - last >= EVERY_S:
                last, rate = now, (made + failed) / (now - began)
                cost = f", cost {usage()['cost']:,.2f}" if usage().get("cost") else ""
                text = f"{made + failed:,} of {total:,}, {failed:,} failed, {rate:,.1f}/s{cost}"
                print(f"summarize: {text}", file=sys.stderr, flush=True)

        yield tell


def steps_rows(store: Store) -> Iterator[tuple[Split, dict[str, Any]]]:
    """Yield each sample of `steps` with its split, training first."""
    for side in SPLITS:
        for row in dataset_rows(store.folder / "datasets" / "steps", side):
            yield side, row


def _missing(
    store: Store, by: str, summary_log: SummaryLog, again: Again, order: list[str]
) -> Iterator[Row]:
    """Yield the samples that are to be made, and note every sample's hash in `order`."""
    for _, row in steps_rows(store):
        identity = _identity(row, by)
        order.append(identity)
        if identity in summary_log.offsets:
            continue
        failure = summary_log.failures.get(identity)
        if failure and not again.tries(failure):
            continue
        yield {**row, "made": identity}


def _due(store: Store, again: Again) -> bool:
    """Return whether a finished step still has samples that may be tried."""
    report = store.report(STEP)
    tries = [int(count) for count in report["tries"]]
    return bool(report["missing"]) or (
        again.retry_failed and any(count < again.max_tries for count in tries)
    )


def _digest(settings: Mapping[str, Any], form: Format) -> str:
    text = json.dumps([settings, form.settings()], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _identity(row: Row, by: str) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name in ("id", "question", "prompt"):
        raw = row[name].encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "big") + raw)
    return f"{by}-{hashed.hexdigest()}"


def _report(store: Store, samples: int, summary_log: SummaryLog) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for summary in summaries_of(store.folder / FOLDER):
        counts["summarised"] += 1
        counts["quotes"] += len(summary["quotes"])
        counts["verbatim"] += sum(quote["verbatim"] for quote in summary["quotes"])
        counts["without_quotes"] += not summary["quotes"]
        counts["asked_twice"] += summary["asked"] > 1
    failures = [summary_log.failures[failure] for failure in summary_log.failures]
    failed = Counter(failure["reason"] for failure in failures)
    return {
        "samples": samples,
        "summarised": counts["summarised"],
        "failed": dict(sorted(failed.items())),
        "missing": samples - counts["summarised"] - failed.total(),
        "quotes": counts["quotes"],
        "verbatim": counts["verbatim"],
        "without_quotes": counts["without_quotes"],
        "asked_twice": counts["asked_twice"],
        "tries": dict(Counter(str(failure["tries"]) for failure in failures)),
    }

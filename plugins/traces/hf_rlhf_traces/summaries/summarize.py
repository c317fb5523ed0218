"""The step `summarize`: a summary for each sample of `steps`, extracted here or written by a model.

What is made is appended at once and never made again, so that the same command goes on where it was
stopped. A failure is kept apart with its reason, and tried again by the next call.
"""

import asyncio
import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import orjson

from hf_rlhf.errors import DataError, JudgeError
from hf_rlhf.rewards import Messages, NoText, OpenAIText, Text
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Split
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.summaries import writer_prompt
from hf_rlhf_traces.summaries.extractive import Extractive
from hf_rlhf_traces.summaries.kept import FOLDER, Kept, content_of, summaries_of, written_in
from hf_rlhf_traces.summaries.progress import shown
from hf_rlhf_traces.summaries.summary import Malformed, Summary, are_verbatim
from hf_rlhf_traces.writing import SPLITS, written_lines

STEP = "summarize"
Row = Mapping[str, Any]
FAILURE_WINDOW = 100


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

    def expected(self, samples: int, kept: Kept) -> int:
        """Return how many samples this call is to make, of all that there are."""
        left = sum(not self.tries(failure) for failure in kept.failures.values())
        return min(samples - len(kept.places) - left, self.limit or samples)


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

    kept: Kept
    tell: Callable[[int, int], None]
    max_failure_rate: float
    made: int = 0
    failed: int = 0
    _last: deque[bool] = field(default_factory=lambda: deque(maxlen=FAILURE_WINDOW))

    def add(self, row: Row, summary: Summary, verbatim: Sequence[bool], asked: int = 0) -> None:
        """Keep a summary; `asked` is how often a model was asked for it."""
        quotes = [
            {"title": quote.title, "text": quote.text, "verbatim": found}
            for quote, found in zip(summary.quotes, verbatim, strict=True)
        ]
        said = {"question": summary.question, "reasoning": summary.reasoning, "quotes": quotes}
        self.kept.add({"id": row["id"], "made": row["made"], **said, "asked": asked})
        self.made += 1
        self._count(failed=False, cause="")

    def fail(self, row: Row, reason: str, detail: str) -> None:
        """Keep a failure. Raises JudgeError when there are too many of them."""
        failure = {"id": row["id"], "made": row["made"], "reason": reason, "detail": detail}
        self.kept.fail(failure)
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
class _Asked:
    row: Row
    messages: Messages
    times: int = 1


@dataclass
class Written:
    """By a model behind an OpenAI-compatible API."""

    writer: OpenAIText
    form: Format
    _under_way: dict[int, _Asked] = field(default_factory=dict)

    def settings(self) -> Mapping[str, Any]:
        """Return what a summary depends on. Not where the model is served, which may change."""
        named = {k: v for k, v in self.writer.describe().items() if k != "base_url"}
        told = writer_prompt.prompt_sha256(self.form)
        return {"by": "model", **named, "prompt_sha256": told}

    def usage(self) -> Mapping[str, float]:
        """Return requests, tokens and cost of this call."""
        return self.writer.usage()

    def make(self, rows: Iterable[Row], log: Log) -> None:
        """Ask for each row's summary, many at once; as few rows as are asked for are in memory.

        Raises JudgeError for what will not heal, a server that stays away, and too many failures.
        """

        def on_reply(index: int, said: Text | NoText) -> Messages | None:
            further = self._take(self._under_way[index], said, log)
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
            self._under_way[index] = _Asked(row, messages)
            yield messages

    def _take(self, asked: _Asked, said: Text | NoText, log: Log) -> Messages | None:
        """Keep what a reply says. One that cannot be used is sent back once."""
        if isinstance(said, NoText):
            log.fail(asked.row, said.cause, said.reason)
            return None
        try:
            summary, verbatim = writer_prompt.read_reply(said.content, asked.row, self.form)
        except Malformed as malformed:
            if asked.times == 1:
                asked.times = 2
                return writer_prompt.again(asked.messages, said.content, str(malformed), self.form)
            foreign = isinstance(malformed, writer_prompt.Foreign)
            log.fail(asked.row, "foreign" if foreign else "malformed", str(malformed))
            return ()
        log.add(asked.row, summary, verbatim, asked.times)
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
        written_in(store.folder / FOLDER),
        store.making(STEP, settings, after=("read", "format", "steps"), replacing=True) as report,
    ):
        by = _digest(settings, form)
        kept = Kept(store.folder / FOLDER, by)
        try:
            order: list[str] = []
            rows = _missing(store, by, kept, again, order)
            with shown(again.expected(samples, kept), how.usage) as tell:
                log = Log(kept, tell, again.max_failure_rate)
                how.make(islice(rows, again.limit), log)
            for _ in rows:  # the rest has its place in the order
                pass
        finally:
            kept.close()
        kept.settle(order)
        report.update(_report(store, samples, kept))
        report["content"] = content_of(store.folder / FOLDER)
        report["order"] = _order_of(store)
        report["this_call"] = {"made": log.made, "failed": log.failed, **how.usage()}
        if not report["summarised"]:
            raise JudgeError(
                f"None of {samples} samples was summarised. Failed: {report['failed']}. Why: "
                f"{kept.failed_path}. The same command tries again."
            )
    return store.report(STEP)


def steps_rows(store: Store) -> Iterator[tuple[Split, dict[str, Any]]]:
    """Yield each sample of `steps` with its split, training first."""
    for side in SPLITS:
        path = store.folder / "datasets" / "steps" / f"{side}.jsonl"
        for number, line in enumerate(written_lines(path), start=1):
            try:
                yield side, orjson.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{path}:{number}: is no JSON ({error}). Make it anew: hf-rlhf traces "
                    f"steps {store.folder} --overwrite"
                ) from error


def _missing(store: Store, by: str, kept: Kept, again: Again, order: list[str]) -> Iterator[Row]:
    """Yield the samples that are to be made, and note every sample's hash in `order`."""
    for _, row in steps_rows(store):
        made = _made(row, by)
        order.append(made)
        if made in kept.places:
            continue
        failure = kept.failures.get(made)
        if failure and not again.tries(failure):
            continue
        yield {**row, "made": made}


def _due(store: Store, again: Again) -> bool:
    """Say whether a finished step still has samples that may be tried, or its files are others.

    Or the samples are in another order, as of files that were read in another way.
    """
    report = store.report(STEP)
    now = {"content": content_of(store.folder / FOLDER), "order": _order_of(store)}
    if any(report.get(name) != one for name, one in now.items()):
        return True
    tries = [int(count) for count in report["tries"]]
    return bool(report["missing"]) or (
        again.retry_failed and any(count < again.max_tries for count in tries)
    )


def _order_of(store: Store) -> str:
    """Return 32 hex digits of the ids of the samples in their order."""
    import pyarrow.parquet as pq

    hashed = hashlib.blake2b(digest_size=16)
    for side in SPLITS:
        with pq.ParquetFile(store.folder / "datasets" / "steps" / f"{side}.parquet") as file:
            for batch in file.iter_batches(columns=["id"]):
                hashed.update("\0".join([*batch.column(0).to_pylist(), ""]).encode())
    return hashed.hexdigest()


def _digest(settings: Mapping[str, Any], form: Format) -> str:
    text = json.dumps([settings, form.settings()], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _made(row: Row, by: str) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    for name in ("id", "question", "prompt"):
        raw = row[name].encode("utf-8", "surrogatepass")
        hashed.update(len(raw).to_bytes(8, "big") + raw)
    return f"{by}-{hashed.hexdigest()}"


def _report(store: Store, samples: int, kept: Kept) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for one in summaries_of(store.folder / FOLDER):
        counts["summarised"] += 1
        counts["quotes"] += len(one["quotes"])
        counts["verbatim"] += sum(quote["verbatim"] for quote in one["quotes"])
        counts["without_quotes"] += not one["quotes"]
        counts["asked_twice"] += one["asked"] > 1
    settled = [kept.failures[made] for made in kept.failures]
    failed = Counter(one["reason"] for one in settled)
    return {
        "samples": samples,
        "summarised": counts["summarised"],
        "failed": dict(sorted(failed.items())),
        "missing": samples - counts["summarised"] - failed.total(),
        "quotes": counts["quotes"],
        "verbatim": counts["verbatim"],
        "without_quotes": counts["without_quotes"],
        "asked_twice": counts["asked_twice"],
        "tries": dict(Counter(str(one["tries"]) for one in settled)),
    }

"""Summarise each sample of `steps`, by extraction or a model: the step `summarize`.

DIR/summaries/summaries.jsonl has a line for each sample, in their order. After a stop the same
command takes the texts of a model from the cache of judges. The next call retries failed samples.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from hf_rlhf.errors import DataError, JudgeError
from hf_rlhf.storage import atomic_file
from hf_rlhf_traces.rows import Split
from hf_rlhf_traces.shards import SPLITS, dataset_rows
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.summaries.summary import Outcome, Row

STEP = "summarize"
FOLDER = "summaries"
FILE = "summaries.jsonl"
MAX_FAILURES = 20
"""Failures after which a call stops if they are more than its summaries."""
_QUOTE_COUNTS = ("quotes", "verbatim", "without_quotes", "asked_twice")
if TYPE_CHECKING:
    from hf_rlhf_traces.summaries.extractive import Extractive
    from hf_rlhf_traces.summaries.model_summaries import ModelSummarizer


def stored_outcomes(store: Store) -> Iterator[Outcome | None]:
    """Yield the outcome of each sample in order, then None without end (not tried)."""
    path = store.folder / FOLDER / FILE
    try:
        with path.open("rb") as file:
            yield from chain(map(orjson.loads, file), repeat(None))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Summarise again.") from error


def summarize(
    store: Store,
    summarizer: "Extractive | ModelSummarizer",
    *,
    limit: int | None = None,
    overwrite: bool = False,
) -> Mapping[str, Any]:
    """Summarise the samples of a store, or the first `limit` of them, and return the report.

    Raises RunFolderError for summaries with other settings without `overwrite` and for a full disk,
    JudgeError if no sample could be summarised, and the errors of `summarizer`.
    """
    samples = sum(store.entry("steps")["result"]["samples"].values())
    settings = summarizer.settings()
    if store.check(STEP, settings, overwrite=overwrite) == "done":
        report = store.report(STEP)
        if not report["missing"] and not report["failed"]:
            return {**report, "done_before": True}
    path = store.folder / FOLDER / FILE
    after = ("build", "format", "steps")
    with store.recording(STEP, settings, after=after, replaces=True) as recording:
        counts, failed = _write(path, store, summarizer, min(limit or samples, samples))
        if not counts["summarised"]:
            reasons = ", ".join(f"{count} {why}" for why, count in failed.items())
            raise JudgeError(
                f"None of {samples} samples was summarised. Failed: {reasons or 'none'}. "
                f"Why: {path}. The same command tries again."
            )
        recording.outputs = [path.parent]
        recording.notes["this_call"] = dict(summarizer.usage())
        recording.result.update(
            samples=samples,
            failed=dict(sorted(failed.items())),
            missing=samples - counts["summarised"] - failed.total(),
            **{name: counts[name] for name in ("summarised", *_QUOTE_COUNTS)},
        )
    return store.report(STEP)


def _write(
    path: Path, store: Store, summarizer: "Extractive | ModelSummarizer", total: int
) -> tuple[Counter[str], Counter[str]]:
    """Write the outcomes of the first samples; return counts, and failures by reason."""
    from tqdm import tqdm

    counts, failed = Counter[str](), Counter[str]()
    ids: dict[int, str] = {}
    waiting: dict[int, Outcome] = {}
    """Outcomes that came before an earlier sample's."""

    def samples() -> Iterator[tuple[int, Row]]:
        for number, (_, row) in enumerate(islice(steps_rows(store), total)):
            ids[number] = row["id"]
            yield number, row

    with (
        atomic_file(path) as file,
        tqdm(total=total, desc=STEP, mininterval=0.1 if sys.stderr.isatty() else 30) as bar,
    ):

        def save(number: int, outcome: Outcome) -> None:
            waiting[number] = outcome
            while (first := next(iter(ids), None)) in waiting:
                line = {"id": ids.pop(first), **waiting.pop(first)}
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
                bar.update()
            _count(outcome, counts, failed)
            bar.set_postfix(failed=failed.total(), refresh=False)

        summarizer.summarize_all(samples(), save)
    return counts, failed


def _count(outcome: Outcome, counts: Counter[str], failed: Counter[str]) -> None:
    """Count an outcome. Raises JudgeError after too many failures."""
    if "failed" not in outcome:
        verbatim = [quote["verbatim"] for quote in outcome["quotes"]]
        numbers = (len(verbatim), sum(verbatim), not verbatim, outcome["replies"] > 1)
        counts.update(dict(zip(_QUOTE_COUNTS, numbers, strict=True)), summarised=1)
        return
    failed[outcome["failed"]] += 1
    if failed.total() >= MAX_FAILURES and failed.total() > counts["summarised"]:
        raise JudgeError(
            f"{failed.total()} samples could not be summarised, and {counts['summarised']} could. "
            f"The last cause: {outcome['detail']} Texts so far are in the cache; the same command "
            "continues."
        )


def steps_rows(store: Store) -> Iterator[tuple[Split, dict[str, Any]]]:
    """Yield each sample of `steps` with its split, training first."""
    for side in SPLITS:
        for row in dataset_rows(store.folder / "datasets" / "steps", side):
            yield side, row

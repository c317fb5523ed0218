"""Build the datasets `summary_prefix` and `summary_only` from summaries: `split_summary`.

Every sample of `steps` is a row of both, or is counted by the reason for leaving it out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Chat, Origin, Split, Summarised
from hf_rlhf_traces.shards import SPLITS, dataset_writer, shard_files
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.summaries import summarize
from hf_rlhf_traces.summaries.summary import Outcome, Quote, Row, Summary, render

STEP = "split_summary"
PREFIX, ONLY = "summary_prefix", "summary_only"
_GROUP = 256
"""Rows per write."""


def split_summary(
    store: Store,
    form: Format,
    *,
    min_verbatim: float = 0.0,
    overwrite: bool = False,
) -> Mapping[str, Any]:
    """Write both datasets, and return the report.

    Args:
        store: samples and summaries.
        form: tags and templates.
        min_verbatim: minimum share of verbatim quotes in a row.
        overwrite: replace datasets with other settings.

    Raises RunFolderError for missing samples or summaries, DataError if no row is left.
    """
    store.report(summarize.STEP)
    settings = {"min_verbatim": min_verbatim}
    folder = store.folder / "datasets"
    built = all(shard_files(folder / name, "train") for name in (PREFIX, ONLY))
    if store.check(STEP, settings, overwrite=overwrite) == "done" and built:
        return {**store.report(STEP), "done_before": True}
    after = ("build", "format", "steps", summarize.STEP)
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with (
        store.recording(STEP, settings, after=after, replaces=True) as recording,
        dataset_writer(folder, PREFIX) as write_prefix,
        dataset_writer(folder, ONLY) as write_only,
    ):
        rows = _kept(store, counts, failed, min_verbatim)
        for side, group in groupby(rows, key=itemgetter(0)):
            while made := [each[1:] for each in islice(group, _GROUP)]:
                write_prefix(side, [prefix_row(*each, form) for each in made])
                write_only(side, [only_row(*each, form) for each in made])
        if not counts["train"] + counts["validation"]:
            raise DataError(
                f"{store.folder}: no row is left of {counts['steps']} samples: "
                f"{counts['min_verbatim']} under --min_verbatim {min_verbatim:g}, "
                f"{counts['all_quotes_invented']} with no quote that occurs in the context, "
                f"{failed.total()} failed, "
                f"{counts['missing']} not summarised."
            )
        recording.result.update(
            samples={side: counts[side] for side in SPLITS},
            filtered={name: counts[name] for name in ("min_verbatim", "all_quotes_invented")},
            failed=dict(sorted(failed.items())),
            summarised_by=dict(store.settings(summarize.STEP)),
            **{name: counts[name] for name in _COUNTS},
        )
    return store.report(STEP)


def _kept(
    store: Store, counts: Counter[str], failed: Counter[str], least: float
) -> Iterator[tuple[Split, Row, Summary, float]]:
    """Yield each training row with its summary; count all rows."""
    outcomes = summarize.stored_outcomes(store)
    for (side, row), outcome in zip(summarize.steps_rows(store), outcomes, strict=False):
        counts["steps"] += 1
        if outcome is None:
            counts["missing"] += 1
        elif "failed" in outcome:
            failed[outcome["failed"]] += 1
        elif (share := _verbatim_share(outcome)) < least:
            counts["min_verbatim"] += 1
        elif share == 0:  # without its evidence it would teach to summarise without evidence
            counts["all_quotes_invented"] += 1
        else:
            counts[side] += 1
            summary = _trained_summary(outcome, counts)
            yield side, row, summary, share


_COUNTS = ("steps", "missing", "quotes", "verbatim", "dropped_quotes", "without_quotes")


def _verbatim_share(outcome: Outcome) -> float:
    verbatim = [quote["verbatim"] for quote in outcome["quotes"]]
    return sum(verbatim) / len(verbatim) if verbatim else 1.0


def _trained_summary(outcome: Outcome, counts: Counter[str]) -> Summary:
    """Return the summary with its verbatim quotes alone."""
    quotes = outcome["quotes"]
    left = [quote for quote in quotes if quote["verbatim"]]
    counts["quotes"] += len(quotes)
    counts["verbatim"] += sum(quote["verbatim"] for quote in quotes)
    counts["dropped_quotes"] += len(quotes) - len(left)
    counts["without_quotes"] += not left
    texts = tuple(Quote(quote["text"], quote["title"]) for quote in left)
    return Summary(outcome["question"], outcome["reasoning"], texts)


def prefix_row(row: Row, summary: Summary, share: float, form: Format) -> Summarised:
    """Return the row from the full context to the summary and the reply.

    `share` is the share of verbatim quotes.
    """
    text = render(summary, form)
    task = form.fill(form.summary_prefix, row["prompt"])
    return _row(row, task, f"{text}\n{row['answer']}", text, share, form)


def only_row(row: Row, summary: Summary, share: float, form: Format) -> Summarised:
    """Return the row from the summary to the reply."""
    text = render(summary, form)
    return _row(row, form.fill(form.summary_only, text), row["answer"], text, share, form)


def _row(row: Row, task: str, reply: str, summary: str, share: float, form: Format) -> Summarised:
    system: list[Chat] = [{"role": "system", "content": form.fill(form.system, "")}]
    origin: Origin = {
        "id": row["id"],
        "trace": row["trace"],
        "question_key": row["question_key"],
        "step": row["step"],
        "steps": row["steps"],
        "question": row["question"],
    }
    return {
        **origin,
        "prompt": [*(system if form.system else []), {"role": "user", "content": task}],
        "completion": [{"role": "assistant", "content": reply}],
        "summary": summary,
        "answer": row["answer"],
        "verbatim": share,
    }

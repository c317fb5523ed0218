"""The step `split_summary`: the datasets `summary_prefix` and `summary_only`, of the summaries.

Every sample of `steps` is a row of both, or is counted under the reason why not.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.storage import atomic_dir
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Chat, Origin, Split, Summarised
from hf_rlhf_traces.shards import ShardWriter, name_shards
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.summaries import summarize
from hf_rlhf_traces.summaries.summary import Quote, Summary, render
from hf_rlhf_traces.summaries.summary_log import FOLDER, failures_of, summaries_of

STEP = "split_summary"
PREFIX, ONLY = "summary_prefix", "summary_only"
SHARD_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which summaries are trained on, and which of their quotes."""

    min_verbatim: float = 0.0
    """Leave out rows of which a smaller share of the quotes stands in the context."""
    drop_unverbatim: bool = True
    """Leave quotes out of a summary that do not stand in the context; a summary of nothing but
    such quotes, too, with its row, or it would teach to summarise without evidence."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a share that is none."""
        if not 0 <= self.min_verbatim <= 1:
            what = f"is {self.min_verbatim:g}."
            raise ConfigError([Problem("--min_verbatim", what, "Give a share from 0 to 1.")])


def split_summary(
    store: Store, form: Format, chosen: Filter, *, overwrite: bool = False
) -> Mapping[str, Any]:
    """Write both datasets, and return the report.

    Raises RunFolderError where samples or summaries are not made, DataError where summaries are
    not as they were left, and where no row is left.
    """
    made_by = store.settings(summarize.STEP)
    store.report(summarize.STEP)
    settings = asdict(chosen)
    folders = {name: store.folder / "datasets" / name for name in (PREFIX, ONLY)}
    there = all(folder.exists() for folder in folders.values())
    if store.check(STEP, settings, overwrite=overwrite) == "done" and there:
        return {**store.report(STEP), "done_before": True}
    after = ("read", "format", "steps", summarize.STEP)
    with (
        store.recording(STEP, settings, after=after, replaces=True) as recording,
        _both_datasets(folders) as write,
    ):
        counts: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        failures = failures_of(store.folder / FOLDER)
        for side, row, summary in _matched(store):
            counts["steps"] += 1
            if summary is None:
                reason = failures.get(row["id"])
                failed.update([reason] if reason else [])
                counts["missing"] += reason is None
            elif (share := _share(summary)) < chosen.min_verbatim:
                counts["min_verbatim"] += 1
            elif chosen.drop_unverbatim and share == 0:
                counts["all_quotes_invented"] += 1
            else:
                summary_kept = _summary(summary, chosen, counts)
                counts[side] += 1
                write(
                    side,
                    prefix_row(row, summary_kept, share, form),
                    only_row(row, summary_kept, share, form),
                )
        if not counts["train"] + counts["validation"]:
            raise DataError(
                f"{store.folder}: no row is left of {counts['steps']} samples: "
                f"{counts['min_verbatim']} under --min_verbatim {chosen.min_verbatim:g}, "
                f"{counts['all_quotes_invented']} with no quote that stands in the context "
                f"(--keep_unverbatim keeps them), {failed.total()} failed, "
                f"{counts['missing']} not summarised."
            )
        recording.result.update(_report(counts, failed, made_by))
    return store.report(STEP)


@contextmanager
def _both_datasets(
    folders: Mapping[str, Path],
) -> Iterator[Callable[[Split, Summarised, Summarised], None]]:
    """Give what writes a row of each dataset; both replace the old ones in the end."""
    with ExitStack() as closing:
        temporary = {
            name: closing.enter_context(atomic_dir(folder, overwrite=True))
            for name, folder in folders.items()
        }
        writers: dict[str, ShardWriter] = {}
        count = 0

        def write(side: Split, prefix: Summarised, only: Summarised) -> None:
            nonlocal count
            if count % SHARD_ROWS == 0:
                close()
                number = count // SHARD_ROWS
                writers.update(
                    {name: ShardWriter(temporary[name], name, number) for name in temporary}
                )
            count += 1
            writers[PREFIX].add(side, [prefix])
            writers[ONLY].add(side, [only])

        def close() -> None:
            for writer in writers.values():
                writer.close()

        yield write
        close()
        for folder in temporary.values():
            name_shards(folder)


def _report(
    counts: Counter[str], failed: Counter[str], made_by: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "steps": counts["steps"],
        "samples": {side: counts[side] for side in ("train", "validation")},
        "filtered": {name: counts[name] for name in ("min_verbatim", "all_quotes_invented")},
        "failed": dict(sorted(failed.items())),
        "missing": counts["missing"],
        "quotes": counts["quotes"],
        "verbatim": counts["verbatim"],
        "dropped_quotes": counts["dropped_quotes"],
        "without_quotes": counts["without_quotes"],
        "summarised_by": dict(made_by),
    }


def _matched(store: Store) -> Iterator[tuple[Split, dict[str, Any], Mapping[str, Any] | None]]:
    """Yield each sample with its split and its summary, which stand in the same order."""
    summaries = summaries_of(store.folder / FOLDER)
    waiting = next(summaries, None)
    for side, row in summarize.steps_rows(store):
        if waiting is not None and waiting["id"] == row["id"]:
            yield side, row, waiting
            waiting = next(summaries, None)
        else:
            yield side, row, None
    if waiting is not None:
        raise DataError(
            f"{store.folder / FOLDER}: the summary of {waiting['id']!r} is of no sample. Make the "
            f"summaries again: hf-rlhf traces summarize {store.folder} --overwrite"
        )


def _share(summary: Mapping[str, Any]) -> float:
    verbatim = [quote["verbatim"] for quote in summary["quotes"]]
    return sum(verbatim) / len(verbatim) if verbatim else 1.0


def _summary(line: Mapping[str, Any], chosen: Filter, counts: Counter[str]) -> Summary:
    quotes = line["quotes"]
    remaining = [quote for quote in quotes if quote["verbatim"] or not chosen.drop_unverbatim]
    counts["quotes"] += len(quotes)
    counts["verbatim"] += sum(quote["verbatim"] for quote in quotes)
    counts["dropped_quotes"] += len(quotes) - len(remaining)
    counts["without_quotes"] += not remaining
    texts = tuple(Quote(quote["text"], quote["title"]) for quote in remaining)
    return Summary(line["question"], line["reasoning"], texts)


def prefix_row(row: Mapping[str, Any], summary: Summary, share: float, form: Format) -> Summarised:
    """Return the row that leads from the full context to the summary and the reply."""
    text = render(summary, form)
    task = form.ask(form.summary_prefix, row["prompt"])
    return _row(row, task, f"{text}\n{row['answer']}", text, share, form)


def only_row(row: Mapping[str, Any], summary: Summary, share: float, form: Format) -> Summarised:
    """Return the row that leads from the summary to the reply."""
    text = render(summary, form)
    return _row(row, form.ask(form.summary_only, text), row["answer"], text, share, form)


def _row(
    row: Mapping[str, Any], task: str, reply: str, summary: str, share: float, form: Format
) -> Summarised:
    system: list[Chat] = [{"role": "system", "content": form.ask(form.system, "")}]
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

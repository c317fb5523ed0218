"""Tokens of each sample of a dataset, measured: what a summary saves, and what a run will cost.

The numbers of a dataset are a step of the store, `tokens_NAME`, so that they are stale when the
dataset is made anew.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import HfRlhfError, ModelError
from hf_rlhf_traces.rows import MADE_BY, conversation
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import bars
from hf_rlhf_traces.tokens import Pair, lengths
from hf_rlhf_traces.writing import SPLITS

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_TOKENIZER = "package://hf_rlhf_traces/tiny_base"
PARTS: Mapping[str, tuple[str, str]] = {
    "multiturn": ("conversation so far", "last reply"),
    "steps": ("full context", "reply"),
    "summary_prefix": ("full context", "summary and reply"),
    "summary_only": ("summary", "reply"),
}
"""Dataset -> what its prompt and its completion are."""
NUMBERS = ("median", "mean", "p90", "max", "total")


def measured(store: Store, datasets: Sequence[str], tokenizer: str) -> dict[str, Any]:
    """Return the tokens of datasets, by a model's tokenizer and chat template.

    Dataset -> {tokenizer, samples, prompt, completion}, where the last two have `NUMBERS`, over
    all splits. What was measured before is not measured again. Raises ModelError for a tokenizer
    that cannot be had, RunFolderError for a dataset that is not made.
    """
    found: dict[str, Any] = {}
    loaded = None
    for dataset in datasets:
        settings = {"tokenizer": tokenizer}
        step = f"tokens_{dataset}"
        if store.state(step, settings) != "done":
            store.report(MADE_BY[dataset])
            loaded = loaded or _tokenizer(tokenizer)
            with store.making(step, settings, after=(MADE_BY[dataset],)) as report:
                report.update(tokenizer=tokenizer, **_measure(store, dataset, loaded))
        found[dataset] = store.report(step)
    return found


def known(store: Store, dataset: str) -> Mapping[str, Any] | None:
    """Return what was measured of a dataset as it is now, if it was."""
    step = f"tokens_{dataset}"
    return store.report(step) if store.state(step) == "done" else None


def share_left(tokens: Mapping[str, Any]) -> float | None:
    """Return the prompt tokens of `summary_only` as a share of those of `summary_prefix`.

    None unless both were measured by one tokenizer, on as many samples.
    """
    before, after = tokens.get("summary_prefix"), tokens.get("summary_only")
    if not before or not after:
        return None
    if any(before[name] != after[name] for name in ("tokenizer", "samples")):
        return None
    return float(after["prompt"]["total"] / before["prompt"]["total"])


def lines(tokens: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each part of each dataset: dataset, part, samples, and `NUMBERS`."""
    made = []
    for dataset, one in tokens.items():
        for part, name in zip(("prompt", "completion"), PARTS[dataset], strict=True):
            numbers = (f"{one[part][number]:,.0f}" for number in NUMBERS)
            made.append((dataset, f"{part}: {name}", f"{one['samples']:,}", *numbers))
    return made


def token_table(tokens: Mapping[str, Any]) -> "Table":
    """Return what `measured` gave as a table for the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    names = ", ".join(dict.fromkeys(one["tokenizer"] for one in tokens.values()))
    table = Table(title=f"Tokens of a sample, by {names}", title_justify="left", box=SIMPLE_HEAD)
    left = share_left(tokens)
    if left is not None:
        table.caption = f"The prompts of summary_only are {left:.1%} of those of summary_prefix."
    # One column, and no lines between: numbers of seven digits fit into 80 characters.
    table.add_column("dataset, part", min_width=max(map(len, PARTS)))
    for heading in ("samples", *NUMBERS):
        table.add_column(heading, justify="right", no_wrap=True)
    for dataset, part, *numbers in lines(tokens):
        table.add_row(f"{dataset}\n{part}", *numbers)
    return table


def _tokenizer(name: str) -> Any:
    from hf_rlhf.models import load_tokenizer, resolve_model_path

    try:
        return load_tokenizer(resolve_model_path(name), None)
    except HfRlhfError:
        raise
    except Exception as error:
        raise ModelError(
            f"the tokenizer of {name!r} does not load: {error}. Give --tokenizer a Hub id, a "
            "folder or package://PACKAGE/DIR."
        ) from error


def _measure(store: Store, dataset: str, tokenizer: Any) -> dict[str, Any]:
    prompts, completions = array("Q"), array("Q")
    for length in lengths(tokenizer, _shown(store, dataset)):
        prompts.append(length.prompt)
        completions.append(length.completion)
    return {
        "samples": len(prompts),
        "prompt": distribution(prompts),
        "completion": distribution(completions),
    }


def distribution(counts: Sequence[int]) -> dict[str, float]:
    """Return `NUMBERS` of counts; empty for none. The 90th percentile is interpolated."""
    import numpy as np

    if not counts:
        return {}
    values = np.asarray(counts)
    return {
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        "p90": float(np.percentile(values, 90)),
        "max": int(values.max()),
        "total": int(values.sum()),
    }


def _shown(store: Store, dataset: str) -> Iterator[Pair]:
    import pyarrow.parquet as pq

    files = [store.folder / "datasets" / dataset / f"{split}.parquet" for split in SPLITS]
    with bars() as progress:
        total = sum(pq.read_metadata(file).num_rows for file in files)
        task = progress.add_task(f"tokens of {dataset}", total=total)
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=64):
                yield from (conversation(dataset, row) for row in batch.to_pylist())
                progress.advance(task, len(batch))

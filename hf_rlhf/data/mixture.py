"""`mixture`: several datasets in the shares that the run file sets.

`datasets.interleave_datasets` draws a source at random for every row and stops when the first
source is exhausted: shares hold only on average and depend on the seed. Here the weights determine
the rows of each source, and every stretch of the training rows has the same shares.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data.splits import prompt_hash
from hf_rlhf.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

_LEARNED = ("prompt", "completion", "chosen", "rejected", "messages", "text", "label", "margin")
"""Training columns, of which all sources must have the same."""
_RESPONSES = ("completion", "chosen", "rejected")


@dataclass
class MixedSource:
    """A source of a mixture."""

    label: str
    weight: float | None
    dataset: "DatasetDict"
    report: Mapping[str, Any]
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    size: Any = None
    """Size of each training row in the unit of the shares; numpy int64, shape (rows,)."""
    overlap: int = 0
    """How many training rows have a prompt that is held out in some source."""
    usable: Any = None
    """Indices of the training rows to choose from; numpy."""
    chosen: Any = None
    """Indices of the training rows that train, in order; a repeated row occurs again."""

    @property
    def train(self) -> "Dataset":
        """The training rows."""
        return self.dataset["train"]

    @cached_property
    def test(self) -> "Dataset":
        """The held-out rows, possibly empty."""
        return self.dataset["test"] if "test" in self.dataset else self.train.select([])

    @property
    def amount(self) -> int:
        """The chosen rows, or their tokens."""
        return int(self.size[self.chosen].sum())


LoadSources = Callable[[Sequence[Mapping[str, Any]]], list[MixedSource]]
"""Loads the entries of `sources`. Raises ConfigError with all problems."""


def mixture(
    sources: list[dict[str, Any]],
    *,
    tokenizer: Any,
    load_sources: LoadSources,
    by: Literal["rows", "tokens"] = "rows",
    repeat: bool = False,
    drop_overlap: bool = True,
    seed: int = 42,
) -> Loaded:
    """Load several datasets and mix their training rows by weight.

    Each source is an entry like `dataset` itself, with two more keys: `label` (by default the name)
    and `weight`. Weights are relative. With weights, the mixture is as large as its shares allow
    without repeating a row: the scarcest source is used whole, and rows of the others are drawn by
    `seed`. Without weights, every row of every source is used once.

    Args:
        sources: the datasets: `name`, `label`, `weight`, and the arguments of that adapter.
        by: the unit of the shares: `rows`, or `tokens` of whole rows (prompt and responses).
        repeat: repeat rows of smaller sources instead of dropping rows of larger ones. Only with
            weights.
        drop_overlap: drop training rows whose prompt is held out in any source. They are always
            counted.
        seed: for the choice and the order of rows.

    Returns:
        Split `train`; `test` with the held-out rows of all sources, and `test_LABEL` with the
        held-out rows of one source. Rows have the columns of all sources, null where a source lacks
        a column. The report has the weights and the realised shares.

    Raises:
        ConfigError: a source cannot be loaded.
        DataError: some sources have a weight and others none, or rows have different forms.
    """
    import numpy as np

    if len(sources) < 2:
        raise DataError(f"`sources` has {len(sources)} entries, expected at least two.")
    mixed = load_sources(sources)
    _check(mixed, repeat)
    _unify_json(mixed)
    _find_overlap(mixed, drop_overlap)
    for each in mixed:
        kwargs = each.chat_template_kwargs
        tokens = (_tokens(row, tokenizer, kwargs) for row in each.train) if by == "tokens" else ()
        each.size = np.array(list(tokens) or [1] * len(each.train), np.int64)
    shares = _choose(mixed, repeat, seed)
    return Loaded(_splits(mixed), _report(mixed, by, shares, drop_overlap))


def _unify_json(mixed: Sequence[MixedSource]) -> None:
    """Convert columns to JSON if they are JSON in another source, as turns with tool calls are."""
    from datasets import Json

    tables = [(each, name) for each in mixed for name in each.dataset]
    features = [each.dataset[split].features for each, split in tables]
    as_json = {name for types in features for name, kind in types.items() if kind == Json()}
    for (each, split), types in zip(tables, features, strict=True):
        for name in as_json & types.keys():
            if types[name] != Json():
                each.dataset[split] = each.dataset[split].cast_column(name, Json())


def _check(mixed: Sequence[MixedSource], repeat: bool) -> None:
    unweighted = [each.label for each in mixed if each.weight is None]
    if unweighted and len(unweighted) < len(mixed):
        raise DataError(
            f"`weight` is missing for {', '.join(unweighted)}, and other sources have one. Give "
            "one to each source, or to none: then every row of every source is used once."
        )
    if unweighted and repeat:
        raise DataError("`repeat` is set, but no source has a `weight`. Give one to each source.")
    first, *others = mixed
    for other in others:
        if _form(other.train) != _form(first.train):
            raise DataError(
                f"rows of different forms cannot be mixed: {first.label} has {_form(first.train)}; "
                f"{other.label} has {_form(other.train)}. Use adapters that return the same "
                "columns, and the same `format`."
            )


def _form(rows: "Dataset") -> str:
    """Return the columns to train on with their kinds: `prompt (text)`."""
    kinds = {"str": "text", "list": "messages", "bool": "true or false", "float": "number"}
    types = {name: type(value).__name__ for name, value in rows[0].items() if name in _LEARNED}
    return ", ".join(f"{name} ({kinds.get(types[name], types[name])})" for name in sorted(types))


def _find_overlap(mixed: Sequence[MixedSource], drop: bool) -> None:
    """Count the training rows whose prompt is held out in any source, and select the others."""
    import numpy as np

    held_out = np.concatenate([_prompts(each.test) for each in mixed])
    for each in mixed:
        shared = np.isin(_prompts(each.train), held_out)
        each.overlap = int(shared.sum())
        each.usable = np.flatnonzero(~shared) if drop else np.arange(len(shared))
        if not len(each.usable):
            raise DataError(
                f"{each.label}: the prompts of all {len(each.train)} training rows are held out. "
                "Bring other rows, or write `drop_overlap: false`."
            )


def _prompts(rows: "Dataset") -> Any:
    """Return a hash (numpy uint64) of each row's prompt, or of its `messages` but the last."""
    import numpy as np

    name = next((name for name in ("prompt", "messages", "text") if name in rows.column_names), "")
    values = rows[name] if name else ()
    texts = (value[:-1] if name == "messages" else value for value in values)
    return np.array([prompt_hash(text) for text in texts], np.uint64)


def _tokens(row: Mapping[str, Any], tokenizer: Any, kwargs: Mapping[str, Any]) -> int:
    """Return the number of tokens of a row: its prompt with each of its responses."""
    start = row.get("prompt") or row.get("messages") or row.get("text")
    responses = [row[name] for name in _RESPONSES if row.get(name)]
    texts = [start + each if start else each for each in responses] or [start]
    if isinstance(texts[0], str):
        return sum(map(len, tokenizer(texts)["input_ids"]))
    tools = json.loads(row["tools"]) if isinstance(row.get("tools"), str) else None
    texts = tokenizer.apply_chat_template(texts, tokenize=False, tools=tools, **kwargs)
    return sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))


def _choose(mixed: Sequence[MixedSource], repeat: bool, seed: int) -> list[float]:
    """Draw the training rows by `seed`; return the target share of each source."""
    import numpy as np

    available = [float(each.size[each.usable].sum()) for each in mixed]
    weights = [
        amount if each.weight is None else each.weight
        for each, amount in zip(mixed, available, strict=True)
    ]
    shares = [weight / sum(weights) for weight in weights]
    total = (max if repeat else min)(np.array(available) / shares)
    random = np.random.default_rng(seed)
    for each, amount, share in zip(mixed, available, shares, strict=True):
        rounds = max(1, int(np.ceil(total * share / amount - 1e-9)))
        order = np.concatenate([random.permutation(each.usable) for _ in range(rounds)])
        nearest = np.abs(np.cumsum(each.size[order]) - total * share).argmin()
        each.chosen = order[: int(nearest) + 1]
    return shares


def _splits(mixed: Sequence[MixedSource]) -> "DatasetDict":
    import numpy as np
    from datasets import DatasetDict, concatenate_datasets

    tables = [each.train for each in mixed] + [each.test for each in mixed]
    try:
        whole = concatenate_datasets(tables)
    except ValueError as error:
        raise DataError(
            f"a column has different types in two sources: {error} Rename it (`columns`), or leave "
            "it out (`keep`)."
        ) from error
    starts = np.cumsum([0, *map(len, tables)])
    train, test = starts[: len(mixed)], starts[len(mixed) : -1]
    splits = {
        "train": _spread(
            [start + each.chosen for start, each in zip(train, mixed, strict=True)],
            [each.size[each.chosen] for each in mixed],
        )
    }
    held_out = [start + np.arange(len(each.test)) for start, each in zip(test, mixed, strict=True)]
    splits["test"] = _spread(held_out, [np.ones(len(rows)) for rows in held_out])
    splits |= {
        f"test_{each.label}": rows for each, rows in zip(mixed, held_out, strict=True) if len(rows)
    }
    return DatasetDict({name: whole.select(rows) for name, rows in splits.items() if len(rows)})


def _spread(rows: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Return the rows of all sources, with each source spread evenly by its size."""
    import numpy as np

    ends = [np.cumsum(size) for size in sizes]
    middles = [(end - size / 2) / end[-1:] for end, size in zip(ends, sizes, strict=True)]
    return np.concatenate(rows)[np.argsort(np.concatenate(middles), kind="stable")]


def _report(
    mixed: Sequence[MixedSource], by: str, shares: Sequence[float], dropped_overlap: bool
) -> dict[str, Any]:
    import numpy as np

    rows = sum(len(each.chosen) for each in mixed)
    amount = sum(each.amount for each in mixed)
    mixture: dict[str, dict[str, Any]] = {}
    dropped: Counter[str] = Counter()
    for each, share in zip(mixed, shares, strict=True):
        used = len(np.unique(each.chosen))
        mixture[each.label] = {
            "weight": None if each.weight is None else round(share, 6),
            f"share_of_{by}": round(each.amount / amount, 6),
            "share_of_rows": round(len(each.chosen) / rows, 6),
            by: each.amount,
            "rows": len(each.chosen),
            "different_rows": used,
            "available_rows": len(each.usable),
            "held_out_rows": len(each.test),
        }
        dropped[f"{each.label}: prompt_is_held_out"] += each.overlap * dropped_overlap
        dropped[f"{each.label}: over_weight"] += len(each.usable) - used
        for reason, count in (each.report.get("dropped") or {}).items():
            dropped[f"{each.label}: {reason}"] += count
    return {
        "shares_by": by,
        "mixture": mixture,
        "train_rows_whose_prompt_is_held_out": sum(each.overlap for each in mixed),
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "sources": {each.label: dict(each.report) for each in mixed},
    }

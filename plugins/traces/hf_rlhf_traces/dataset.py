"""`traces`: the datasets that `hf-rlhf traces` builds, for a run."""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError, ModelError
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_traces.rows import DATASETS, FORMS, MADE_BY, Form, arrow_schema, conversation
from hf_rlhf_traces.store import MANIFEST, Store
from hf_rlhf_traces.tokens import Pair, lengths, rendered

if TYPE_CHECKING:
    from datasets import Dataset

_SPLITS = {"train": "train", "validation": "test"}
_LOOKED_AT = 20
_SHAPED = {"multiturn": ["messages"], "steps": ["answer"]}
"""Dataset that is no prompt and completion yet -> the columns that these take the place of."""


@dataclass(frozen=True)
class _Found:
    """Where rows are, and what is known of them."""

    name: str
    splits: Mapping[str, "Dataset"]
    commit: str | None = None
    sha256: str | None = None
    """Of the files, of a folder."""


def traces(
    path: str,
    *,
    tokenizer: Any,
    rejected_rows: Path | None = None,
    form: Form = "multiturn",
    max_tokens: int | None = None,
    max_train_rows: int | None = None,
    max_test_rows: int | None = None,
    revision: str | None = None,
) -> Loaded:
    """Load a dataset made of agent search traces by `hf-rlhf traces`.

    Each sample is a `prompt` and a `completion`, as messages: the completion is the reply to learn,
    in `multiturn` the last turn alone, since each turn before it is the reply of a sample of its
    own. The validation questions are the split `test`.

    Args:
        path: the folder that the verbs work in, its folder `datasets` or a copy of that, or the id
            of a dataset on the Hub that `hf-rlhf traces push` has pushed.
        tokenizer: is given by the run.
        rejected_rows: is given by the run: the file to which rows too long are written.
        form: which of the datasets; `summary_both` is `summary_prefix` and `summary_only`.
        max_tokens: longer samples, prompt and reply with the chat template, are left out.
        max_train_rows: at most so many; which, depends on their ids alone, and those of a smaller
            number are among those of a larger one.
        max_test_rows: the same of the validation split.
        revision: a branch, tag or commit of the Hub dataset.

    Returns:
        Splits `train` and `test` (if there are validation questions), with where each sample comes
        from: `id`, `trace`, `question`, `step`, `steps`.

    Raises:
        DataError: there is no such dataset, or its columns are others; all rows are too long.
        RunFolderError: it is not built yet, or what it was built from has changed.
        ModelError: the tokenizer has no chat template, or one that leaves out what was said.
    """
    from datasets import DatasetDict

    most = {"train": max_train_rows, "test": max_test_rows}
    _check(form, {"max_tokens": max_tokens, **{f"max_{n}_rows": one for n, one in most.items()}})
    found = _found(path, form, revision)
    made: dict[str, Dataset] = {}
    dropped: dict[str, int] = {}
    too_long: list[dict[str, Any]] = []
    special = 0
    for split, rows in found.splits.items():
        _check_columns(found.name, form, split, rows)
        name = _SPLITS[split]
        shaped = as_prompt_completion(rows, form)
        _check_template(found.name, shaped, form, tokenizer)
        special += _with_special_tokens(shaped, tokenizer)
        fitting, long = _short_enough(shaped, tokenizer, max_tokens)
        kept = _fewer(fitting, most[name])
        too_long += [{"where": f"{found.name} {form} ({split})", **one} for one in long]
        dropped["too_long"] = dropped.get("too_long", 0) + len(long)
        dropped["above_max_rows"] = dropped.get("above_max_rows", 0) + len(fitting) - len(kept)
        if len(kept):
            made[name] = kept
    if "train" not in made:
        raise DataError(
            f"{found.name}: no row of {form} is left to train on ({len(too_long)} are longer than "
            f"max_tokens: {max_tokens}). Raise `max_tokens`."
        )
    _write_rejected(rejected_rows, too_long)
    report = _report(found, form, made, dropped)
    if special:
        report["rows_with_special_tokens_in_text"] = special
    return Loaded(DatasetDict(made), report)


def _check(form: str, sizes: Mapping[str, int | None]) -> None:
    if form not in FORMS:
        close = difflib.get_close_matches(form, FORMS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(f"`form` is {form!r}, expected one of {', '.join(FORMS)}.{hint}")
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise DataError(f"`{name}` is {value}, expected at least 1.")


def _found(path: str, form: str, revision: str | None) -> _Found:
    """Return the rows of a form, those of one dataset behind those of another."""
    from datasets import concatenate_datasets

    here = Path(path).expanduser()
    parts = [
        _here(here, name, revision) or _on_the_hub(path, name, revision) for name in FORMS[form]
    ]
    if len(parts) == 1:
        return parts[0]
    splits = {
        split: concatenate_datasets([one.splits[split] for one in parts])
        for split in parts[0].splits
    }
    digests = " ".join(one.sha256 or "" for one in parts).strip()
    sha256 = hashlib.sha256(digests.encode()).hexdigest() if digests else None
    return _Found(path, splits, parts[0].commit, sha256)


def _here(path: Path, form: str, revision: str | None) -> _Found | None:
    """Return what is in a folder; None if there is none of that name."""
    from datasets import Dataset

    if not path.exists():
        return None
    if revision:
        raise DataError(f"{path}: `revision` is for a dataset on the Hub. Leave it out.")
    store = next((one for one in (path, path.parent) if (one / MANIFEST).exists()), None)
    if store is not None:
        Store.open(store).report(MADE_BY[form])
    folder = (path / "datasets" if store == path else path) / form
    files = {split: folder / f"{split}.parquet" for split in _SPLITS}
    if not files["train"].exists():
        there = [one for one in DATASETS if (folder.parent / one / "train.parquet").exists()]
        raise DataError(
            f"{path}: holds no dataset {form!r} ({files['train']} is not there). It has: "
            f"{', '.join(there) or 'none'}. {_hint(path, form)}"
        )
    try:
        splits = {
            split: Dataset.from_parquet(str(file))
            for split, file in files.items()
            if file.exists() and _rows_in(file)
        }
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be read: {error}. Build it anew.") from error
    return _Found(str(path), splits, sha256=_digest(files.values()))


def _digest(files: Iterable[Path]) -> str:
    """Return a digest of files: rows built otherwise are other data, as many as they may be."""
    digests = []
    for file in files:
        if file.exists():
            with file.open("rb") as opened:
                digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _rows_in(file: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(file).num_rows)


def _hint(path: Path, form: str) -> str:
    if (path / "train.parquet").exists():
        return f"Name the folder above: `path: {path.parent}`."
    return f"First: hf-rlhf traces {MADE_BY[form]} DIR, and then `path: DIR`."


def _on_the_hub(path: str, form: str, revision: str | None) -> _Found:
    from datasets import load_dataset

    from hf_rlhf.data import read_rows

    source = read_rows(path, revision=revision, subset=form)
    loaded = load_dataset(path, form, revision=source.commit or revision)
    return _Found(
        path, {split: loaded[split] for split in _SPLITS if split in loaded}, source.commit
    )


def _check_columns(name: str, form: str, split: str, rows: "Dataset") -> None:
    needed = arrow_schema(FORMS[form][0]).names
    if missing := [one for one in needed if one not in rows.column_names]:
        raise DataError(
            f"{name}: {form} ({split}) lacks the columns {', '.join(missing)}; it has "
            f"{', '.join(rows.column_names)}. Build it by hf-rlhf traces {MADE_BY[FORMS[form][0]]}."
        )


def as_prompt_completion(rows: "Dataset", form: str) -> "Dataset":
    """Return rows in columns `prompt` and `completion`, which those of summaries are already."""
    if form not in _SHAPED:
        return rows
    from datasets import Features

    others = [one for one in rows.column_names if one not in ("prompt", *_SHAPED[form])]
    turns = Features.from_arrow_schema(arrow_schema("summary_prefix"))
    both = {one: turns[one] for one in ("prompt", "completion")}
    features = Features({**{one: rows.features[one] for one in others}, **both})
    shape = partial(_reply_apart, form)
    return rows.map(shape, remove_columns=_SHAPED[form], features=features)


def _reply_apart(form: str, row: Mapping[str, Any]) -> dict[str, Any]:
    prompt, completion = conversation(form, row)
    return {"prompt": prompt, "completion": completion}


def _check_template(name: str, rows: "Dataset", form: str, tokenizer: Any) -> None:
    """Refuse a chat template that drops what was said: Qwen3's drops earlier turns' <think>."""
    if form != "multiturn":
        return
    for row in rows.select(range(min(len(rows), _LOOKED_AT))):
        turns = [*row["prompt"], *row["completion"]]
        text = rendered(tokenizer, turns)
        lost = [one["content"] for one in turns if one["content"].strip() not in text]
        if lost:
            raise ModelError(
                f"{name}: the tokenizer's chat template changes what was said in {row['id']}: it "
                f"shows {lost[0][:80]!r} otherwise, or not at all. A template that drops earlier "
                "reasoning knows it by its tag: build the dataset with another one, as in "
                "--format.think thought, or change the template."
            )


def _with_special_tokens(rows: "Dataset", tokenizer: Any) -> int:
    """Count rows whose text holds a special token: the model reads it as one, not as text."""
    import pyarrow.compute as pc

    special = "|".join(re.escape(one) for one in tokenizer.all_special_tokens if one)
    if not special:
        return 0
    columns = ["prompt", "completion"]
    count = 0
    # In Arrow, since every process does it, and rows as Python objects take ten times as long.
    for table in rows.select_columns(columns).with_format("arrow").iter(batch_size=256):
        hit: set[int] = set()
        for turns in (table[name].combine_chunks() for name in columns):
            content = pc.struct_field(pc.list_flatten(turns), "content")
            found = pc.match_substring_regex(content, special)
            hit.update(pc.list_parent_indices(turns).filter(found).to_pylist())
        count += len(hit)
    return count


def _short_enough(
    rows: "Dataset", tokenizer: Any, most: int | None
) -> tuple["Dataset", list[dict[str, Any]]]:
    """Return the rows that fit, and the others, as they are listed."""
    if most is None:
        return rows, []
    kept: list[int] = []
    long: list[dict[str, Any]] = []
    for place, length in enumerate(lengths(tokenizer, _pairs(rows))):
        if length.whole <= most:
            kept.append(place)
        else:
            values = {"id": rows[place]["id"], "tokens": length.whole}
            long.append({"row": place + 1, "reason": "too_long", "values": values})
    return (rows.select(kept) if long else rows), long


def _pairs(rows: "Dataset") -> Iterator[Pair]:
    columns = ["prompt", "completion"]
    return (conversation("summary_only", row) for row in rows.select_columns(columns))


def _fewer(rows: "Dataset", most: int | None) -> "Dataset":
    if most is None or len(rows) <= most:
        return rows
    ranked = sorted(range(len(rows)), key=_rank_of(rows["id"]))
    return rows.select(sorted(ranked[:most]))


def _rank_of(ids: Sequence[str]) -> Callable[[int], bytes]:
    ranks = [hashlib.blake2b(one.encode(), digest_size=8).digest() for one in ids]
    return ranks.__getitem__


def _write_rejected(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    if path is None:
        return
    if not rows:
        path.unlink(missing_ok=True)
        return
    atomic_write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _report(
    found: _Found, form: str, made: Mapping[str, "Dataset"], dropped: Mapping[str, int]
) -> dict[str, Any]:
    kept = sum(map(len, made.values()))
    return {
        "source": found.name,
        "commit": found.commit,
        "sha256": found.sha256,
        "form": form,
        "rows_read": sum(map(len, found.splits.values())),
        "kept": kept,
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "splits": {name: len(rows) for name, rows in made.items()},
        "held_out": "validation questions, parted from all others when the traces were read",
    }

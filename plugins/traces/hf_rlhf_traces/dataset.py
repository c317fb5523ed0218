"""Load the datasets of `hf-rlhf traces` for a run: `traces`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError, ModelError
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_traces.rows import (
    BUILT_BY,
    DATASETS,
    FORMS,
    Form,
    arrow_schema,
    command_of,
    conversation,
)
from hf_rlhf_traces.shards import shard_files, split_digest
from hf_rlhf_traces.store import MANIFEST, Store

if TYPE_CHECKING:
    from datasets import Dataset

BATCH = 64
"""Samples per tokenizer call, which the tokenizers library parallelises."""
_SPLITS = {"train": "train", "validation": "test"}
_TEMPLATE_SAMPLES = 20
"""Rows for comparing the chat template's output with their text."""
_RESHAPED = {"multiturn": ["messages"], "steps": ["answer"]}
"""Dataset without prompt and completion -> the columns that these replace."""
Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class _Source:
    """The rows of a dataset by split, with the identity of their version."""

    name: str
    splits: Mapping[str, "Dataset"]
    commit: str | None = None
    sha256: str | None = None
    """Digest of the files in a folder."""


def traces(
    path: str,
    *,
    tokenizer: Any,
    rejected_rows: Path | None = None,
    form: Form = "multiturn",
    max_tokens: Positive | None = None,
    max_train_rows: Positive | None = None,
    max_test_rows: Positive | None = None,
    revision: str | None = None,
) -> Loaded:
    """Load a dataset that `hf-rlhf traces` built from agent search traces.

    Each sample is a `prompt` and a `completion`, as messages: the completion is the reply to train
    on, in `multiturn` the last turn alone, since each earlier turn is the reply of another sample.
    The validation questions are the split `test`.

    Args:
        path: the folder that the verbs work in, its folder `datasets` or a copy of that, or the id
            of a dataset pushed by `hf-rlhf traces push`.
        tokenizer: from the run.
        rejected_rows: from the run: the file for rows that are too long.
        form: the dataset; `summary_both` is `summary_prefix` and `summary_only`.
        max_tokens: longer samples, prompt and reply with the chat template, are left out.
            max_train_rows: maximum number of rows, selected by id, so that a smaller selection is
            part of a larger one.
        max_test_rows: the same for the split `test`.
        revision: a branch, tag or commit of the Hub dataset.

    Returns:
        Splits `train` and `test` (if there are validation questions), with the origin of each
            sample: `id`, `trace`, `question`, `step`, `steps`.

    Raises:
        DataError: the dataset is missing, or lacks columns; all rows are too long.
        RunFolderError: it is not built yet, or its inputs have changed.
        ModelError: the tokenizer has no chat template, or one that drops text.
    """
    from datasets import DatasetDict

    max_rows = {"train": max_train_rows, "test": max_test_rows}
    source = _source(path, form, revision)
    splits: dict[str, Dataset] = {}
    too_long: list[dict[str, Any]] = []
    above, special = 0, 0
    for split, rows in source.splits.items():
        _check_columns(source.name, form, split, rows)
        shaped = as_prompt_completion(rows, form)
        if form == "multiturn":
            _check_template(source.name, shaped, tokenizer)
        special += _with_special_tokens(shaped, tokenizer)
        short, long = _short_enough(shaped, tokenizer, max_tokens)
        too_long += [{"where": f"{source.name} {form} ({split})", **row} for row in long]
        selected = _limited(short, max_rows[_SPLITS[split]])
        above += len(short) - len(selected)
        if len(selected):
            splits[_SPLITS[split]] = selected
    if "train" not in splits:
        raise DataError(
            f"{source.name}: no row of {form} is left to train on ({len(too_long)} are longer than "
            f"max_tokens: {max_tokens}). Raise `max_tokens`: `traces train` sets it from "
            "--max_length, `traces run` from --train.max_length."
        )
    _write_rejected(rejected_rows, too_long)
    dropped = {"too_long": len(too_long), "above_max_rows": above}
    report = {
        "source": source.name,
        "commit": source.commit,
        "sha256": source.sha256,
        "form": form,
        "rows_read": sum(map(len, source.splits.values())),
        "kept": sum(map(len, splits.values())),
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "splits": {name: len(rows) for name, rows in splits.items()},
        "held_out": "validation questions, separated from all others when the traces were read",
        **({"rows_with_special_tokens_in_text": special} if special else {}),
    }
    return Loaded(DatasetDict(splits), report)


def _source(path: str, form: str, revision: str | None) -> _Source:
    """Return the rows of a form: its datasets, concatenated."""
    from datasets import concatenate_datasets

    read = _in_folder if Path(path).expanduser().exists() else _on_the_hub
    first, *others = sources = [read(path, name, revision) for name in FORMS[form]]
    if not others:
        return first
    splits = {
        split: concatenate_datasets([source.splits[split] for source in sources])
        for split in first.splits
    }
    digests = " ".join(source.sha256 or "" for source in sources).strip()
    sha256 = hashlib.sha256(digests.encode()).hexdigest() if digests else None
    return _Source(path, splits, first.commit, sha256)


def _in_folder(name: str, form: str, revision: str | None) -> _Source:
    from datasets import Dataset

    path = Path(name).expanduser()
    if revision:
        raise DataError(f"{path}: `revision` is for a dataset on the Hub. Leave it out.")
    is_store = (path / MANIFEST).exists()
    if is_store or (path.parent / MANIFEST).exists():
        Store.open(path if is_store else path.parent).report(BUILT_BY[form])
    folder = (path / "datasets" if is_store else path) / form
    files = {split: [str(file) for file in shard_files(folder, split)] for split in _SPLITS}
    if not any(files.values()):
        others = [dataset for dataset in DATASETS if shard_files(folder.parent / dataset, "train")]
        cure = f"Build it with {command_of(form)}, and then `path: DIR`."
        if shard_files(path, "train"):
            cure = f"Name the folder above: `path: {path.parent}`."
        raise DataError(
            f"{path}: holds no dataset {form!r} ({folder} has no shards). It has: "
            f"{', '.join(others) or 'none'}. {cure}"
        )
    try:
        splits = {split: Dataset.from_parquet(paths) for split, paths in files.items() if paths}
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be read: {error}. Build it again.") from error
    return _Source(str(path), splits, sha256=split_digest(folder, *_SPLITS))


def _on_the_hub(path: str, form: str, revision: str | None) -> _Source:
    from datasets import load_dataset

    from hf_rlhf.data import read_rows

    commit = read_rows(path, revision=revision, subset=form).commit
    loaded = load_dataset(path, form, revision=commit or revision)
    return _Source(path, {split: loaded[split] for split in _SPLITS if split in loaded}, commit)


def _check_columns(name: str, form: str, split: str, rows: "Dataset") -> None:
    needed = arrow_schema(FORMS[form][0]).names
    if missing := [column for column in needed if column not in rows.column_names]:
        raise DataError(
            f"{name}: {form} ({split}) lacks the columns {', '.join(missing)}; it has "
            f"{', '.join(rows.column_names)}. Build it with {command_of(FORMS[form][0])}."
        )


def as_prompt_completion(rows: "Dataset", form: str) -> "Dataset":
    """Return rows with the columns `prompt` and `completion`, as in the summary datasets."""
    if form not in _RESHAPED:
        return rows
    from datasets import Features

    others = [column for column in rows.column_names if column not in ("prompt", *_RESHAPED[form])]
    turns = Features.from_arrow_schema(arrow_schema("summary_prefix"))
    both = {column: turns[column] for column in ("prompt", "completion")}
    features = Features({**{column: rows.features[column] for column in others}, **both})

    def split_reply(row: Mapping[str, Any]) -> dict[str, Any]:
        prompt, completion = conversation(form, row)
        return {"prompt": prompt, "completion": completion}

    return rows.map(split_reply, remove_columns=_RESHAPED[form], features=features)


def _check_template(name: str, rows: "Dataset", tokenizer: Any) -> None:
    """Refuse a chat template that drops text, such as Qwen3's for <think> in earlier turns."""
    for row in rows.select(range(min(len(rows), _TEMPLATE_SAMPLES))):
        turns = [*row["prompt"], *row["completion"]]
        text = rendered(tokenizer, turns)
        lost = [turn["content"] for turn in turns if turn["content"].strip() not in text]
        if lost:
            raise ModelError(
                f"{name}: the tokenizer's chat template changes or drops text of {row['id']}: "
                f"{lost[0][:80]!r}. A template that drops earlier reasoning finds it by its tag: "
                "build the dataset with `think: thought` in --format, or change the template."
            )


def _with_special_tokens(rows: "Dataset", tokenizer: Any) -> int:
    """Count rows with a special token in their text, which the model does not read as text."""
    special = re.compile(
        "|".join(map(re.escape, filter(None, tokenizer.all_special_tokens))) or "(?!)"
    )
    columns = rows.select_columns(["prompt", "completion"])
    return sum(
        any(special.search(turn["content"]) for turn in [*row["prompt"], *row["completion"]])
        for row in columns
    )


def _short_enough(
    rows: "Dataset", tokenizer: Any, most: int | None
) -> tuple["Dataset", list[dict[str, Any]]]:
    """Return the rows of at most `most` tokens, and a report of each longer row."""
    if most is None:
        return rows, []
    short: list[int] = []
    long: list[dict[str, Any]] = []
    for number, tokens in enumerate(_token_counts(rows, tokenizer)):
        if tokens <= most:
            short.append(number)
        else:
            values = {"id": rows[number]["id"], "tokens": tokens}
            long.append({"row": number + 1, "reason": "too_long", "values": values})
    return (rows.select(short) if long else rows), long


def _token_counts(rows: "Dataset", tokenizer: Any) -> Iterator[int]:
    """Yield the number of tokens of each row with the chat template."""
    for batch in rows.select_columns(["prompt", "completion"]).iter(batch_size=BATCH):
        pairs = zip(batch["prompt"], batch["completion"], strict=True)
        texts = [rendered(tokenizer, [*prompt, *completion]) for prompt, completion in pairs]
        # The template writes the special tokens.
        yield from map(len, tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages as text by the chat template.

    Raises ModelError if the tokenizer has no chat template or the template refuses them.
    """
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise ModelError(
            "The tokenizer has no chat template, and the rows are conversations. Use an "
            "instruction-tuned model, or save a chat_template with the tokenizer."
        )
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False))
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(turn["role"] for turn in messages)
        raise ModelError(
            f"The chat template refuses a conversation of {roles}: {error}. Use another model, or "
            "change its template."
        ) from error


def _limited(rows: "Dataset", most: int | None) -> "Dataset":
    """Return at most `most` rows, with the lowest hashes of ids."""
    if most is None or len(rows) <= most:
        return rows
    ranks = [hashlib.blake2b(row_id.encode(), digest_size=8).digest() for row_id in rows["id"]]
    return rows.select(sorted(sorted(range(len(rows)), key=ranks.__getitem__)[:most]))


def _write_rejected(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    if path is None:
        return
    if not rows:
        path.unlink(missing_ok=True)
        return
    atomic_write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

"""What the runs of study.yaml read beside their data: the token budget, and mismatched replies."""

import argparse
import json
import math
import random
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hf_rlhf.storage.files import atomic_write_json

BATCH = 16
FORMS = ("summary_prefix", "summary_only")


def budget(run: Path, store: Path, out: Path) -> None:
    """Write `max_steps` of each single strategy: the steps nearest to the tokens of a run."""
    tokens = tokens_of(json.loads((run / "run.json").read_text(encoding="utf-8")))
    for form in FORMS:
        steps = max(1, round(tokens / tokens_of_step(store / "datasets" / form)))
        atomic_write_json(out / f"{form}.json", {"max_steps": steps})


def tokens_of(record: Mapping[str, Any]) -> int:
    """Return the tokens that have passed through the model in all phases of a run."""
    total, last = 0, 0
    for entry in record["training"]["history"]:
        if "num_tokens" in entry:
            count = int(entry["num_tokens"])
            if count < last:  # a new phase counts from 0
                total += last
            last = count
    return total + last


def tokens_of_step(folder: Path) -> float:
    """Return the mean number of tokens of an optimizer step on a dataset."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(files("hf_rlhf_traces") / "tiny_base")
    rows = [row for file in sorted(folder.glob("train*.parquet")) for row in read(file)]
    texts = [
        tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
        for row in rows
    ]
    counted = tokenizer(texts, add_special_tokens=False).input_ids
    # The last step of an epoch has the samples that are left, which are fewer.
    return sum(map(len, counted)) / math.ceil(len(rows) / BATCH)


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a Parquet file."""
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows


def shuffle(store: Path, seed: int, out: Path) -> None:
    """Copy the datasets, each training prompt of `summary_prefix` with another sample's reply."""
    target = out / "datasets"
    shutil.copytree(store / "datasets", target)
    for file in sorted((target / "summary_prefix").glob("train*.parquet")):
        rows = pq.read_table(file)
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        # Each takes the reply of the next one in a shuffled circle, so that none keeps its own.
        replies = dict(zip(order, order[1:] + order[:1], strict=True))
        others = [replies[number] for number in range(len(rows))]
        for column in ("completion", "summary", "answer"):
            index, field = rows.column_names.index(column), rows.schema.field(column)
            rows = rows.set_column(index, field, rows[column].take(others))
        pq.write_table(rows, file)


def main() -> None:
    """Prepare one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["budget", "shuffle"])
    parser.add_argument("--run", type=Path, help="the run whose tokens are the budget")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.what == "budget":
        budget(chosen.run, chosen.store, chosen.out)
    else:
        shuffle(chosen.store, chosen.seed, chosen.out)


if __name__ == "__main__":
    main()

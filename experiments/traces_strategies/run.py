"""Run the experiment of PLAN.md: `python experiments/traces_strategies/run.py --out FOLDER`.

What is finished is not repeated, so the same command goes on where it stopped. Then `report.py
FOLDER` writes the results beside this file.
"""

import argparse
import math
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grid import (
    BASE,
    BATCH,
    CALIBRATION_SEED,
    CONDITIONS,
    SEEDS,
    SHUFFLED_SEED,
    TRACES,
    VALIDATION,
    progressive,
    single,
    tokens_of,
)

from hf_rlhf import RunRecord, load_record
from hf_rlhf_traces.command import command
from hf_rlhf_traces.shards import dataset_rows, shard_files

MEASURED = ("--num_samples", "130", "--max_new_tokens", "256", "--batch_size", "32", "--use_cpu")


def data(folder: Path, seed: int) -> Path:
    """Make the datasets of a seed with the verbs, as anybody would; return their store."""
    raw, store = folder / "traces.jsonl", folder / "store"
    if not raw.exists():
        verb("generate", "--out", raw, "--traces", TRACES, "--seed", seed)
    verb("read", raw, "--out", store, "--validation_ratio", VALIDATION)
    for name in ("multiturn", "steps", "summarize", "split_summary"):
        verb(name, store)
    return store


def verb(name: str, *arguments: Any) -> None:
    """Call `hf-rlhf traces NAME`."""
    if command([name, *map(str, arguments)]):
        raise SystemExit(f"hf-rlhf traces {name} failed")


def shuffled(store: Path, folder: Path, seed: int) -> Path:
    """Copy the datasets, each training prompt of `summary_prefix` with another sample's reply."""
    import pyarrow.parquet as pq

    target = folder / "shuffled" / "datasets"
    if not target.exists():
        shutil.copytree(store / "datasets", target)
        (file,) = shard_files(target / "summary_prefix", "train")
        rows = pq.read_table(file)
        order = list(range(len(rows)))
        random.Random(seed).shuffle(order)
        # Each takes the reply of the next one in a shuffled circle, so that none keeps its own.
        replies = {own: other for own, other in zip(order, order[1:] + order[:1], strict=True)}
        given = [replies[number] for number in range(len(rows))]
        for column in ("completion", "summary", "answer"):
            place = rows.column_names.index(column)
            rows = rows.set_column(place, rows.schema.field(column), rows[column].take(given))
        pq.write_table(rows, file)
    return target


def trained(config: Mapping[str, Any]) -> RunRecord:
    """Train a run that is not finished; return its record."""
    from hf_rlhf import train

    folder = Path(config["output_dir"])
    if not (folder / "merged" / "config.json").exists():
        started = time.perf_counter()
        train(config=dict(config))
        print(f"{folder}: {time.perf_counter() - started:.0f} s", flush=True)
    return load_record(folder)


def steps_for(tokens: int, config: Mapping[str, Any]) -> int:
    """Return the number of optimizer steps that comes nearest to so many tokens."""
    from importlib.resources import files

    from transformers import AutoTokenizer

    from hf_rlhf_traces.dataset import rendered

    tokenizer = AutoTokenizer.from_pretrained(files("hf_rlhf_traces") / "tiny_base")
    path = Path(config["dataset"]["path"])
    folder = path if path.name == "datasets" else path / "datasets"
    rows = list(dataset_rows(folder / config["dataset"]["form"], "train"))
    texts = [rendered(tokenizer, [*row["prompt"], *row["completion"]]) for row in rows]
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    # The last step of an epoch has the samples that are left, which are fewer.
    of_step = sum(map(len, ids)) / math.ceil(len(rows) / BATCH)
    return max(1, round(tokens / of_step))


def seed_done(out: Path, seed: int) -> None:
    """Do everything of a seed."""
    folder = out / f"seed{seed}"
    store = data(folder, seed)
    runs = folder / "runs"
    first = trained(progressive(store, runs / "progressive", seed))
    budget = tokens_of(first)
    models = {"base": BASE, "progressive": str(runs / "progressive")}
    for condition in CONDITIONS[1:]:
        if condition == "shuffled" and seed not in (SHUFFLED_SEED, CALIBRATION_SEED):
            continue
        source = shuffled(store, folder, seed) if condition == "shuffled" else store
        plan = single(condition, source, runs / condition, seed, 1)
        plan["max_steps"] = steps_for(budget, plan)
        trained(plan)
        models[condition] = str(runs / condition)
    named = [word for label, path in models.items() for word in ("--model", f"{label}={path}")]
    verb("eval", store, *named, *MEASURED)


def main(arguments: Sequence[str]) -> int:
    """Do all seeds, one after the other."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calibrate", action="store_true", help="the calibration seed only")
    parser.add_argument("--seed", type=int, action="append", help="only this one; repeatable")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = (CALIBRATION_SEED,) if chosen.calibrate else chosen.seed or SEEDS
    for seed in seeds:
        seed_done(chosen.out.resolve(), seed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

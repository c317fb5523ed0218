"""Run the experiment of PLAN.md: `python experiments/classic_learning/run.py --out FOLDER`.

A cell that is finished is not repeated, and one that another process holds is passed by, so the
command may be given again, and several times at once: each goes on with what is left. Then
`report.py FOLDER` writes the results beside this file.
"""

import argparse
import importlib
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grid import BASES, CALIBRATION_SEEDS, SEEDS, Cell, cells
from measure import measure

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage.files import atomic_write_json

RESULT = "measured.json"
HELD = 75
"""The exit status of a process that finds its cell in other hands."""
_STAGES = ("grpo", "iterative_dpo", "ppo", "sft")
SHARED = ("hf_rlhf.training.session", *(f"hf_rlhf_classic.{stage}" for stage in _STAGES))
"""What every cell imports: once, in the process that they are forked from."""
SMALL = {"--hidden": "32", "--layers": "2"}


def finished(cell: Cell, out: Path) -> bool:
    """Return whether a cell was trained and measured."""
    return (out / cell.name / RESULT).exists()


def ready(cell: Cell, out: Path) -> bool:
    """Return whether what a cell starts from, and is compared with, is there."""
    needed = {cell.start, cell.reference} - {cell.condition} - set(BASES)
    return all((out / f"{cell.world}-{one}-{cell.seed}" / RESULT).exists() for one in needed)


def train_one(cell: Cell, out: Path) -> None:
    """Train and measure a cell, in a process of its own, and write what is kept of it."""
    import torch

    from hf_rlhf import train

    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if cell.start == "small":
        make_small(out)
    started = time.perf_counter()
    record = train(config=cell.run_file(out))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weights = out / cell.name / "merged"
    reference = weights if cell.reference == cell.condition else cell.path(cell.reference, out)
    found = measure(cell.world, weights, reference)
    training = record["training"]
    kept = {
        "run": cell.run_file(out),
        "training_seconds": training["seconds"],
        "run_seconds": seconds,
        "steps": training["steps"],
        "peak_memory": training["peak_memory"],
        "rss_before_mb": before / 1024,
        "rss_peak_mb": peak / 1024,
        "report": training["report"],
        "curve": curve(training["history"]),
        "zero_variance_in_training": zero_variance(training["history"]),
        "trained": trained(out / cell.name),
        "git": record["environment"]["git"],
    }
    atomic_write_json(out / cell.name / RESULT, {**kept, **found})


def make_small(out: Path) -> None:
    """Build the smaller base as the shipped one was built, once."""
    from filelock import FileLock

    from hf_rlhf_classic.worlds.build_models import main as build

    folder = out / "bases" / "small"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not (folder / "tiny_base" / "tokenizer.json").exists():
            words = [word for pair in SMALL.items() for word in pair]
            build(["--out", str(folder), "--imitate-steps", "1", *words])


KEYS = ("reward", "rewards/reward/mean", "objective/scores", "rollouts/reward", "kl", "loss")


def curve(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the log of training, as far as it is plotted."""
    kept = [{key: entry[key] for key in ("step", *KEYS) if key in entry} for entry in history]
    return [entry for entry in kept if len(entry) > 1]


def zero_variance(history: list[dict[str, Any]]) -> float | None:
    """Return the share of a prompt's groups whose rewards were all equal, where groups are made."""
    names = ("frac_reward_zero_std", "rollouts/zero_std_groups")
    shares = [entry[name] for entry in history for name in names if name in entry]
    return sum(shares) / len(shares) if shares else None


def trained(folder: Path) -> dict[str, Any]:
    """Return how many numbers were trained, in which modules, and the bytes that they take."""
    from safetensors import safe_open

    adapter = folder / "adapter" / "adapter_model.safetensors"
    file = adapter if adapter.exists() else folder / "merged" / "model.safetensors"
    modules: dict[str, int] = {}
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a mapping
            parts = [part for part in name.split(".") if not part.startswith("lora_")]
            module = parts[-2]
            count = 1
            for size in weights.get_slice(name).get_shape():
                count *= size
            modules[module] = modules.get(module, 0) + count
    return {"modules": modules, "total": sum(modules.values()), "bytes": file.stat().st_size}


def attempt(cell: Cell, out: Path) -> str:
    """Run a cell in a process of its own; return "done", "held" or "failed"."""
    # Forked, so that the libraries are imported once; forkserver would not help, as the memory of
    # the children is measured from where they begin.
    process = multiprocessing.get_context("fork").Process(target=_child, args=(cell, out))
    process.start()
    process.join()
    return {0: "done", HELD: "held"}.get(process.exitcode or 0, "failed")


def _child(cell: Cell, out: Path) -> None:
    from hf_rlhf.storage.lock import claimed

    with ExitStack() as stack:
        try:
            stack.enter_context(claimed(out / "held" / cell.name))
        except RunFolderError:
            sys.exit(HELD)
        if not finished(cell, out):
            train_one(cell, out)


def work(todo: Sequence[Cell], out: Path) -> None:
    """Run every cell that is left, always the first that can be run and nobody holds."""
    failed: set[str] = set()
    held: set[str] = set()
    while True:
        left = [cell for cell in todo if not finished(cell, out) and cell.name not in failed]
        able = [cell for cell in left if ready(cell, out)]
        if not able:
            return
        cell = next((cell for cell in able if cell.name not in held), None)
        if cell is None:
            held.clear()
            time.sleep(5)
            continue
        outcome = attempt(cell, out)
        print(time.strftime("%H:%M:%S"), cell.name, outcome, flush=True)
        if outcome == "failed":
            failed.add(cell.name)
        elif outcome == "held":
            held.add(cell.name)
        else:
            held.clear()


def main() -> int:
    """Run the cells that are left; one that fails is left for the next time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the run folders")
    parser.add_argument("--only", default="", help="cells whose name holds one of these, by comma")
    parser.add_argument("--calibrate", action="store_true", help="with the calibration seed")
    chosen = parser.parse_args()
    for module in SHARED:
        importlib.import_module(module)
    seeds = CALIBRATION_SEEDS if chosen.calibrate else SEEDS
    words = chosen.only.split(",")
    todo = [cell for cell in cells(seeds) if any(word in cell.name for word in words)]
    work(todo, chosen.out)
    missing = [cell.name for cell in todo if not finished(cell, chosen.out)]
    print(json.dumps({"cells": len(todo), "missing": missing}))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

"""Pairs of an old and of a new distribution; what a reward model makes of both, and the report."""

import argparse
import json
import random
import sys
from pathlib import Path

from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_lab.command import rewards

sys.path.append(str(Path(__file__).parents[1] / "lab_rubric"))
from worlds import GENEROUS, _better_first, _labelled, _pair, person  # noqa: E402

PAIRS, TEST = 600, 400


def prepare(seed, out):
    """Write 600 training pairs for each condition, and 400 pairs of each kind with true labels."""
    rng, taste = random.Random(f"stale/{seed}"), person(seed)

    def pairs(count, host=None):
        return [_labelled(taste, _pair(taste, rng, host), rng) for _ in range(count)]

    def better_first(host=None):
        found = [_better_first(taste, _pair(taste, rng, host)) for _ in range(TEST)]
        return [{"prompt": taste.prompt, "chosen": a, "rejected": b} for a, b in found]

    old, tests = pairs(PAIRS), {"old": better_first(), "same": better_first()}
    tests["new"] = better_first(GENEROUS)
    half = PAIRS // 2
    trained = {
        "old": old,
        "fresh": old[:half] + pairs(half, GENEROUS),
        "more": old[:half] + pairs(half),
    }
    for name, rows in trained.items():
        write(out / name / "train.jsonl", rows)
        write(out / name / "test.jsonl", tests["old"][:20])
    for name, rows in tests.items():
        write(out / f"{name}.jsonl", rows)


def write(path, rows):
    """Write rows as JSON lines."""
    atomic_write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def measure(run, pairs, out):
    """Write the accuracy on both kinds, and whether the report warns of the new and of the same."""
    model = RewardModel(str(run / "merged"), batch_size=200)
    rows = {}
    for name in ("old", "new"):
        content = [json.loads(line) for line in (pairs / f"{name}.jsonl").read_text().splitlines()]
        prompts = [[{"role": "user", "content": row["prompt"]}] for row in content]
        chosen, rejected = (
            model(prompts, [[{"role": "assistant", "content": row[side]}] for row in content])
            for side in ("chosen", "rejected")
        )
        gains = [one - two for one, two in zip(chosen, rejected, strict=True)]
        rows[f"accuracy_{name}"] = [((gain > 0) - (gain < 0) + 1) / 2 for gain in gains]
    report = out.with_suffix(".validation")
    options = ["--data", str(pairs / "old.jsonl"), "--out", str(report)]
    others = [
        text for name in ("same", "new") for text in ("--other-data", str(pairs / f"{name}.jsonl"))
    ]
    rewards(["validate", str(run), *options, *others])
    checks = json.loads((report / "validation.json").read_text())["checks"]
    losses = {check["name"]: check["measures"].get("difference") for check in checks}
    values = {}
    for name in ("same", "new"):
        loss = losses[f"other data: {name}.jsonl"]
        values |= {f"loss_{name}": loss["mean"], f"warned_{name}": float(loss["high"] < 0)}
    atomic_write_json(out, {"rows": rows, "values": values})


def main():
    """Prepare the rows of a seed, or measure a model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("step", choices=["prepare", "measure"])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.step == "prepare":
        prepare(chosen.seed, chosen.out)
    else:
        measure(chosen.run, chosen.pairs, chosen.out)


if __name__ == "__main__":
    main()

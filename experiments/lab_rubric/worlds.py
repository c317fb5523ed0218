"""The rows of study.yaml, and what a saved reward model makes of held-out ones."""

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_worlds.taste_grades import grades_of
from hf_rlhf_worlds.tastes import ADJECTIVES, NOUNS, Host, Taste, draw, utility

PAIRS, TEST = 600, 400
TEMPERATURE = 0.5
"""Of the labels of pairs, in units of utility."""
NOISE = 0.3
"""How often a grade is off by one."""
GENEROUS = Host(adjective=0.6, noun=0.5, misheard=0.2, careless=0.2)
"""Who gives the orders of the other distribution: twice as many things, and more hated ones."""


def prepare(seed: int, out: Path) -> None:
    """Write the training rows of each condition; each folder has rows of its own form as `test`."""
    rng = random.Random(f"train/{seed}")
    taste = person(seed)
    pairs = [_pair(taste, rng) for _ in range(PAIRS)]
    preferences = [_labelled(taste, pair, rng) for pair in pairs]
    graded = [_graded(taste, order, rng) for pair in pairs for order in pair]
    grades = [row["grades"] for row in graded]
    rng.shuffle(grades)
    shuffled = [{**row, "grades": each} for row, each in zip(graded, grades, strict=True)]
    rows = {"bt": preferences, "rubric": graded, "half": graded[::2], "shuffled": shuffled}
    for name, train in rows.items():
        for split, part in (("train", train), ("test", train[:10])):
            text = "".join(json.dumps(row) + "\n" for row in part)
            atomic_write_text(out / name / f"{split}.jsonl", text)


def person(seed: int) -> Taste:
    """Return the person of a seed."""
    return draw(random.Random(f"person/{seed}"))


def _pair(taste: Taste, rng: random.Random, host: Host | None = None) -> tuple[str, str]:
    while True:
        first, second = (_order(taste, rng, host) for _ in range(2))
        if utility(taste, first) != utility(taste, second):
            return first, second


def _order(taste: Taste, rng: random.Random, host: Host | None) -> str:
    if host is None:
        return Host().order(taste, rng)
    return f"{host.order(taste, rng)} and{host.order(taste, rng)}"


def _labelled(taste: Taste, pair: tuple[str, str], rng: random.Random) -> dict[str, Any]:
    gain = utility(taste, pair[0]) - utility(taste, pair[1])
    first = rng.random() < (1 + math.tanh(gain / TEMPERATURE / 2)) / 2
    chosen, rejected = pair if first else pair[::-1]
    return {"prompt": taste.prompt, "chosen": chosen, "rejected": rejected}


def _graded(taste: Taste, order: str, rng: random.Random) -> dict[str, Any]:
    grades = {
        name: min(5, max(1, grade + (rng.choice((-1, 1)) if rng.random() < NOISE else 0)))
        for name, grade in grades_of(taste, order).items()
    }
    return {"prompt": taste.prompt, "completion": order, "grades": grades}


def measure(seed: int, weights: Path, out: Path) -> None:
    """Write what a reward model makes of held-out pairs, of another distribution, and of length."""
    rng = random.Random(f"test/{seed}")
    taste, reward = person(seed), RewardModel(str(weights), batch_size=200)
    sets = {
        "accuracy": [_better_first(taste, _pair(taste, rng)) for _ in range(TEST)],
        "accuracy_other": [_better_first(taste, _pair(taste, rng, GENEROUS)) for _ in range(TEST)],
        "paid_for_length": [_longer_first(taste, rng) for _ in range(TEST)],
    }
    rows = {}
    for name, pairs in sets.items():
        texts = [{"role": "assistant", "content": text} for pair in pairs for text in pair]
        prompts = [[{"role": "user", "content": taste.prompt}]] * len(texts)
        scores = [score or 0.0 for score in reward(prompts, [[text] for text in texts])]
        gains = [one - two for one, two in zip(scores[::2], scores[1::2], strict=True)]
        rows[name] = [((gain > 0) - (gain < 0) + 1) / 2 for gain in gains]
    atomic_write_json(out, {"rows": rows})


def _better_first(taste: Taste, pair: tuple[str, str]) -> tuple[str, str]:
    first, second = pair
    return pair if utility(taste, first) > utility(taste, second) else (second, first)


def _longer_first(taste: Taste, rng: random.Random) -> tuple[str, str]:
    """Return an order with a thing that is neither liked nor hated, and without it: worth more."""
    order = Host().order(taste, rng)
    adjectives = sorted({*ADJECTIVES} - {*taste.adjectives, taste.hated})
    nouns = sorted({*NOUNS} - {taste.noun, *order.split()})
    return f"{order} and {rng.choice(adjectives)} {rng.choice(nouns)}", order


def main() -> None:
    """Prepare the rows of a seed, or measure a model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("step", choices=["prepare", "measure"])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    if chosen.step == "prepare":
        prepare(chosen.seed, chosen.out)
    else:
        measure(chosen.seed, chosen.weights, chosen.out)


if __name__ == "__main__":
    main()

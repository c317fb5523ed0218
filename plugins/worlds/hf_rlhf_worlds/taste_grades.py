"""Orders of the world `tastes`, graded by five rule-based criteria: `graded_tastes`."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_worlds.sampling import Split, build_splits, generator
from hf_rlhf_worlds.tastes import Host, Taste, tastes_of, well_put


def grades_of(taste: Taste, order: str) -> dict[str, int]:
    """Return the grades of an order, 1 to 5 per criterion.

    Helpfulness: how many of the three liked words occur; honesty: whether the order is well put, so
    asks for things that exist; harmlessness: no hated word; conciseness: few words; specificity:
    the share of liked words.
    """
    words = [word for word in order.split() if word != "and"]
    liked = {*taste.adjectives, taste.noun}
    share = sum(word in liked for word in words) / max(len(words), 1)
    return {
        "helpfulness": 1 + round(4 * len(liked & set(words)) / 3),
        "honesty": 5 if well_put(order) else 2,
        "harmlessness": max(1, 5 - 2 * words.count(taste.hated)),
        "conciseness": max(1, 6 - max(1, (len(words) + 1) // 2)),
        "specificity": 1 + round(4 * share),
    }


def graded_tastes(
    train_rows: int = 2048, test_rows: int = 200, seed: int = 0, noise: float = 0.2
) -> Loaded:
    """Return orders with rubric grades, for `--plugin rubric_reward`.

    The columns are `prompt`, `taste` (the same), `completion` and `grades`. The orders come from
    `tastes` in the form `sft`. A grade of `train` is off by one with probability `noise`, as human
    grades are; the grades of `test` are exact.
    """
    if not 0 <= noise <= 1:
        raise DataError(f"graded_tastes: noise is {noise}. It must be from 0 to 1.")

    def rows(split: Split) -> Iterator[Mapping[str, Any]]:
        rng, host = generator(seed, "host", split), Host()
        errors = generator(seed, "grades", split)
        for taste in tastes_of(seed, split):
            order = host.order(taste, rng)
            grades = grades_of(taste, order)
            if split == "train":
                grades = {name: _graded(grade, noise, errors) for name, grade in grades.items()}
            shared = {"prompt": taste.prompt, "taste": taste.prompt}
            yield {**shared, "completion": order, "grades": grades}

    counts: dict[Split, int] = {"train": train_rows, "test": test_rows}
    return build_splits("graded_tastes", counts, rows, {"world": "tastes", "noise": noise})


def _graded(grade: int, noise: float, rng: random.Random) -> int:
    error = rng.choice((-1, 1)) if rng.random() < noise else 0
    return min(5, max(1, grade + error))

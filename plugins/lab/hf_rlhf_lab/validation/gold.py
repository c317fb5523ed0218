"""Responses with a gold grade, by which a reward is validated.

A group holds the responses to one prompt. A preference pair is a group of two: grade 1 for the
chosen response and 0 for the rejected one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.contracts import Score
from hf_rlhf.data import rows_digest
from hf_rlhf.errors import DataError

Array = NDArray[np.float64]
GRADED = ("prompt", "completion", "grade")
FEW, FEW_PROMPTS = 30, 10
"""Pairs, and prompts, below which every result is marked as one of few."""


@dataclass(frozen=True)
class Gold:
    """Graded responses; all sequences have one entry per response."""

    name: str
    prompts: Sequence[Any]
    completions: Sequence[Any]
    grades: Array
    """Shape (responses,): higher is better; comparable within a group."""
    groups: NDArray[np.int64]
    """Shape (responses,): the number of the preference pair, or of the prompt of graded rows."""
    labels: Sequence[Sequence[float]] = ()
    """The single labels behind each grade, where labels repeat."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Further columns, for rewards that need them."""
    digest: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows that were not used."""
    split: str = ""

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.completions)

    @cached_property
    def prompt_numbers(self) -> NDArray[np.int64]:
        """Shape (responses,): the number of the prompt, which several pairs may share."""
        return _numbers(self.prompts)

    @cached_property
    def clusters(self) -> NDArray[np.int64]:
        """Shape (responses,): what intervals resample: prompts or, of one prompt, its pairs."""
        one_prompt = len(np.unique(self.prompt_numbers)) == 1
        return self.groups if one_prompt else self.prompt_numbers

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Shape (pairs, 2): of each two responses of a group with different grades, the better
        and the worse one.
        """
        found = []
        order = np.argsort(self.groups, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(self.groups[order])) + 1):
            for at, first in enumerate(members):
                for second in members[at + 1 :]:
                    if self.grades[first] != self.grades[second]:
                        better = self.grades[first] > self.grades[second]
                        found.append((first, second) if better else (second, first))
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def best(self) -> NDArray[np.int64]:
        """The best response to each prompt, shape (prompts,); the first of equals."""
        prompts = self.prompt_numbers
        order = np.lexsort((np.arange(len(self)), -self.grades, prompts))
        first = np.concatenate([[True], np.diff(prompts[order]) > 0])
        return np.asarray(order[first])

    def take(self, rows: Sequence[int]) -> "Gold":
        """Return some of the responses, as gold data of their own."""
        index = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            prompts=[self.prompts[row] for row in index],
            completions=[self.completions[row] for row in index],
            grades=self.grades[index],
            groups=self.groups[index],
            labels=[self.labels[row] for row in index] if self.labels else (),
            columns={name: [values[row] for row in index] for name, values in self.columns.items()},
        )

    def sample(self, prompts: int | None, seed: int = 0) -> "Gold":
        """Return the responses to at most so many prompts, drawn at random, in their order."""
        numbers = np.unique(self.prompt_numbers)
        if prompts is None or len(numbers) <= prompts:
            return self
        drawn = np.random.default_rng(seed).choice(numbers, prompts, replace=False)
        return self.take(np.flatnonzero(np.isin(self.prompt_numbers, drawn)).tolist())

    @classmethod
    def of_rows(cls, name: str, rows: Any, dropped: Mapping[str, int] | None = None) -> "Gold":
        """Return the rows of a `datasets.Dataset` as gold data.

        Preferences have prompt, chosen and rejected; graded rows have prompt, completion and
        grade, a number or a list of labels. Other columns go to the reward.

        Raises DataError for rows that are neither.
        """
        names = set(rows.column_names)
        if {"prompt", *_PAIR} <= names:
            return cls.of_pairs(name, rows, dropped)
        if set(GRADED) <= names:
            return cls.of_grades(name, rows, dropped)
        raise DataError(
            f"{name}: its columns are {', '.join(rows.column_names)}. Validation needs prompt, "
            "chosen and rejected (`{name: preference, path: FILE}`), or prompt, completion and "
            "grade (`{name: graded, path: FILE}`)."
        )

    @classmethod
    def of_pairs(cls, name: str, rows: Any, dropped: Mapping[str, int] | None = None) -> "Gold":
        """Return a dataset with prompt, chosen and rejected as gold data.

        `rows` is a `datasets.Dataset`. Its other columns go to the reward, twice each.
        """
        prompts, completions, grades, groups = [], [], [], []
        for number, row in enumerate(rows):
            for text, grade in ((row["chosen"], 1.0), (row["rejected"], 0.0)):
                prompts.append(row["prompt"])
                completions.append(text)
                grades.append(grade)
                groups.append(number)
        others = [name for name in rows.column_names if name not in ("prompt", *_PAIR)]
        columns = {other: [value for value in rows[other] for _ in _PAIR] for other in others}
        return cls(
            name, prompts, completions, np.array(grades), np.array(groups, dtype=np.int64),
            columns=columns, digest=rows_digest(rows), dropped=dropped or {},
        )  # fmt: skip

    @classmethod
    def of_grades(cls, name: str, rows: Any, dropped: Mapping[str, int] | None = None) -> "Gold":
        """Return a dataset with prompt, completion and grade (a number, or a list of labels)."""
        labels = [
            tuple(map(float, grade)) if isinstance(grade, (list, tuple)) else (float(grade),)
            for grade in rows["grade"]
        ]
        prompts = list(rows["prompt"])
        others = [name for name in rows.column_names if name not in GRADED]
        return cls(
            name,
            prompts,
            list(rows["completion"]),
            np.array([float(np.mean(each)) for each in labels]),
            _numbers(prompts),
            labels=labels if any(len(each) > 1 for each in labels) else (),
            columns={other: list(rows[other]) for other in others},
            digest=rows_digest(rows),
            dropped=dropped or {},
        )


_PAIR = ("chosen", "rejected")


def _numbers(prompts: Sequence[Any]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(repr(prompt), len(numbers)) for prompt in prompts]
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True)
class Scored:
    """Gold data with a reward's score of each response."""

    gold: Gold
    scores: Array
    """Shape (responses,): NaN where the reward abstained."""
    seconds: float = 0.0

    @property
    def abstained(self) -> int:
        """How many responses have no score."""
        return int(np.isnan(self.scores).sum())

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """The pairs of which both responses have a score."""
        pairs = self.gold.pairs
        return pairs[~np.isnan(self.scores[pairs]).any(axis=1)]

    @cached_property
    def margins(self) -> Array:
        """Score of the better minus that of the worse response, shape (pairs,)."""
        return np.asarray(self.scores[self.pairs[:, 0]] - self.scores[self.pairs[:, 1]])

    @cached_property
    def clusters(self) -> list[str]:
        """The cluster of each pair."""
        return [str(self.gold.clusters[row]) for row in self.pairs[:, 0]]

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the scores, the unit of changes; 0 if there are none."""
        valid = self.scores[~np.isnan(self.scores)]
        return float(valid.std()) if len(valid) else 0.0

    @property
    def centre(self) -> float:
        """Mean of the scores; 0 if there are none."""
        valid = self.scores[~np.isnan(self.scores)]
        return float(valid.mean()) if len(valid) else 0.0


ScoreRows = Callable[[Sequence[Any], Sequence[Any], Mapping[str, Sequence[Any]]], Sequence[Score]]
"""Prompts, completions and columns -> a score or None for each."""


def chunks(count: int, size: int = 256) -> Iterator[slice]:
    """Yield the parts in which responses are scored."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def score_gold(gold: Gold, score: ScoreRows) -> Scored:
    """Return the gold data with the score of each response."""
    began = time.perf_counter()
    scores: list[Score] = []
    for part in chunks(len(gold)):
        columns = {name: values[part] for name, values in gold.columns.items()}
        scores += score(gold.prompts[part], gold.completions[part], columns)
    values = np.array([np.nan if value is None else value for value in scores], dtype=np.float64)
    return Scored(gold, values, time.perf_counter() - began)

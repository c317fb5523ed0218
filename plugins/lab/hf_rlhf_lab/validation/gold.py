"""Responses with a gold grade, for validating a reward.

A group holds the responses to a prompt. A preference pair is a group of two: grade 1 for the chosen
response and 0 for the rejected response.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.contracts import Score
from hf_rlhf.data import rows_digest
from hf_rlhf.errors import DataError
from hf_rlhf.evaluation import Interval
from hf_rlhf_lab.graded import ITEM

Array = NDArray[np.float64]
GRADED = ("prompt", "completion", "grade")
FEW, FEW_PROMPTS = 30, 10
"""Numbers of pairs and prompts below which every result is marked as small."""


@dataclass(frozen=True)
class Gold:
    """Graded responses; all sequences have an entry per response."""

    name: str
    prompts: Sequence[Any]
    completions: Sequence[Any]
    grades: Array
    """Shape (responses,): higher is better; comparable within a group."""
    groups: NDArray[np.int64]
    """Shape (responses,): the number of the preference pair, or of the prompt of graded rows."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Further columns, for rewards that need them."""
    digest: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of unused rows."""
    split: str = ""

    def __len__(self) -> int:
        """Return the number of responses."""
        return len(self.completions)

    @cached_property
    def prompt_numbers(self) -> NDArray[np.int64]:
        """Return shape (responses,): the index of the prompt, which several pairs may share."""
        return _numbers(self.prompts)

    @cached_property
    def clusters(self) -> NDArray[np.int64]:
        """Return shape (responses,): the unit of resampling, prompts or (of one prompt) pairs."""
        one_prompt = len(np.unique(self.prompt_numbers)) == 1
        return self.groups if one_prompt else self.prompt_numbers

    @cached_property
    def comparisons(self) -> NDArray[np.int64]:
        """Return shape (comparisons, 2): every two responses of a group."""
        order = np.argsort(self.groups, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(self.groups[order])) + 1)
        pairs = [pair for members in groups for pair in combinations(members, 2)]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Return shape (pairs, 2): the better and the worse of every two responses of a group with
        different grades.
        """
        margins = np.subtract(*self.grades[self.comparisons].T)
        ordered = np.where(margins[:, None] > 0, self.comparisons, self.comparisons[:, ::-1])
        return np.asarray(ordered[margins != 0])

    @cached_property
    def best(self) -> NDArray[np.int64]:
        """Return the best response of each cluster, shape (clusters,); the first of ties."""
        clusters = self.clusters
        order = np.lexsort((np.arange(len(self)), -self.grades, clusters))
        first = np.concatenate([[True], np.diff(clusters[order]) > 0])
        return np.asarray(order[first])

    def take(self, rows: Sequence[int]) -> "Gold":
        """Return some of the responses as gold data."""
        index = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            prompts=[self.prompts[row] for row in index],
            completions=[self.completions[row] for row in index],
            grades=self.grades[index],
            groups=self.groups[index],
            columns={name: [values[row] for row in index] for name, values in self.columns.items()},
        )

    def sample(self, prompts: int | None, seed: int = 0) -> "Gold":
        """Return the responses to randomly drawn prompts, at most `prompts`, in their order."""
        numbers = np.unique(self.prompt_numbers)
        if prompts is None or len(numbers) <= prompts:
            return self
        drawn = np.random.default_rng(seed).choice(numbers, prompts, replace=False)
        return self.take(np.flatnonzero(np.isin(self.prompt_numbers, drawn)).tolist())

    @classmethod
    def of_rows(cls, name: str, rows: Any, dropped: Mapping[str, int] | None = None) -> "Gold":
        """Return the rows of a `datasets.Dataset` as gold data.

        Preferences have prompt, chosen and rejected; graded rows have prompt, completion and grade,
        a number or a list of labels. Other columns go to the reward. Duplicate pairs or grades of a
        response are dropped and counted.

        Raises DataError for rows of another form.
        """
        dropped, digest = dict(dropped or {}), rows_digest(rows)
        first = _first_of_equals(rows)
        if len(first) < len(rows):
            dropped["identical to another row"] = len(rows) - len(first)
            rows = rows.select(first)
        columns = rows.to_dict()
        if {"prompt", *_PAIR} <= set(columns):
            chosen, rejected = (columns.pop(side) for side in _PAIR)
            columns = {
                key: [each for each in column for _ in _PAIR] for key, column in columns.items()
            }
            completions = [text for pair in zip(chosen, rejected, strict=True) for text in pair]
            prompts, means = columns.pop("prompt"), [1.0, 0.0] * len(chosen)
            groups = np.repeat(np.arange(len(chosen)), 2)
        elif set(GRADED) <= set(columns):
            prompts, completions, grades = (columns.pop(key) for key in GRADED)
            means = [float(np.mean(grade)) for grade in grades]  # of several labels
            groups = _numbers(prompts)
        else:
            raise DataError(
                f"{name}: its columns are {', '.join(columns)}. Validation needs prompt, chosen "
                "and rejected (`{name: preference, path: FILE}`), or prompt, completion and grade "
                "(`{name: graded, path: FILE}`)."
            )
        return cls(
            name,
            prompts,
            completions,
            np.array(means),
            groups,
            columns=columns,
            digest=digest,
            dropped=dropped,
        )


_PAIR = ("chosen", "rejected")


def _first_of_equals(rows: Any) -> list[int]:
    """Return the first row of each distinct prompt, texts and grade, ignoring white space."""
    names = [name for name in (*GRADED, *_PAIR, ITEM) if name in rows.column_names]
    first: dict[tuple[str, ...], int] = {}
    for number, row in enumerate(rows.select_columns(names)):
        first.setdefault(tuple(" ".join(str(row[name]).split()) for name in names), number)
    return list(first.values())


def _numbers(prompts: Sequence[Any]) -> NDArray[np.int64]:
    numbers: dict[str, int] = {}
    by_row = [numbers.setdefault(repr(prompt), len(numbers)) for prompt in prompts]
    return np.array(by_row, dtype=np.int64)


@dataclass(frozen=True)
class Scored:
    """Gold data with a reward's score of each response."""

    gold: Gold
    scores: Array
    """Shape (responses,): NaN where the reward abstained."""
    seconds: float = 0.0

    @cached_property
    def valid(self) -> NDArray[np.int64]:
        """Return whether each response has a score."""
        return np.flatnonzero(~np.isnan(self.scores))

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Return the pairs with scores for both responses."""
        pairs = self.gold.pairs
        return pairs[~np.isnan(self.scores[pairs]).any(axis=1)]

    @cached_property
    def margins(self) -> Array:
        """Return the better response's score minus the worse's, shape (pairs,)."""
        return np.asarray(self.scores[self.pairs[:, 0]] - self.scores[self.pairs[:, 1]])

    @cached_property
    def clusters(self) -> list[str]:
        """Return the cluster of each pair."""
        return [str(self.gold.clusters[row]) for row in self.pairs[:, 0]]

    @cached_property
    def spread(self) -> float:
        """Return the standard deviation of the scores, the unit of changes; 0 without scores."""
        return float(self.scores[self.valid].std()) if len(self.valid) else 0.0

    def mean_over_prompts(self, values: Array, rows: Sequence[int]) -> Interval | None:
        """Return the mean over prompts of a value per response; NaN is missing."""
        return Interval.of_mean(as_scores(values), [str(self.gold.clusters[row]) for row in rows])

    def changes(
        self, score: "ScoreRows", rows: Sequence[int], change: Callable[[Any], Any] | None = None
    ) -> Array:
        """Return the changes of some scores when scored again, in standard deviations.

        `change` is applied to each completion first.
        """
        gold = self.gold.take(rows)
        if change is not None:
            gold = replace(gold, completions=[change(each) for each in gold.completions])
        again = score_gold(gold, score).scores
        return np.asarray((again - self.scores[rows]) / self.spread)


ScoreRows = Callable[[Sequence[Any], Sequence[Any], Mapping[str, Sequence[Any]]], Sequence[Score]]
"""Prompts, completions and columns -> a score or None for each."""


def score_gold(gold: Gold, score: ScoreRows) -> Scored:
    """Return the gold data with the score of each response."""
    began = time.perf_counter()
    scores = score(gold.prompts, gold.completions, gold.columns)
    return Scored(gold, np.array(scores, dtype=np.float64), time.perf_counter() - began)


def as_scores(values: Array) -> list[Score]:
    """Return values as scores, None for NaN."""
    return [None if np.isnan(value) else float(value) for value in values]

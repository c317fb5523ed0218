"""Select pairs: the most confident of each stratum, or as many at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from hf_rlhf.errors import DataError, did_you_mean

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rank = Literal["absolute", "signed"]
MOST_STRATA = 100
"""Maximum number of distinct values of a stratum column; a column of texts has more."""


@dataclass(frozen=True)
class Choice:
    """The share of pairs to select, and the criterion."""

    keep: float = 0.5
    """Share per stratum."""
    rank: Rank = "absolute"
    """`absolute` selects a large |r_chosen - r_rejected|, even against the label; `signed` a large
    r_chosen - r_rejected."""
    strata: str | None = None
    """A column whose distribution of values stays the same in the selected pairs."""
    seed: int = 42
    """Seed of the random selection."""

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise DataError(f"`keep` is {self.keep}, expected a share above 0, and at most 1.")

    def confident(self, margins: Array, strata: Sequence[str]) -> Mask:
        """Return a mask of the most confident pairs, without pairs that lack a margin (NaN)."""
        return self._chosen(np.abs(margins) if self.rank == "absolute" else margins, strata)

    def random(self, margins: Array, strata: Sequence[str]) -> Mask:
        """Return a random mask with as many pairs per stratum, from the pairs with a margin."""
        drawn = np.random.default_rng(self.seed).random(len(margins))
        return self._chosen(np.where(np.isnan(margins), np.nan, drawn), strata)

    def _chosen(self, values: Array, strata: Sequence[str]) -> Mask:
        chosen = np.zeros(len(values), bool)
        names = np.array(strata)
        for name in np.unique(names):
            rows = np.flatnonzero((names == name) & ~np.isnan(values))
            count = max(1, round(self.keep * len(rows)))
            chosen[rows[np.argsort(-values[rows], kind="stable")[:count]]] = True
        return chosen

    def strata_of(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the stratum of each row. Raises DataError for an unsuitable column."""
        if self.strata is None:
            return [""] * len(rows)
        if any(self.strata not in row for row in rows):
            hint = did_you_mean(self.strata, rows[0])
            raise DataError(f"`strata: {self.strata}`: the pairs have no such column{hint}.")
        names = [str(row[self.strata]) for row in rows]
        if len(different := set(names)) > MOST_STRATA:
            raise DataError(
                f"`strata: {self.strata}` has {len(different):,} different values, expected at "
                f"most {MOST_STRATA}. Name a column of categories."
            )
        return names


@dataclass(frozen=True, kw_only=True)
class PairSettings(Choice):
    """The content of a file."""

    run: str | dict[str, Any]
    """A run file, its content, or a reward trainer (its default run file); its dataset has the
    pairs."""
    folds: Annotated[int, Ge(2)] = 5
    cycles: Annotated[int, Ge(1)] = 1
    """2 retrains the models on the pairs selected in the first cycle, and scores again. No model
    scores its own training pairs, but in the second cycle models that saw its fold selected
    them."""
    known_wrong: str | None = None
    """A column that is true for known wrong labels, for the report."""
    schema: int = 1

    @property
    def choice(self) -> dict[str, Any]:
        """Return the selection as arguments of the dataset `confident_pairs`."""
        return {each.name: getattr(self, each.name) for each in fields(Choice)}

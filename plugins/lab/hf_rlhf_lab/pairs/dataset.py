"""Load the pairs that reward models, not trained on them, score with confidence."""

from pathlib import Path
from typing import Literal

import numpy as np

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_lab.pairs.choice import Choice, Rank
from hf_rlhf_lab.pairs.folder import PairFolder


def confident_pairs(
    folder: str,
    *,
    choose: Literal["confident", "random", "all"] = "confident",
    keep: float = 0.5,
    rank: Rank = "absolute",
    strata: str | None = None,
    cycle: int | None = None,
    leave_out: int | None = None,
    seed: int = 42,
) -> Loaded:
    """Load pairs of a folder of `hf-rlhf data confident_pairs`, selected by their scores.

    Args:
        folder: the command's output folder (`--out`).
        choose: `confident` keeps the pairs with the most confident scores, `random` as many at
            random, `all` every pair.
        keep: the share of the training pairs to keep.
        rank: `absolute` keeps the largest |r_chosen - r_rejected|; `signed` the largest r_chosen -
            r_rejected, so that pairs ordered against their label go first.
        strata: a column; `keep` then holds for each of its values.
        cycle: the cycle of the scores; the last by default.
        leave_out: a fold to hold out instead of the test split; for the scoring models.
        seed: of the random selection.

    Returns:
        Splits `train`, with the selected pairs, and `test`, never filtered; and the report.

    Raises:
        DataError: no pairs, or a column or value that does not exist.
        RunFolderError: the pairs are not scored yet.
    """
    from datasets import Dataset, DatasetDict

    pairs = PairFolder(Path(folder))
    train, choice = pairs.rows("train"), Choice(keep, rank, strata, seed)
    test, folds = pairs.rows("test"), np.array(pairs.folds)
    chosen = scored = np.ones(len(train), bool)
    if choose != "all":
        margins = pairs.margins(pairs.last_cycle() if cycle is None else cycle)
        scored = ~np.isnan(margins)
        select = choice.confident if choose == "confident" else choice.random
        chosen = select(margins, choice.strata_of(train))
    others = folds != leave_out
    if leave_out is not None:
        if others.all():
            raise DataError(f"`leave_out` is {leave_out}; the folds are 0 to {max(pairs.folds)}.")
        test = [train[row] for row in np.flatnonzero(~others)]
    dropped = {
        "not chosen": int((others & scored & ~chosen).sum()),
        "without a score": int((others & ~scored).sum()),
    }
    splits = {"train": [train[row] for row in np.flatnonzero(others & chosen)], "test": test}
    report = {
        "pairs": len(train),
        "chosen by": choose,
        "dropped": {why: count for why, count in dropped.items() if count},
    }
    return Loaded(
        DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items() if rows}),
        report,
    )

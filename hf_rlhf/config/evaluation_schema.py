"""The sections of a run file on evaluation, as frozen values."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True)
class EvaluationSpec:
    """The `evaluation:` section: held-out rows are scored before and after training."""

    split: str = "test"
    rows: Annotated[int, Ge(1)] | None = 100
    """None: all rows of the split."""
    batch_size: Annotated[int, Ge(1)] = 32
    temperature: Annotated[float, Ge(0)] = 0.0
    """0 decodes greedily."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    max_new_tokens: Annotated[int, Ge(1)] | None = None
    """None: as many as in training."""
    samples: Annotated[int, Ge(0)] = 8
    """Number of completions kept for the card."""
    seed: int = 0
    completions_per_prompt: Annotated[int, Ge(1)] = 1


@dataclass(frozen=True)
class ValidationSpec:
    """The `validation:` section: the rows of evaluations during training (`eval_strategy`)."""

    split: str | None = None
    """None: the rows of `evaluation.split` after those of the results, so that weights are not
    chosen by the rows on which they are then measured."""
    rows: Annotated[int, Ge(1)] = 100


@dataclass(frozen=True)
class EarlyStoppingSpec:
    """The `early_stopping:` section: training ends when `metric_for_best_model` stops improving."""

    patience: Annotated[int, Ge(1)] = 3
    """After so many evaluations in a row without an improvement."""
    threshold: Annotated[float, Ge(0)] = 0.0
    """An improvement is more than this."""

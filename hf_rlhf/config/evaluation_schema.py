"""The sections of a run file on evaluation, as frozen values."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True)
class BenchmarkSpec:
    """One entry of `evaluation.benchmarks`, with the names that lm-eval gives its options."""

    name: str
    """A task, group or tag of lm-eval, or the YAML file of a task."""
    num_fewshot: Annotated[int, Ge(0)] | None = None
    """None: the task's own."""
    limit: Annotated[int, Ge(1)] | None = None
    """Only the first rows of each task."""
    apply_chat_template: bool = False
    confirm_run_unsafe_code: bool = False
    dataset_id: str | None = None
    """The benchmark's dataset on the Hub, for its leaderboard; else the one that the task reads."""
    task_id: str | None = None
    """Of that leaderboard, as in the dataset's `eval.yaml`; None: the result is on the card only.
    It gets the first metric, or `metric`."""
    metric: str | None = None


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
    benchmarks: list[BenchmarkSpec] = field(default_factory=list)
    """Measured before and after training (`hf-rlhf[benchmarks]`)."""


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


@dataclass(frozen=True)
class RewardValidationSpec:
    """The `reward_validation:` section: reports that the run's rewards must have."""

    report: str | list[str] = field(default_factory=list)
    """What `hf-rlhf rewards validate` wrote, its folder or validation.json: of the total, or one
    for each reward."""
    require: dict[str, float] = field(default_factory=dict)
    """Measure -> the least or the most that it may be, at least one; each report must meet all."""
    enforce: bool = True
    """False: the run begins although a requirement is not met, and its card says so."""

    @property
    def reports(self) -> list[str]:
        """The reports as a list."""
        return [self.report] if isinstance(self.report, str) else self.report

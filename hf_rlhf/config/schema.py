"""The model of a run file: every section and key, with its validation rules.

The fields of `RunSpec` and its sections are the only list of keys. `hf_rlhf.config.validation`
checks values with pydantic, and `RunFile.spec` collects the problems.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator

from hf_rlhf.config.yaml import KeyPath

SCHEMA = 1
RESERVED_LABELS = frozenset(
    {"total", "completion_tokens", "truncated", "turns", "tool_calls", "tool_failures"}
)
"""Names that a run uses for metrics other than its rewards."""
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def _check_label(label: str) -> str:
    if not _LABEL.fullmatch(label):
        rule = "Use letters, digits, `_` and `-`, and begin with a letter."
        raise ValueError(f"{label!r} is not a label. {rule}")
    if label in RESERVED_LABELS:
        raise ValueError(f"{label!r} is measured by every run. Pick another.")
    return label


def _check_interval(interval: tuple[float, float]) -> tuple[float, float]:
    if interval[0] >= interval[1]:
        raise ValueError(f"is {list(interval)}. Write `[low, high]`.")
    return interval


Label = Annotated[str, AfterValidator(_check_label)]


@dataclass(frozen=True, kw_only=True)
class ComponentSpec:
    """A component entry. Keys that are not fields here are its `arguments`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    """The position in the file, for messages."""
    path: KeyPath = ()


class DatasetSpec(ComponentSpec):
    """The `dataset:` section."""


@dataclass(frozen=True, kw_only=True)
class SourceSpec(DatasetSpec):
    """A dataset within an adapter like `mixture`."""

    label: Label
    weight: Annotated[float, Gt(0)] | None = None


@dataclass(frozen=True, kw_only=True)
class JudgeSpec(ComponentSpec):
    """An entry of `judges:`."""

    label: Label
    reads: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Transform:
    """`transform:` of a reward, applied to its score before `clip` and `weight`."""

    zscore: tuple[float, Annotated[float, Gt(0)]] | None = None
    """(mean, standard deviation): fixed, since a batch's own statistics would make a completion's
    reward depend on its batch."""
    sigmoid: Annotated[float, Gt(0)] | None = None
    """A temperature: 1 / (1 + exp(-score / temperature)), of the z-score where both are set."""

    def __post_init__(self) -> None:
        """Refuse a transform without a number."""
        if self.zscore is None and self.sigmoid is None:
            fix = "Write `sigmoid`, `{sigmoid: TEMPERATURE}` or `{zscore: [MEAN, STD]}`."
            raise ValueError(f"is empty. {fix}")

    def __call__(self, score: float) -> float:
        """Return the transformed score."""
        if self.zscore is not None:
            score = (score - self.zscore[0]) / self.zscore[1]
        if self.sigmoid is not None:
            # By tanh, since exp overflows.
            score = 0.5 + 0.5 * math.tanh(score / self.sigmoid / 2)
        return score


@dataclass(frozen=True, kw_only=True)
class RewardSpec(ComponentSpec):
    """An entry of `rewards:`."""

    label: Label
    weight: float = 1.0
    on_none: Literal["void", "skip"] = "void"
    transform: Literal["sigmoid"] | Transform | None = None
    """`sigmoid` alone has temperature 1."""
    clip: Annotated[tuple[float, float], AfterValidator(_check_interval)] | None = None
    judge: str | None = None
    reads: list[str] | None = None
    """Files that its code opens: a change of their content invalidates its reports."""


@dataclass(frozen=True, kw_only=True)
class GateSpec(ComponentSpec):
    """An entry of `gates:`. A gate passes if its score is at least `threshold`."""

    label: Label
    threshold: float = 0.5
    judge: str | None = None
    reads: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class CallbackSpec(ComponentSpec):
    """An entry of `callbacks:` or `tools:`."""

    label: str


@dataclass(frozen=True)
class BenchmarkSpec:
    """An entry of `evaluation.benchmarks`, with lm-eval's option names."""

    name: str
    """A task, group or tag of lm-eval, or the YAML file of a task."""
    num_fewshot: Annotated[int, Ge(0)] | None = None
    """None: the task's own."""
    limit: Annotated[int, Ge(1)] | None = None
    """Only the first rows of each task."""
    apply_chat_template: bool = False
    confirm_run_unsafe_code: bool = False
    dataset_id: str | None = None
    """The benchmark's dataset on the Hub, for its leaderboard; by default the task's."""
    task_id: str | None = None
    """The leaderboard's task, as in the dataset's `eval.yaml`; None: the result is only on the
    card. The leaderboard gets the first metric, or `metric`."""
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
    """None: the rows of `evaluation.split` after the rows of the results, so that weights are not
    selected on the rows that measure them."""
    rows: Annotated[int, Ge(1)] = 100


@dataclass(frozen=True)
class EarlyStoppingSpec:
    """The `early_stopping:` section: stop when `metric_for_best_model` no longer improves."""

    patience: Annotated[int, Ge(1)] = 3
    """Number of consecutive evaluations without an improvement before the stop."""
    threshold: Annotated[float, Ge(0)] = 0.0
    """An improvement must exceed this."""


@dataclass(frozen=True)
class RewardValidationSpec:
    """The `reward_validation:` section: reports that the run's rewards must have."""

    report: str | list[str] = field(default_factory=list)
    """The output of `hf-rlhf rewards validate`, a folder or validation.json: for the total, or one
    per reward."""
    require: dict[str, float] = field(default_factory=dict)
    """Measure -> minimum or maximum, at least one measure; each report must meet all."""
    enforce: bool = True
    """False: the run starts although a requirement is unmet, and its card states it."""

    @property
    def reports(self) -> list[str]:
        """The reports as a list."""
        return [self.report] if isinstance(self.report, str) else self.report


@dataclass(frozen=True)
class PublishSpec:
    """The `publish:` section. Without `repo_id` nothing is published."""

    repo_id: str | None = None
    private: bool | None = None
    """None: the default of the Hub or the organisation."""
    gated: Literal["auto", "manual"] | None = None
    base_model: str | None = None
    """The base's Hub id, if the run loads it from a folder."""
    push_base: bool = False
    """Push that folder to `base_model` first, if nothing is there."""
    merged: bool = True
    revision: str | None = None
    checkpoints: bool = False
    """Push each checkpoint during training to `step-STEP`: LoRA's adapter, or all weights."""


@dataclass(frozen=True)
class CardSpec:
    """The `card:` section: facts that only the author knows."""

    title: str | None = None
    intended_use: str | None = None
    known_notes: list[str] = field(default_factory=list)
    license: str | None = None
    """An identifier of the Hub; `other` with a name and a link for any other licence."""
    license_name: str | None = None
    license_link: str | None = None
    tags: list[str] = field(default_factory=list)
    language: str | list[str] | None = None
    sections: dict[str, str] = field(default_factory=dict)
    contact: str | None = None
    citation: str | None = None


@dataclass(frozen=True)
class MonitorSpec:
    """The `monitor:` section: warnings, and a stop, where a reward is exploited.

    A *measurement* summarises the completions of `every` optimizer steps. The section does not
    change what is trained.
    """

    gold: str | None = None
    """The label of a reward of weight 0 that is the better measure of quality."""
    every: Annotated[int, Ge(1)] = 5
    """Optimizer steps per measurement."""
    warmup: Annotated[int, Ge(2)] = 5
    """Number of first measurements as the reference of later measurements."""
    length_z: Annotated[float, Gt(0)] = 2.5
    """Warn at this many standard deviations of the warm-up's lengths above their mean."""
    window: Annotated[int, Ge(1)] = 3
    """How many measurements are averaged before they are compared with earlier ones."""
    stop_on: Literal["gold", "never"] = "gold"
    """gold: stop when gold falls while the trained reward rises."""


@dataclass(frozen=True)
class Limits:
    """Top-level keys that stop a run or refuse to start it. They do not change results."""

    stop_grace: Annotated[float, Ge(0)] = 25.0
    """Seconds after SIGTERM in which the run may continue to the next save. Slurm and Kubernetes
    kill after 30 s; the rest is for record and card."""
    max_dropped_share: Annotated[float, Ge(0), Le(1)] = 0.1
    """The largest share of the training rows that the trainer may drop."""
    max_cut_share: Annotated[float, Ge(0), Le(1)] = 0.5
    """The largest share of the training rows that the trainer may cut."""
    max_steps_without_reward: Annotated[int, Ge(0)] = 10
    """Consecutive steps without a reward for any completion after which the run stops; 0: never."""
    exactness: Literal["check", "off"] = "check"
    """Whether training starts only if rows have the same log-probabilities alone and in batches."""


@dataclass(frozen=True)
class TopLevel:
    """The other top-level keys."""

    expect_world_size: int | None = None
    """Refuse to start with another number of processes."""
    expect_distributed: str | None = None
    """Refuse to start with another type of launch (accelerate's names)."""
    adapter: str | None = None
    """The LoRA adapter that training continues: a folder or a Hub id."""
    adapter_revision: str | None = None
    pad_token: str | None = None
    """The padding token, which must be in the tokenizer's vocabulary."""
    eos_token: str | None = None
    """The token that ends a response, which must be in the tokenizer's vocabulary."""
    chat_template: str | None = None
    """A chat template in place of the tokenizer's own: a Jinja file, or the template itself."""
    init_lora_weights: str | bool = True
    """How peft initialises a new LoRA: true (its default), gaussian or orthogonal."""
    tokenizer: str | None = None
    """The tokenizer's folder or Hub id, if not the model's."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(TopLevel):
    """A run file with valid sections, whose names are not yet resolved to code."""

    plugin: str
    dataset: DatasetSpec
    judges: tuple[JudgeSpec, ...]
    rewards: tuple[RewardSpec, ...]
    gates: tuple[GateSpec, ...]
    callbacks: tuple[CallbackSpec, ...] = ()
    environment: ComponentSpec | None = None
    tools: tuple[CallbackSpec, ...] = ()
    evaluation: EvaluationSpec | None
    validation: ValidationSpec | None = None
    early_stopping: EarlyStoppingSpec | None = None
    reward_validation: RewardValidationSpec | None = None
    monitor: MonitorSpec | None = None
    publish: PublishSpec
    card: CardSpec
    limits: Limits
    settings: Mapping[str, Any]
    """Every other key: fields of the trainer's Config and of ModelConfig, unchecked."""
    default_folder: Path
    """The run folder where `output_dir` is not set."""
    plain: Mapping[str, Any]
    """The complete file with overrides applied, as JSON values."""
    name: str
    sha256: str
    """Hash of `plain` as JSON with sorted keys."""


def keys_of(cls: type) -> frozenset[str]:
    """Return the keys of a section; of a component entry, all keys but its arguments."""
    return frozenset(each.name for each in fields(cls)) - {"arguments", "where", "path"}

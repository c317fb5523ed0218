"""What a run file asks for, section by section, as frozen values.

`path` is where in the file an entry stands and `where` says so to a reader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from hf_rlhf.config.values import KeyPath


@dataclass(frozen=True)
class RewardSpec:
    """One entry of `rewards:`."""

    name: str
    label: str
    weight: float = 1.0
    on_none: Literal["void", "skip"] = "void"
    clip: tuple[float, float] | None = None
    judge: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    path: KeyPath = ()


@dataclass(frozen=True)
class GateSpec:
    """One entry of `gates:`. A gate passes when its score is at least `threshold`."""

    name: str
    label: str
    threshold: float = 0.5
    judge: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    path: KeyPath = ()


@dataclass(frozen=True)
class DatasetSpec:
    """The `dataset:` section."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    path: KeyPath = ()


@dataclass(frozen=True)
class JudgeSpec:
    """One entry of `judges:`, under its label."""

    name: str
    label: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    path: KeyPath = ()


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
    """How many completions are kept to be shown."""
    seed: int = 0
    completions_per_prompt: Annotated[int, Ge(1)] = 1


@dataclass(frozen=True)
class PublishSpec:
    """The `publish:` section. Without `repo_id` nothing is published."""

    repo_id: str | None = None
    private: bool | None = None
    """None: as the Hub or the organisation has it."""
    gated: Literal["auto", "manual"] | None = None
    layout: Literal["single", "separate"] = "single"
    """One repository with the adapter in `adapter/`, or the adapter in one of its own."""
    base_model: str | None = None
    """The base's Hub id, where the run itself loads it from a folder."""
    push_base: bool = False
    """Push that folder to `base_model` first, if nothing is there."""
    merged: bool = True
    revision: str | None = None
    checkpoints: bool = False
    """Push each checkpoint while training goes on, to the branch `step-STEP`: of a LoRA run the
    adapter, of full fine-tuning the weights."""


@dataclass(frozen=True)
class CardSpec:
    """The `card:` section: what only the author can know."""

    title: str | None = None
    intended_use: str | None = None
    known_notes: list[str] = field(default_factory=list)
    license: str | None = None
    """An identifier of the Hub; `other` with a name and a link for any other licence."""
    license_name: str | None = None
    license_link: str | None = None
    tags: list[str] = field(default_factory=list)
    language: str | list[str] | None = None


@dataclass(frozen=True)
class Limits:
    """Top-level keys for when a run stops or refuses to start. They change no result."""

    stop_grace: Annotated[float, Ge(0)] = 25.0
    """Seconds after SIGTERM in which the run may continue to the next save. Slurm and Kubernetes
    kill after 30; record and card need the rest."""
    max_dropped_share: Annotated[float, Ge(0), Le(1)] = 0.1
    """The largest share of the training rows that the trainer may drop."""
    max_cut_share: Annotated[float, Ge(0), Le(1)] = 0.5
    """The largest share of the training rows that the trainer may cut."""
    max_steps_without_reward: Annotated[int, Ge(0)] = 10
    """Consecutive steps without a reward for any completion after which the run stops; 0: never."""


@dataclass(frozen=True)
class TopLevel:
    """The other top-level keys."""

    expect_world_size: int | None = None
    """The number of processes without which the run refuses to start."""
    expect_distributed: str | None = None
    """The type of launch, as accelerate names it, without which the run refuses to start."""
    adapter: str | None = None
    """The LoRA adapter that training continues: a folder or a Hub id."""
    adapter_revision: str | None = None
    pad_token: str | None = None
    """The token that pads, for a tokenizer that has none or another: one that it knows."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(TopLevel):
    """A run file whose own sections are in order; names in it are not yet turned into code."""

    plugin: str
    dataset: DatasetSpec
    judges: tuple[JudgeSpec, ...]
    rewards: tuple[RewardSpec, ...]
    gates: tuple[GateSpec, ...]
    evaluation: EvaluationSpec | None
    publish: PublishSpec
    card: CardSpec
    limits: Limits
    settings: Mapping[str, Any]
    """Every other key: fields of the trainer's Config and of ModelConfig, not yet checked."""
    plain: Mapping[str, Any]
    """The whole file with overrides applied, as JSON-able values."""
    name: str
    sha256: str
    """Of `plain`, as JSON with sorted keys."""


def keys_of(cls: type) -> frozenset[str]:
    """Return the keys that a run file may have for `cls`: of a component, the run's own."""
    return frozenset(item.name for item in fields(cls)) - {"arguments", "where", "path"}

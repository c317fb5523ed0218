"""A run, resolved: every name turned into code, every argument bound, no weights loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.config.schema import RunSpec
from hf_rlhf.contracts import Trainer
from hf_rlhf.errors import BrokenPlugin
from hf_rlhf.rewards.composed import ComposedReward

if TYPE_CHECKING:
    from datasets import DatasetDict

    from hf_rlhf.environments.toolset import Toolset

AUTO_CLASSES = {
    "text-generation": "AutoModelForCausalLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}
"""Task -> the class of transformers that loads its models; trainers of other tasks set theirs."""
NUM_LABELS = {"text-classification": 1, "token-classification": 2}
"""Task -> the number of classes that the head of its models has."""


@dataclass(frozen=True)
class Run:
    """Everything a trainer plugin may build a trainer from."""

    spec: RunSpec
    trainer_class: type[Trainer]
    training: Any
    """The trainer's `Config`; its `output_dir` is the run folder's `checkpoints`."""
    model: Any
    """`trl.ModelConfig`."""
    model_path: str
    """What `from_pretrained` takes: a Hub id or a folder."""
    tokenizer: Any
    dataset: "DatasetDict"
    report: Mapping[str, Any]
    """The dataset adapter's counts of its rows."""
    reward: ComposedReward | None
    judges: Mapping[str, Any]
    folder: Path
    components: tuple[Mapping[str, Any], ...] = ()
    """kind, name, label, arguments, package, version and target of each plugin component."""
    callbacks: tuple[Any, ...] = field(default=(), compare=False)
    adapter: Path | None = None
    """The folder of the LoRA adapter that training continues."""
    toolset: "Toolset | None" = None
    """The tools for the model: the run file's `environment` and `tools`."""
    phase_list: tuple["Phase", ...] = ()
    """The phases that the run file lists, each of them a run in a folder of its own."""

    @property
    def phases(self) -> tuple["Phase", ...]:
        """The trainings in order; without phases, the run itself."""
        return self.phase_list or (Phase(1, self.spec.plugin, self),)

    @property
    def task(self) -> str:
        """The task of the trained model, as the Hub calls it."""
        return self.trainer_class.task

    @property
    def writes_text(self) -> bool:
        """Whether the model generates text, which rewards can score."""
        return self.task == "text-generation"

    @property
    def reads_tokens(self) -> bool:
        """Whether `tokenizer` is a tokenizer, not for example an audio feature extractor."""
        return self.trainer_class.auto_processor == "AutoTokenizer"

    @property
    def read_columns(self) -> frozenset[str]:
        """The columns that are trained on; a trainer that names none reads TRL's of `sft`."""
        return self.trainer_class.columns or frozenset({"prompt", "completion", "messages"})

    @property
    def num_labels(self) -> int | None:
        """How many classes the head of a classifier has; None for other models."""
        return NUM_LABELS.get(self.task)

    @property
    def has_score_head(self) -> bool:
        """Whether the model is a classifier, like a reward model."""
        return self.num_labels is not None

    @property
    def auto_class(self) -> str:
        """The name of the class of transformers that loads the model."""
        name = self.trainer_class.auto_class or AUTO_CLASSES.get(self.task)
        if name is None:
            raise BrokenPlugin(
                f"trainer {self.spec.plugin!r} has the task {self.task!r} and no `auto_class`. Set "
                "it to the name of the class of transformers that loads its model, such as "
                "AutoModelForSpeechSeq2Seq."
            )
        return name

    def model_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `from_pretrained` that the run asks for."""
        kwargs = dict(getattr(self.training, "model_init_kwargs", None) or {})
        kwargs |= {
            "revision": self.model.model_revision,
            "attn_implementation": self.model.attn_implementation,
            "dtype": self.model.dtype or "float32",  # as TRL reads null, transformers does not
            "trust_remote_code": getattr(self.training, "trust_remote_code", False),
        }
        return {key: value for key, value in kwargs.items() if value is not None}

    def tool_arguments(self) -> dict[str, Any]:
        """Return `tools` and `environment_factory` for a trainer of TRL, if the run has any."""
        return self.toolset.trainer_arguments() if self.toolset is not None else {}

    def with_callbacks(self, *callbacks: Any) -> "Run":
        """Return this run with further trainer callbacks."""
        return replace(self, callbacks=(*self.callbacks, *callbacks))


@dataclass(frozen=True)
class Phase:
    """A training of a run. Each begins with the weights of the previous phase."""

    number: int
    """From 1."""
    name: str
    run: Run
    data: str = ""
    """A short description of the phase's own data settings."""


def trains_by_rewards(trainer_class: type[Trainer], training: Any) -> bool | None:
    """Return whether training uses the rewards; it does not if the trainer never generates.

    None if unknown: a trainer with its own loop need not declare it.
    """
    if trainer_class.trains_by_rewards is not None:
        return trainer_class.trains_by_rewards
    if hasattr(training, "max_completion_length"):
        return True
    return False if trainer_class.columns or trainer_class.measures_held_out() else None

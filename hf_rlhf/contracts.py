"""Contracts of all kinds of plugins, for plugin authors; `hf_rlhf.testing` checks them.

A trainer derives from the base class `Trainer`; every other kind is a signature.

This file is longer than others, so that plugin authors find every contract here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from hf_rlhf.errors import BrokenPlugin, Problem
from hf_rlhf.positions import add_positions
from hf_rlhf.scores import LARGEST_SCORE as LARGEST_SCORE
from hf_rlhf.scores import Score as Score

if TYPE_CHECKING:
    from datasets import DatasetDict

    from hf_rlhf.evaluation.results import Evaluation
    from hf_rlhf.runs.run import Run


class Reward(Protocol):
    """A picklable dataclass instance with TRL's reward signature. It may also be `async`.

    Its parameters besides TRL's own are the dataset columns that it needs (required without a
    default). A field `judge` receives the run's judge. Optional methods: `advice() ->
    Iterable[str]` and `notes(run) -> Iterable[str]` return warnings for the screen and the card, on
    the reward and on the run's data. `problems(run) -> Iterable[Problem]` returns, before weights
    load, why it cannot score the completions. `held_model() -> HeldModel` returns the model that it
    loads in each process.
    """

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Sequence[Score]:
        """Return a finite number, or None to abstain, for each completion."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A dataset with a report on its rows; an adapter may also return just a `DatasetDict`.

    `report` is JSON for the record and the card: rows read, rows dropped by reason, texts cut, the
    actual mixture.
    """

    dataset: "DatasetDict"
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowCounts:
    """Rows of a split that a trainer's own rules (`max_length`) drop or cut."""

    rows: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of unused rows."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of rows that are used in part."""
    fix: str = ""
    """The suggested fix, with the numbers that help to decide."""

    @property
    def used(self) -> int:
        """Number of rows that are used, including cut ones."""
        return self.rows - sum(self.dropped.values())

    def __str__(self) -> str:
        """Return text: `13 of 915 rows kept (dropped: over max_length 128: 902)`."""
        losses = []
        for label, counts in (("dropped", self.dropped), ("cut", self.cut)):
            if reasons := [f"{reason}: {count:,}" for reason, count in counts.items() if count]:
                losses.append(f"{label}: {', '.join(reasons)}")
        lost = f" ({'; '.join(losses)})" if losses else ""
        return f"{self.used:,} of {self.rows:,} rows kept{lost}"


class Environment(Protocol):
    """TRL's environment: built once, reset for each completion, and called during generation.

    Its other public methods are tools, sync or async, with types and a Google-style docstring. The
    model sees the exception of a tool. The optional `get_reward() -> float` scores the finished
    completion; the reward `environment_reward` calls it. Further attributes are for rewards with a
    parameter `environments`.
    """

    def reset(self, **columns: Any) -> str | None:
        """Start with a dataset row; return None, or text to append to the prompt."""
        ...


DatasetAdapter = Callable[..., "DatasetDict | Loaded"]
"""Typed keyword arguments -> splits `train`, and `test` for held-out evaluation, in a TRL format (a
`prompt` column, and the columns that the rewards need). The run passes these parameters if the
adapter has them: `tokenizer`; `load_sources`, to combine other datasets (`hf_rlhf.data.mixture`);
and `rejected_rows: Path | None = None`. This is a file in the run folder for rejected rows, as JSON
lines of `where`, `row`, `reason` and `values`. It is None where nothing may be written: in a dry
run, on all processes but the first, and in a folder whose run has begun."""


@dataclass(frozen=True)
class Question:
    """A question to a judge about a text. All fields except `kind` and `label` are untrusted.

    `kind` decides the meaning of a score of 1.0:

    * `quality`: `candidate`, written for `context`, fully meets `criterion`.
    * `presence`: `candidate` has the property `criterion` (so 1.0 may be bad news).
    * `support`: the passages in `context` fully support the claim in `candidate`.
    """

    kind: Literal["quality", "presence", "support"]
    candidate: str
    criterion: str = ""
    context: str = ""
    label: str = "judge"
    """Failures are counted by label; a reward sets its own."""


@dataclass(frozen=True)
class Verdict:
    """A judge's answer to a `Question`."""

    score: Score
    """In [0, 1]; None if the judge failed, never a number."""
    reason: str = ""
    """The judge's explanation, or the cause of the failure."""


class Judge(Protocol):
    """Answers rubric questions. A picklable dataclass instance."""

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order; an unanswered question gets score None."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return this judge's facts for the card as JSON: model, revision, prompt hash."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return running totals since construction: calls, cached, failed, tokens, cost."""
        ...

    async def ping(self) -> str:
        """Send a minimal request; return a line that describes the server, or raise JudgeError."""
        ...


@dataclass(frozen=True)
class HackCase:
    """An honest response and a hack that must not earn a higher reward."""

    hack: str
    """The kind of hack, such as `hollow opener`; reports have a line per kind."""
    prompt: Any
    honest: Any
    """A completion, a text or messages."""
    hacked: Any
    """A completion in the same form."""
    columns: "Mapping[str, Any]" = field(default_factory=dict)
    """Columns of the row, for rewards that need them."""
    strict: bool = False
    """Whether no honest reward can prefer this hack: a higher reward is a finding."""
    searched: bool = False
    """Whether it is a candidate of a search: the hacks that earn most on a few honest responses are
    tested on the others."""


Attack = Callable[[Sequence[Mapping[str, Any]]], Iterable[HackCase]]
"""Rows of `prompt`, `completion` (an honest response) and columns -> hacks. An attack on a specific
kind of data may ignore the rows and bring its own cases."""


@dataclass(frozen=True)
class Method:
    """A training method, for the model card. `summary` is single-line Markdown."""

    name: str
    """As written in a sentence: `GRPO`, `reward modelling`."""
    tags: tuple[str, ...] = ()
    """Tags of the card on the Hub, such as `("trl", "grpo")`."""
    citations: tuple[str, ...] = ()
    """References, such as `Shao et al. 2024, DeepSeekMath, arXiv:2402.03300`."""
    summary: str = ""
    """One to three sentences on its specifics, such as the KL estimator in the loss."""
    step: str = "optimizer step"
    """What `state.global_step` counts, in the singular."""


class BatchForm(Protocol):
    """A trainer's own way to compute several rows together."""

    def difference(self, rows: Sequence[Sequence[int]]) -> float:
        """Return the largest difference between a value in this form and for the row alone.

        `rows` are tokens of training rows, from which suitable rows are derived.
        """

    def use(self) -> None:
        """Use this form from now on, since it is exact. Called on every process."""

    def leave(self, reason: str) -> None:
        """Do not use this form, and print why. Called on every process."""


@dataclass(frozen=True)
class HeldModel:
    """A model in memory beside the trained model: a reference, a reward model."""

    model: str | None = None
    """A folder, package://PACKAGE/FOLDER or Hub id; None is the run's own base."""
    dtype: str | None = None
    """Dtype of the weights. None: the run's dtype for its own base, the saved dtype for another
    model."""
    trained: bool = False
    """Whether it is trained in the same passes as the run's model, also in full or by LoRA."""
    adapter: bool = False
    """Whether it is only a LoRA adapter like the run's, on the same base."""
    in_host: bool = False
    """Whether its layers stay in host memory, except the layer being computed."""


PackedRows = Callable[[int, int], tuple[str, Mapping[str, Any]] | None]


@dataclass(frozen=True)
class StepShape:
    """The work of a trainer at once on one device, from which its memory is estimated."""

    rows: int | None = None
    """Rows of a training pass. None: `per_device_train_batch_size`, doubled for pairs."""
    tokens: int | None = None
    """Tokens of the longest row. None: its prompt with `max_completion_length`, or `max_length`."""
    head: Literal["fused", "logits", "none"] = "logits"
    """How a language model's loss is computed: by TRL's fused head, or with all logits at once."""
    sampled_rows: int | None = None
    """Completions that the model itself generates at once. None: all of a step."""
    accumulates: bool | None = None
    """Whether gradients of an earlier pass are held. None: with `gradient_accumulation_steps`."""
    dropout: bool = True
    """Whether the model's own dropout stays on, without a setting `disable_dropout`."""
    packed: "PackedRows | None" = None
    """Rows and their tokens -> the attention and the arguments of a model call that packs them into
    one row with their common prefix once; or None for separate rows."""
    held: Mapping[str, HeldModel] = field(default_factory=dict)
    """Role -> model, such as `reference`. The base with its adapter off is not held separately."""


class Trainer:
    """Base class of trainers for `--plugin`; every hook below has a default.

    Derive from it first and from a TRL trainer second: `class MyTrainer(Trainer, GRPOTrainer)`.
    Then only `Config` and `from_run` are required. A trainer with its own loop also defines `train`
    and `save_model`. Like `transformers.Trainer` it has `model`, `accelerator` and `state` (with
    `global_step`, `max_steps`, `epoch`, `log_history`), for the record, and calls `run.callbacks`.

    Never override a private method of TRL or transformers (with an underscore): a release may
    change it without notice. `hf_rlhf.testing.check_trainer` checks all of this.
    """

    Config: ClassVar[Any]
    """The settings: a dataclass, derived from `transformers.TrainingArguments` for its trainers."""
    default_run: ClassVar[str | None] = None
    """The run file in the package's `runs/` for `--plugin NAME` without `--run`."""
    method: ClassVar[Method | None] = None
    """Algorithm, citations and tags for the model card."""
    task: ClassVar[str] = "text-generation"
    """The Hub's task of the saved model. A `text-classification` model has one class, like a reward
    model, a `token-classification` model two, and its head is trained."""
    pipeline_tag: ClassVar[str | None] = None
    """The task on the card, if different: `text-to-speech` for a language model that speaks."""
    auto_class: ClassVar[str | None] = None
    """The transformers class that loads the model. Required for tasks other than `text-generation`,
    `text-classification` and `token-classification`."""
    auto_processor: ClassVar[str] = "AutoTokenizer"
    """The transformers class that loads `run.tokenizer`: `AutoFeatureExtractor` for an audio model.
    Tokens are counted and texts checked with `AutoTokenizer` only."""
    columns: ClassVar[frozenset[str]] = frozenset()
    """The required dataset columns."""
    trains_by_rewards: ClassVar[bool | None] = None
    """Whether training uses the rewards. None: it does if `Config` has `max_completion_length`."""
    refused_settings: ClassVar[Mapping[str, tuple[str, str] | None]] = {}
    """Settings of `Config` that have no effect or break training: (problem, fix). Like the settings
    in `hf_rlhf.config.settings`, they are refused at any value but the default; None accepts a
    setting that is refused there."""
    uses_validation_rows: ClassVar[bool] = False
    """Whether `from_run` passes `hf_rlhf.evaluation.validation_rows(run)` as `eval_dataset`, so
    that transformers can evaluate during training."""
    held_out_metrics: ClassVar[Mapping[str, str]] = {}
    """Metric of `held_out` -> its description for the model card."""
    unpublished: ClassVar[tuple[str, ...]] = ()
    """Name prefixes of trained parameters that are not saved with the model and not counted, such
    as a value head."""
    variant_of: ClassVar[str | None] = None
    """The trainer that this class builds on; record and card list both packages."""
    takes_tools: ClassVar[bool] = False
    """Whether its completions may call tools: `from_run` passes `run.tool_arguments()` to a TRL
    trainer. Other trainers refuse a run file with `environment` or `tools`."""
    phase_trainer: ClassVar[str | None] = None
    """The trainer of each entry of the run file's `phases`; each phase starts from the weights of
    the previous phase. The class's own `from_run` is then never called."""

    if TYPE_CHECKING:
        # transformers' Trainer has these; defaults here would hide them.
        model: Any
        accelerator: Any
        state: Any

        def train(self, resume_from_checkpoint: Any = None) -> Any:
            """Train to the end; return an object with `metrics`, like transformers."""

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            """Write the weights (for LoRA, the adapter) as safetensors into `output_dir`.

            The trained adapter goes into `output_dir` itself. Other adapters may go into subfolders
            of their names, which stay on disk and are not published; `ref` is deleted.
            """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the base trainer; its models then count positions from the attention mask."""
        super().__init__(*args, **kwargs)
        add_positions(vars(self).values())

    @classmethod
    def from_run(cls, run: "Run") -> Self:
        """Build the trainer from a resolved run. This loads the weights."""
        raise NotImplementedError(f"{cls.__name__} has no from_run(run)")

    @classmethod
    def row_template(cls, run: "Run") -> str | None:
        """Return the chat template for training; None for the tokenizer's own."""
        return None

    @classmethod
    def preflight(cls, run: "Run") -> "Iterable[Problem]":
        """Return the problems of this run that can be detected before weights load.

        `Problem.where` is a top-level key of the run file.
        """
        return ()

    @classmethod
    def advice(cls, run: "Run") -> Iterable[str]:
        """Return warnings that do not stop the run, for the screen and the card."""
        return ()

    @classmethod
    def learned_rewards(cls, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return rewards set by the trainer's settings, as entries of `rewards`.

        Each has a `label`. Reward validation covers them although they are not in the run file.
        `settings` are the run file's top-level keys.
        """
        return ()

    @classmethod
    def as_reward(cls, settings: Mapping[str, Any], model: str) -> Mapping[str, Any] | None:
        """Return the entry of `rewards` that scores with the saved model, or None."""
        return None

    @classmethod
    def tokens(cls, run: "Run") -> Mapping[str, int] | None:
        """Return the `tokens` of an epoch, and the tokens with a loss as `trained`, if known."""
        return None

    @classmethod
    def row_counts(cls, run: "Run") -> Mapping[str, RowCounts]:
        """Return the used, dropped and cut rows of `train` and of the held-out split.

        Recorded before training. A training split that loses more than the run file's
        `max_dropped_share` or `max_cut_share` stops the run.
        """
        return {}

    @classmethod
    def extra_disk_bytes(cls, run: "Run") -> int:
        """Return an upper bound on bytes written besides checkpoints and the saved model."""
        return 0

    @classmethod
    def step_shape(cls, run: "Run") -> StepShape:
        """Return the work at once and the held models, for the memory plan."""
        return StepShape()

    @classmethod
    def card_facts(cls, run: "Run") -> Mapping[str, str]:
        """Return lines of the card's training setup: title -> single-line Markdown.

        `hf_rlhf.formatting.settings_line` formats settings like the other lines. A line with an
        existing title (`KL`, `Loss`, `Rollouts`, ...) replaces the core's line.
        """
        return {}

    @classmethod
    def held_out(
        cls, run: "Run", model: Any, model_kwargs: Mapping[str, Any]
    ) -> "Evaluation | None":
        """Measure a saved model on the held-out rows, beside the composed rewards.

        All processes call it before and after training if the run has an `evaluation` section, and
        with `eval_strategy` during training on the validation rows (as the run's split). The result
        has a row of metrics for each dataset row, each a finite number or None, equal on every
        process: see `hf_rlhf.evaluation.measure_rows`. None: nothing to measure.

        Args:
            run: the resolved run.
            model: a folder or Hub id with full weights; during training, the model itself.
            model_kwargs: arguments for `from_pretrained`.
        """
        return None

    @classmethod
    def measures_held_out(cls) -> bool:
        """Return whether the class overrides `held_out`."""
        return cls.held_out.__func__ is not Trainer.held_out.__func__  # type: ignore[attr-defined]

    @staticmethod
    def trial_completions(row: Mapping[str, Any]) -> Sequence[str]:
        """Return plausible answers to a row, for `hf-rlhf check` to try the rewards on."""
        return ()

    @classmethod
    def planned_forms(cls, run: "Run") -> Mapping[str, str]:
        """Return the line of `hf-rlhf check` on `batch_forms`, before weights load."""
        return {}

    def batch_forms(self) -> "Mapping[str, BatchForm]":
        """Return its own ways to batch rows for the model, by name.

        Each is measured before the first step, and used only if exact.
        """
        return {}

    def report(self) -> Mapping[str, Any]:
        """Return further facts about the training, as JSON, for the record and the card.

        Each title maps to a list of rows or a mapping. The card embeds files of the run folder such
        as `samples/after-1.wav` or `samples/pitch.png`. Called after each save and at the end, on
        every process, also when training fails; so it must make no collective calls.
        """
        return {}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the card is rendered from the run's record, not from TRL's draft."""


def as_trainer(component: Any, name: str) -> type[Trainer]:
    """Return the component as a trainer class.

    Raises BrokenPlugin unless it is a class with a `Config` that derives from `Trainer` before any
    trainer of TRL or transformers.
    """
    qualified = getattr(component, "__qualname__", type(component).__qualname__)
    title = f"trainer {name!r} ({getattr(component, '__module__', '?')}:{qualified})"
    if not (isinstance(component, type) and issubclass(component, Trainer)):
        raise BrokenPlugin(
            f"{title} is not derived from hf_rlhf.Trainer. Write `class MyTrainer(Trainer, "
            "GRPOTrainer)`, for one of TRL's (docs/how-to/write-a-trainer.md)."
        )
    before = component.__mro__[: component.__mro__.index(Trainer)]
    if theirs := [c.__name__ for c in before if c.__module__.startswith(("trl.", "transformers."))]:
        raise BrokenPlugin(
            f"{title} derives from {theirs[0]} first, whose methods replace those of "
            f"hf_rlhf.Trainer. Write `class {component.__name__}(Trainer, {theirs[0]})`."
        )
    if not hasattr(component, "Config"):
        raise BrokenPlugin(f"{title} has no `Config`: its settings, such as TRL's GRPOConfig.")
    return component


Command = Callable[[Sequence[str]], int]
"""A verb of `hf-rlhf`: takes the remaining arguments, returns the exit status."""

"""The contract of each kind of plugin, for plugin authors; `hf_rlhf.testing` has the checks.

A trainer derives from the base class `Trainer`. Every other kind is a signature.

Longer than other files, since an author of a plugin reads every contract in one place.
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

    Its parameters besides TRL's own are the dataset columns that it needs (one without a
    default is required). A field `judge` receives the run's judge. It may have
    `advice() -> Iterable[str]`: warnings, printed and on the card; `notes(run) -> Iterable[str]`:
    the same, of what the run trains on; `problems(run) -> Iterable[Problem]`: why it cannot
    score the completions, found before weights load; and `held_model() -> HeldModel`: the model
    that it loads in each process.
    """

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Sequence[Score]:
        """Return one finite number, or None to abstain, per completion."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A dataset with a report on its rows; an adapter may also return a bare `DatasetDict`.

    `report` is JSON, copied to the record and the card: rows read, rows dropped by reason, texts
    cut, the actual mixture.
    """

    dataset: "DatasetDict"
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowCounts:
    """How many rows of a split a trainer's own rules, such as its `max_length`, drop or cut."""

    rows: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of rows that are not used."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of rows of which only a part is used."""
    fix: str = ""
    """The suggested fix, with the numbers that help to decide."""

    @property
    def used(self) -> int:
        """Number of rows that are used, including cut ones."""
        return self.rows - sum(self.dropped.values())

    def __str__(self) -> str:
        """Return the counts as text: `13 of 915 rows kept (dropped: over max_length 128: 902)`."""
        losses = []
        for label, counts in (("dropped", self.dropped), ("cut", self.cut)):
            if reasons := [f"{reason}: {count:,}" for reason, count in counts.items() if count]:
                losses.append(f"{label}: {', '.join(reasons)}")
        lost = f" ({'; '.join(losses)})" if losses else ""
        return f"{self.used:,} of {self.rows:,} rows kept{lost}"


class Environment(Protocol):
    """TRL's environment: built once, reset for each completion, and called while it is written.

    Its other public methods are tools, sync or async, with types and a Google-style docstring. A
    tool that raises tells the model so. `get_reward() -> float`, if there is one, scores the
    finished completion; the reward `environment_reward` calls it. Further attributes are for
    rewards with a parameter `environments`.
    """

    def reset(self, **columns: Any) -> str | None:
        """Begin with a row of the dataset; return None, or text that the prompt ends with."""
        ...


DatasetAdapter = Callable[..., "DatasetDict | Loaded"]
"""Typed keyword arguments -> splits in a TRL format (a `prompt` column, and the columns that the
rewards need). Splits: `train`, and `test` for held-out evaluation. The run passes, where the
adapter has the parameter, `tokenizer`; `load_sources`, for an adapter that combines other datasets
(`hf_rlhf.data.mixture`); and `rejected_rows: Path | None = None`, a file in the run folder for rows
that it rejects, as JSON lines of `where`, `row`, `reason` and `values`. It is None where nothing
may be written: in a dry run, on all processes but the first, in a folder whose run has begun."""


@dataclass(frozen=True)
class Question:
    """A question for a judge about one text. All fields except `kind` and `label` are untrusted.

    `kind` decides the meaning of a score of 1.0:

    * `quality`: `candidate`, written for `context`, fully meets `criterion`.
    * `presence`: what `criterion` describes is present in `candidate` (so 1.0 may be bad news).
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
    """A judge's answer to one `Question`."""

    score: Score
    """In [0, 1], or None when the judge failed: a failure is never a number."""
    reason: str = ""
    """The judge's explanation, or the cause of the failure."""


class Judge(Protocol):
    """Answers rubric questions. A picklable dataclass instance."""

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order; a question that cannot be answered gets score None."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return what the card shows of this judge, as JSON: model, revision, prompt hash."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return running totals since construction: calls, cached, failed, tokens, cost."""
        ...

    async def ping(self) -> str:
        """Send a minimal request; return a line that describes the server, or raise JudgeError."""
        ...


@dataclass(frozen=True)
class HackCase:
    """An honest response and a hack: a response that a reward must not pay more."""

    hack: str
    """The kind of hack, such as `hollow opener`; a report has one line for each kind."""
    prompt: Any
    honest: Any
    """A completion, a text or messages."""
    hacked: Any
    """A completion of the same form."""
    columns: "Mapping[str, Any]" = field(default_factory=dict)
    """Of the row, for rewards that need them."""
    strict: bool = False
    """Made so that no honest reward pays this hack more: one that earns more is a finding."""
    searched: bool = False
    """One of many: those that earn most on a few honest responses are tested on the others."""


Attack = Callable[[Sequence[Mapping[str, Any]]], Iterable[HackCase]]
"""Rows of `prompt`, `completion` (an honest response) and columns -> hacks of them. An attack on
one kind of data may bring cases of its own and leave the rows aside."""


@dataclass(frozen=True)
class Method:
    """A training method, for the model card. `summary` is Markdown on one line."""

    name: str
    """As written in a sentence: `GRPO`, `reward modelling`."""
    tags: tuple[str, ...] = ()
    """Tags of the card on the Hub, such as `("trl", "grpo")`."""
    citations: tuple[str, ...] = ()
    """One reference each: `Shao et al. 2024, DeepSeekMath, arXiv:2402.03300`."""
    summary: str = ""
    """One to three sentences on what distinguishes it, such as the KL estimator in the loss."""
    step: str = "optimizer step"
    """What `state.global_step` counts, in the singular."""


class BatchForm(Protocol):
    """A form of a trainer's own in which several rows are computed together."""

    def difference(self, rows: Sequence[Sequence[int]]) -> float:
        """Return the largest difference of a value in this form from that of the row alone.

        `rows` are tokens of training rows, from which it makes rows that the form is for.
        """

    def use(self) -> None:
        """Compute in this form from now on: it is exact. Called on every process."""

    def leave(self, reason: str) -> None:
        """Compute as without this form, and say why. Called on every process."""


@dataclass(frozen=True)
class HeldModel:
    """A model that is kept beside the one that is trained: a reference, a reward model."""

    model: str | None = None
    """A folder, package://PACKAGE/FOLDER or Hub id; None is the run's own base."""
    dtype: str | None = None
    """Of its weights. None: the run's for its own base, as it was saved for another."""
    trained: bool = False
    """Whether it learns in the same passes as the run's model, in full or by a LoRA like it."""
    adapter: bool = False
    """Whether it is only a LoRA like the run's, on the same base."""
    in_host: bool = False
    """Whether its layers are in the host's memory, except the one that computes."""


PackedRows = Callable[[int, int], tuple[str, Mapping[str, Any]] | None]


@dataclass(frozen=True)
class StepShape:
    """What a trainer computes at once on one device, from which its memory is counted."""

    rows: int | None = None
    """Of a forward and backward pass. None: `per_device_train_batch_size`, or twice for pairs."""
    tokens: int | None = None
    """Of the longest row. None: its prompt with `max_completion_length`, or `max_length`."""
    head: Literal["fused", "logits", "none"] = "logits"
    """How a language model's loss is computed: by TRL's fused head, or with all logits at once."""
    sampled_rows: int | None = None
    """Completions that are written at once by the model itself. None: as many as in a step."""
    accumulates: bool | None = None
    """Whether gradients of an earlier pass are there. None: with `gradient_accumulation_steps`."""
    dropout: bool = True
    """Whether the model's own dropout is kept, without a setting `disable_dropout`."""
    packed: "PackedRows | None" = None
    """From rows and their tokens: the attention and the arguments of a model's call in which they
    are one row, where what they have in common stands once; or None, for rows that stay apart."""
    held: Mapping[str, HeldModel] = field(default_factory=dict)
    """Role -> model, such as `reference`. One that is the base with its adapter off is not held."""


class Trainer:
    """Base class of trainers, which `--plugin` selects; every hook below has a default.

    Derive from it first and from a TRL trainer second: `class MyTrainer(Trainer, GRPOTrainer)`.
    Then only `Config` and `from_run` are required. A trainer with its own loop defines also `train`
    and `save_model`; its instances have, as those of `transformers.Trainer`, `model`, `accelerator`
    and `state` (with `global_step`, `max_steps`, `epoch`, `log_history`), for the record, and call
    `run.callbacks`.

    Never override a method of TRL or transformers whose name begins with an underscore: a release
    may change it without notice. `hf_rlhf.testing.check_trainer` checks all of this.
    """

    Config: ClassVar[Any]
    """The settings: a dataclass, of `transformers.TrainingArguments` for trainers built on it."""
    default_run: ClassVar[str | None] = None
    """The run file in the package's `runs/` that `--plugin NAME` alone selects."""
    method: ClassVar[Method | None] = None
    """Algorithm, citations and tags for the model card."""
    task: ClassVar[str] = "text-generation"
    """The task of the saved model, in the Hub's words. A `text-classification` model has one class,
    as a reward model has, a `token-classification` model two, and its head is trained."""
    pipeline_tag: ClassVar[str | None] = None
    """The task on the card, if it is another: `text-to-speech` for a language model that speaks."""
    auto_class: ClassVar[str | None] = None
    """The class of transformers that loads the model. Required for a task other than
    `text-generation`, `text-classification` and `token-classification`."""
    auto_processor: ClassVar[str] = "AutoTokenizer"
    """The class of transformers that loads `run.tokenizer`: `AutoFeatureExtractor` for a model of
    sound. With another than `AutoTokenizer` no tokens are counted, and no texts checked."""
    columns: ClassVar[frozenset[str]] = frozenset()
    """The dataset columns without which it cannot train."""
    trains_by_rewards: ClassVar[bool | None] = None
    """Whether training uses the rewards. None: it does if `Config` has `max_completion_length`."""
    refused_settings: ClassVar[Mapping[str, tuple[str, str] | None]] = {}
    """Settings of `Config` that have no effect or break training: (problem, fix). They are refused
    at any value but the default, as those in `hf_rlhf.config.settings` are. None accepts one of
    these."""
    uses_validation_rows: ClassVar[bool] = False
    """Whether `from_run` passes `hf_rlhf.evaluation.validation_rows(run)` as `eval_dataset`, so
    that transformers can evaluate during training."""
    held_out_metrics: ClassVar[Mapping[str, str]] = {}
    """Metric of `held_out` -> what it measures, for the model card."""
    unpublished: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of parameters that are trained but are not part of the saved model,
    such as a value head's; they are not counted."""
    variant_of: ClassVar[str | None] = None
    """The name of the trainer that this one builds on; record and card name both packages."""
    takes_tools: ClassVar[bool] = False
    """Whether its completions may call tools: `from_run` passes `run.tool_arguments()` to a trainer
    of TRL. A run file with `environment` or `tools` is refused by others."""
    phase_trainer: ClassVar[str | None] = None
    """The name of the trainer that runs each entry of the run file's `phases`; each starts from
    the weights of the one before. The class's own `from_run` is then never called."""

    if TYPE_CHECKING:
        # transformers' Trainer has these; defaults here would hide them.
        model: Any
        accelerator: Any
        state: Any

        def train(self, resume_from_checkpoint: Any = None) -> Any:
            """Train to the end; return an object with `metrics`, as transformers does."""

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            """Write the weights (for LoRA, the adapter) as safetensors into `output_dir`.

            Of several adapters, the trained one goes into `output_dir` itself. Others may go into
            folders with their names, which stay on disk and are not published; `ref` is deleted.
            """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the base trainer, then let its models count positions from the attention mask."""
        super().__init__(*args, **kwargs)
        add_positions(vars(self).values())

    @classmethod
    def from_run(cls, run: "Run") -> Self:
        """Build the trainer from a resolved run; this is where the weights are loaded."""
        raise NotImplementedError(f"{cls.__name__} has no from_run(run)")

    @classmethod
    def row_template(cls, run: "Run") -> str | None:
        """Return the chat template that rows are trained with; None for the tokenizer's own."""
        return None

    @classmethod
    def preflight(cls, run: "Run") -> "Iterable[Problem]":
        """Return the problems of this run that can be found before any weights load.

        `Problem.where` is a top-level key of the run file.
        """
        return ()

    @classmethod
    def advice(cls, run: "Run") -> Iterable[str]:
        """Return warnings that do not stop the run: printed when it begins, and on the card."""
        return ()

    @classmethod
    def learned_rewards(cls, settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the rewards that settings of the trainer name, as entries of `rewards`.

        Each has a `label`. By them the rewards can be validated, which the run file lacks.
        `settings` are the run file's top-level keys.
        """
        return ()

    @classmethod
    def as_reward(cls, settings: Mapping[str, Any], model: str) -> Mapping[str, Any] | None:
        """Return the entry of `rewards` that scores by the saved model; None: there is none."""
        return None

    @classmethod
    def tokens(cls, run: "Run") -> Mapping[str, int] | None:
        """Return `tokens` of the rows in an epoch and `trained`, those with a loss, if known."""
        return None

    @classmethod
    def row_counts(cls, run: "Run") -> Mapping[str, RowCounts]:
        """Return how many rows of `train` and of the held-out split are kept, dropped and cut.

        Recorded before training. A training split that loses more than the run file's
        `max_dropped_share` or `max_cut_share` stops the run.
        """
        return {}

    @classmethod
    def extra_disk_bytes(cls, run: "Run") -> int:
        """Return an upper bound on what it writes besides checkpoints and the saved model."""
        return 0

    @classmethod
    def step_shape(cls, run: "Run") -> StepShape:
        """Return what is computed at once, and the models held, for the plan of the memory."""
        return StepShape()

    @classmethod
    def card_facts(cls, run: "Run") -> Mapping[str, str]:
        """Return lines of the card's training setup, by title, as Markdown on one line.

        `hf_rlhf.formatting.settings_line` formats settings like the other lines. A line with a
        title that the card already has (`KL`, `Loss`, `Rollouts`, ...) replaces that one.
        """
        return {}

    @classmethod
    def held_out(
        cls, run: "Run", model: Any, model_kwargs: Mapping[str, Any]
    ) -> "Evaluation | None":
        """Measure a saved model on the held-out rows, apart from the composed rewards.

        All processes call it before training and after it, if the run has an `evaluation` section,
        and during it on the validation rows (as those of the run's split) with `eval_strategy`.
        The result has one row of the same metrics per row of the dataset, each a finite number or
        None, equal on every process: `hf_rlhf.evaluation.measure_rows` does that. It is None if
        there is nothing to measure.

        Args:
            run: the resolved run.
            model: a folder or Hub id with full weights; during training, the model itself.
            model_kwargs: arguments for `from_pretrained`.
        """
        return None

    @classmethod
    def measures_held_out(cls) -> bool:
        """Return whether the class has a `held_out` of its own."""
        return cls.held_out.__func__ is not Trainer.held_out.__func__  # type: ignore[attr-defined]

    @staticmethod
    def trial_completions(row: Mapping[str, Any]) -> Sequence[str]:
        """Return plausible answers to a row, on which `hf-rlhf check` tries the rewards."""
        return ()

    @classmethod
    def planned_forms(cls, run: "Run") -> Mapping[str, str]:
        """Return what `hf-rlhf check` says of `batch_forms`, before weights load."""
        return {}

    def batch_forms(self) -> "Mapping[str, BatchForm]":
        """Return forms of its own in which it gives rows to the model, by what they are called.

        Each is measured before the first step, and used only if it is exact.
        """
        return {}

    def report(self) -> Mapping[str, Any]:
        """Return further facts about the training, as JSON, for the record and the card.

        Under each title a list of rows or one mapping. A value such as `samples/after-1.wav` or
        `samples/pitch.png`, a file in the run folder, is played or shown by the card. Called after
        each save and at the end, on every process, also when training fails; so it makes no
        collective calls.
        """
        return {}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the card of a run is rendered from its record, not from TRL's draft."""


def as_trainer(component: Any, name: str) -> type[Trainer]:
    """Return the component as a trainer class.

    Raises BrokenPlugin for anything that is not a class with a `Config`, derived from `Trainer`
    before any trainer of TRL or transformers.
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

"""What each kind of plugin is: a signature, never a base class.

Nothing here is inherited from. A component fits when it has the shape below, and
`hf_rlhf.testing` checks that it does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from datasets import DatasetDict

Score = float | None
"""A reward for one completion. None abstains: no claim is made, which is not the same as 0."""


class Reward(Protocol):
    """A picklable dataclass instance with TRL's reward signature. It may also be `async`.

    The parameters that it names, beside TRL's own, are the dataset columns that it needs
    (one without a default is required). A field called `judge` is given the run's judge. It may
    have `advice() -> Iterable[str]`: what may spoil training by it; shown, and on the card.
    """

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> Sequence[Score]:
        """Return one finite number, or None to abstain, per completion."""
        ...


@dataclass(frozen=True)
class Loaded:
    """What a dataset adapter returns when it has something to report about its rows.

    An adapter may return a bare `DatasetDict` instead. `report` is JSON and goes to the record
    and the card as it is: rows read, rows dropped by reason, texts cut, the realised mix.
    """

    dataset: "DatasetDict"
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowCounts:
    """How many rows of a split a trainer's own rules, such as its `max_length`, drop or cut."""

    rows: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows of which nothing is used."""
    cut: Mapping[str, int] = field(default_factory=dict)
    """Reason -> rows of which only a part is used."""
    fix: str = ""
    """The suggested fix, with the numbers that help to decide."""

    @property
    def kept(self) -> int:
        """How many rows are used, cut ones included."""
        return self.rows - sum(self.dropped.values())

    def __str__(self) -> str:
        """Return the counts in words: `13 of 915 rows kept (dropped: over max_length 128: 902)`."""
        parts = [
            f"{what} {_listed(reasons)}"
            for what, reasons in (("dropped:", self.dropped), ("cut:", self.cut))
            if any(reasons.values())
        ]
        lost = f" ({'; '.join(parts)})" if parts else ""
        return f"{self.kept:,} of {self.rows:,} rows kept{lost}"


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in reasons.items() if count)


DatasetAdapter = Callable[..., "DatasetDict | Loaded"]
"""Typed keyword arguments -> splits in a TRL format (a `prompt` column, and the columns that the
rewards need). Splits: `train`, and `test` for held-out evaluation. Two parameters are given by
the run: `tokenizer`, and `rejected_rows: Path | None = None`, a file in the run folder to which the
adapter writes the rows that it leaves out, as JSON lines of `where`, `row`, `reason` and `values`.
It is None where nothing may be written: in a dry run, on all processes but the first, and in a
folder whose run has begun."""

Task = Literal["text-generation", "text-classification"]
"""What a trained model is for; a reward model classifies, into one class."""


@dataclass(frozen=True)
class Question:
    """One thing to ask a judge about one text. Every field but `kind` and `label` is untrusted.

    `kind` says what a score of 1.0 means:

    * `quality`: `candidate`, written for `context`, fully meets `criterion`.
    * `presence`: what `criterion` describes is present in `candidate` (so 1.0 may be bad news).
    * `support`: the passages in `context` fully support the claim in `candidate`.
    """

    kind: Literal["quality", "presence", "support"]
    candidate: str
    criterion: str = ""
    context: str = ""
    label: str = "judge"
    """Under which failure rates are counted; the reward that asks names itself here."""


@dataclass(frozen=True)
class Verdict:
    """A judge's answer to one `Question`."""

    score: Score
    """In [0, 1], or None when the judge failed: a failure is never a number."""
    reason: str = ""
    """The judge's explanation, or the cause of the failure."""


class Judge(Protocol):
    """Who answers rubric questions. A picklable dataclass instance."""

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order; a question that cannot be answered gets score None."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return what the card says of this judge, as JSON: model, revision, prompt hash."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return running totals since construction: calls, cached, failed, tokens, cost."""
        ...

    async def ping(self) -> str:
        """Ask for as little as possible; say in a line what answered, or raise JudgeError."""
        ...


class Trainer(Protocol):
    """What `--plugin` names: a class made from a resolved run. TRL's trainers nearly are this.

    An instance has, as `transformers.Trainer` has, `model`, `accelerator`, and `state` (a
    `TrainerState`: `global_step`, `max_steps`, `epoch`, `log_history`), and hands `run.callbacks`
    its events; the record is made of them.

    What a trainer may have beside what stands below, and does without otherwise:

    * `default_run: str`: the shipped run file that its name alone means.
    * `task: Task`: what the saved model is; `text-generation` if not said.
    * `variant_of: str`: the trainer by that name is what it trains by; the record and the card name
      both, with the packages that offer them.
    * `chain_of: str`: it is a chain of runs of the trainer so named, one for each entry of the run
      file's `phases`, each begun with what the one before has made (`hf_rlhf.runs.phases`). Its own
      `Config` is then for `hf-rlhf describe`, and its `from_run` is not called.
    * `tokens(run) -> Mapping[str, int]` (classmethod): `tokens` of the training rows as they are
      trained, in one epoch, and `trained`, those of them with a loss; for the plan of a dry run.
    * `row_counts(run) -> Mapping[str, RowCounts]` (classmethod): of `train` and of the held-out
      split, how many rows are kept, dropped and cut; printed and recorded before training. Of a
      training split that loses more than the run file's `max_dropped_share` or `max_cut_share`
      the run does not begin. Called when nothing else is wrong.
    * `columns: frozenset[str]`: the dataset columns that it cannot do without.
    * `refused_settings: Mapping[str, tuple[str, str] | None]`: settings of its Config that have no
      effect here, or spoil training: what is wrong, and what to do. They are refused at any value
      but the default, as those of `hf_rlhf.config.settings` are; None accepts one that is refused
      there, such as `eval_strategy` by a trainer that takes an evaluation dataset.
    * `preflight(run) -> Iterable[Problem]` (classmethod): its own checks, before weights load.
      `Problem.where` is a top-level key of the run file.
    * `advice(run) -> Iterable[str]` (classmethod): what may spoil training and is not known
      to; shown as notes by `hf-rlhf check` and when training begins, and on the card.
    * `held_out(run, model, model_kwargs) -> Evaluation | None` (classmethod): what it measures on
      the held-out rows, beside the composed rewards or without any. `model` is a folder or a Hub
      id with whole weights, `model_kwargs` are for `from_pretrained`. One row of metrics for each
      row of the dataset, on every process the same: `hf_rlhf.evaluation.measure_rows` does that.
      Called by all processes, before training and after it, if the run has an `evaluation`
      section. Every number is finite or None. In place of an Evaluation, None: there is nothing
      to measure of this model.
    * `held_out_metrics: Mapping[str, str]`: what each metric of `held_out` is, for the card.
    * `report() -> Mapping`: JSON of what only it knows, for the record (`training.report`) and the
      card: under each title a list of rows or one mapping. Called after saves and at the end, on
      every process, also when training fails; so no collective calls.
    * `unpublished: tuple[str, ...]`: how the names of parameters begin that are trained with the
      model and are no part of what is saved, such as a value head's; they are not counted.
    * `kept_bytes(run) -> int` (classmethod): at most how many bytes it writes into the run folder
      beside checkpoints and the saved model, for the estimate of the space on disk.
    * `trial_completions(row) -> list[str]` (static): plausible answers for `hf-rlhf check`.
    """

    Config: type
    """A dataclass, a subclass of `transformers.TrainingArguments` for trainers built on it."""

    @classmethod
    def from_run(cls, run: Any) -> "Trainer":
        """Build the trainer that a `hf_rlhf.runs.run.Run` describes."""
        ...

    def train(self, resume_from_checkpoint: str | None = None) -> Any:
        """Train to the end; return an object with `metrics`, as transformers does."""
        ...

    def save_model(self, output_dir: str) -> None:
        """Write the weights (the adapter, for LoRA) as safetensors.

        With several adapters, the trained one goes into `output_dir` itself. Others may go into
        folders of their name, which are kept and never published; one called `ref` is not kept.
        """
        ...


Command = Callable[[Sequence[str]], int]
"""A verb of `hf-rlhf`: takes the remaining arguments, returns the exit status."""

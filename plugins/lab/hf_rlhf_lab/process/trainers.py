"""Process and outcome reward models: token classifiers that judge the steps of a solution.

TRL 1.16 has no trainer for them; this is transformers' `Trainer` with a collator and a loss.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import DataCollatorForTokenClassification, TrainingArguments
from trl.trainer.utils import disable_dropout_in_model

from hf_rlhf import Method
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows
from hf_rlhf.models import load_policy, model_config
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import splits
from hf_rlhf_lab.encoded import EncodedRowsTrainer, Row, with_adapter
from hf_rlhf_lab.process.chains import (
    IGNORED,
    Chain,
    Reading,
    encode_row,
    labels_of,
    right_padded,
    row_problem,
    score_chains,
)
from hf_rlhf_lab.process.measures import outcome_metrics, step_metrics, with_auc


def _field(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ProcessRewardConfig(TrainingArguments):  # type: ignore[misc]
    """transformers' `TrainingArguments`, with settings for the tokens of solutions."""

    max_length: int | None = _field(
        1024, "Solutions of more tokens, prompt included, are left out. None: no limit."
    )
    step_separator: str = _field(
        "\n", "Put after each step; its last token is where the step is judged."
    )
    disable_dropout: bool = _field(True, "Set the model's dropout to 0; LoRA's stays.")


class ProcessRewardTrainer(EncodedRowsTrainer):
    """Train a process reward model (PRM) on labelled steps: `--plugin prm`.

    Rows are TRL's stepwise supervision: `prompt`, `completions` (a list of steps) and `labels`
    (whether each is right). The loss is the cross-entropy of each label, on the last token of the
    separator after its step (Lightman et al. 2023), averaged over all steps of a batch. The
    model has a head with two classes; the score of a step is the probability of class 1.
    """

    Config = ProcessRewardConfig
    default_run = "tiny"
    task = "token-classification"
    columns = frozenset({"prompt", "completions", "labels"})
    encoding_settings = ("step_separator",)
    outcome: ClassVar[bool] = False
    """Whether a solution has a single label, at its end."""
    refused_settings: ClassVar = {
        "label_smoothing_factor": ("has no effect on this trainer's loss.", "Leave it out."),
    }
    method = Method(
        "process reward modelling",
        tags=("process-reward-model",),
        citations=(
            "Lightman et al. 2023, Let's Verify Step by Step, arXiv:2305.20050",
            "Wang et al. 2024, Math-Shepherd, arXiv:2312.08935",
        ),
        summary="The score of a step is the probability of class 1 (right) at the last token of "
        "the separator after it. Steps and separators are tokenized one by one.",
    )
    held_out_metrics: ClassVar = {
        "step_accuracy": "share of a solution's steps that are judged correctly, at a score of 0.5",
        "step_loss": "cross-entropy of a solution's step labels, in nats per step",
        "first_error": "share of solutions with an error whose first step below 0.5 is the first "
        "wrong one",
        "false_alarms": "share of solutions without an error that have a step below 0.5",
        "lowest_step": "lowest score of a solution's steps",
        "auc": "probability that the lowest step of a solution with an error scores below that of "
        "one without; 0.5 is chance",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        problems = [*_model_problems(run), *_row_problems(cls, run)]
        return problems or cls.length_problems(run)

    @classmethod
    def encode(cls, run: Run, rows: Iterable[Row]) -> list[Chain]:
        """Return the tokens of each solution and its judged positions."""
        how = reading(cls, run)
        return [encode_row(run.tokenizer, row, how) for row in rows]

    @classmethod
    def labels_for(cls, run: Run, row: Row, encoded: Chain) -> list[int]:
        """Return a label for each token."""
        return encoded.labels(labels_of(row, reading(cls, run)))

    @classmethod
    def tokens(cls, run: Run) -> Mapping[str, int]:
        """Return the number of training tokens and of labelled tokens."""
        most = run.training.max_length
        used = [chain for chain in cls.encoded_splits(run)["train"] if chain.fits(most)]
        return {
            "tokens": sum(len(chain.ids) for chain in used),
            "trained": sum(len(chain.ends) for chain in used),
        }

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return the position of the score."""
        after = "the last step" if cls.outcome else "each step"
        separator = run.training.step_separator
        return {"Score": f"softmax, class 1, at the last token of {separator!r} after {after}"}

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        arguments = load_policy(run)
        if run.training.disable_dropout:
            disable_dropout_in_model(arguments["model"])
        return cls.build(
            run,
            with_adapter(arguments["model"], arguments["peft_config"]),
            data_collator=DataCollatorForTokenClassification(right_padded(run.tokenizer)),
            compute_loss_func=step_loss,
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter or weights, and the `Reading`."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            reading(type(self), self.run).save(Path(output_dir or self.args.output_dir))

    def report(self) -> Mapping[str, Any]:
        """Return the numbers of training solutions and steps."""
        labels = [label for row in self.train_dataset["labels"] for label in row]
        counts = {
            **self.count_rows("solutions"),
            "labels": len(labels) - labels.count(IGNORED),
            "of them right": labels.count(1),
        }
        return {"Training solutions": counts}

    @classmethod
    def held_out(cls, run: Run, model: Any, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return the judgement of each held-out solution; None for solutions over `max_length`."""
        how, tokenizer = reading(cls, run), right_padded(run.tokenizer)
        measure_row = outcome_metrics if cls.outcome else step_metrics

        def score(scorer: Any, rows: Sequence[Row], chains: Sequence[Chain]) -> Any:
            scores = score_chains(scorer, tokenizer, chains, len(chains))
            return map(measure_row, scores, [labels_of(row, how) for row in rows])

        names = [name for name in cls.held_out_metrics if name != "auc"]
        measured = cls.measure(run, model, model_kwargs, score, names)
        good = [all(labels_of(row, how)) for row in held_out_rows(run)]
        name = "score" if cls.outcome else "lowest_step"
        return Evaluation(with_auc(measured.rows, name, good))


class OutcomeRewardTrainer(ProcessRewardTrainer):
    """Train an outcome reward model (ORM) on whole solutions: `--plugin orm`.

    Rows are `prompt`, `label` (whether the answer is right) and the solution: `completions`, a list
    of steps, or `completion`, which is split at the separator. The label is learned at the last
    token (Cobbe et al. 2021: at every token); all else is as in `prm`.
    """

    default_run = "tiny"  # also here: `hf-rlhf runs` reads it without importing the class
    columns = frozenset({"prompt", "label"})
    outcome = True
    method = Method(
        "outcome reward modelling",
        tags=("outcome-reward-model",),
        citations=(
            "Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems, arXiv:2110.14168",
        ),
        summary="The score of a solution is the probability of class 1 (right) at the last token "
        "of the separator after its last step. Steps and separators are tokenized one by one.",
    )
    held_out_metrics: ClassVar = {
        "outcome_accuracy": "share of solutions whose answer is judged correctly, at 0.5",
        "outcome_loss": "cross-entropy of the label, in nats",
        "score": "probability that the answer is right",
        "auc": "probability that a solution with a wrong answer scores below one with a right "
        "answer; 0.5 is chance",
    }


def step_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """Return the cross-entropy of the labels, averaged over all labels of an optimizer step."""
    import torch

    logits = outputs.logits.float().flatten(0, 1)
    total = torch.nn.functional.cross_entropy(
        logits, labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / ((labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


def reading(cls: type[ProcessRewardTrainer], run: Run) -> Reading:
    """Return the `Reading` of the run's model."""
    return Reading(run.training.step_separator, cls.outcome)


def _model_problems(run: Run) -> Iterator[Problem]:
    if not run.training.step_separator:
        yield Problem(
            "step_separator", "is empty, so steps would have no boundary.", 'Write "\\n".'
        )
    for name in ("load_in_4bit", "load_in_8bit"):
        if getattr(run.model, name):
            yield Problem(name, "is not supported: the new head cannot be trained in few bits.")
    kinds = model_config(run).architectures or []
    if any(kind.endswith("ForSequenceClassification") for kind in kinds):
        yield Problem(
            "model_name_or_path",
            f"is a {kinds[0]}, whose head scores whole texts.",
            "Name a language model, or a model of `--plugin prm`.",
        )


def _row_problems(cls: type[ProcessRewardTrainer], run: Run) -> Iterator[Problem]:
    how = reading(cls, run)
    if not cls.columns <= set(run.dataset["train"].column_names):
        return  # reported by the core
    for split, rows in splits(run):
        for index, row in enumerate(rows):
            problem = row_problem(row, how)
            if not problem and not (isinstance(row["prompt"], str) or run.tokenizer.chat_template):
                problem = "`prompt` is messages, and the tokenizer has no chat template"
            if problem:
                yield Problem("dataset", f"row {index} of {split}: {problem}.")
                return
    labels = {label for row in run.dataset["train"] for label in labels_of(row, how)}
    if len(labels) == 1:
        yield Problem(
            "dataset",
            f"every label of train is {str(labels.pop()).lower()}, so there is nothing to learn.",
            "Add solutions with the other label.",
        )

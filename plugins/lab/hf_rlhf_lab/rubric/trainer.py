"""Reward models by regression on grades, on the public surface of transformers' Trainer."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
import transformers
from torch import nn
from transformers import TrainingArguments

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows, measure_rows, saved_model
from hf_rlhf.models import load_policy
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import (
    can_encode,
    check_single_kind,
    common_problems,
    eval_rows,
    splits,
    training_rows,
    within_positions,
)
from hf_rlhf_classic.encoding import encode_batch, ended, joined
from hf_rlhf_classic.likelihood import batch_size, padded
from hf_rlhf_classic.pairs import scores
from hf_rlhf_classic.row_lengths import once
from hf_rlhf_lab.rubric.grades import criteria, grade_problems, row_metrics, targets

_COLUMNS = ("prompt", "completion", "grades")


@dataclass
class RubricRewardConfig(TrainingArguments):  # type: ignore[misc]
    """The settings of `--plugin rubric_reward`."""

    max_length: int | None = field(
        default=1024, metadata={"help": "Rows with more tokens, prompt included, are left out."}
    )
    heads: Literal["sum", "per_criterion"] = field(
        default="sum",
        metadata={
            "help": "`per_criterion` also trains a linear head for how much each criterion's grade "
            "differs from the mean, which shapes the shared weights. It needs `use_peft: false`."
        },
    )


class RubricRewardTrainer(Trainer, transformers.Trainer):  # type: ignore[misc]
    """Train a reward model on grades by a rubric: `--plugin rubric_reward`.

    The loss is the squared error of the score against the mean grade, as a share of the highest:
    sum/25 for five criteria from 1 to 5. The score is a linear head without bias on the last token
    that is not padding, as of `--plugin reward`, so `reward_model` reads the saved model. With
    `heads: per_criterion` the squared error of each criterion's deviation from the mean is added;
    the head for it is saved beside the score's as `criteria.weight`, shape (criteria, hidden). Rows
    of more than `max_length` tokens are left out, and counted.
    """

    Config = RubricRewardConfig
    default_run = "tiny"
    task = "text-classification"
    columns = frozenset(_COLUMNS)
    uses_validation_rows = True
    method = Method(
        "rubric reward modelling",
        tags=("rubric-reward",),
        citations=("Wang et al. 2023, HelpSteer, arXiv:2311.09528",),
        summary="The loss is the squared error of the score against the mean grade by a rubric.",
    )
    held_out_metrics: ClassVar = {
        "pair_accuracy": "share of other held-out rows with another grade that the score orders as "
        "the grade does; ties are half",
        "rank_agreement": "product of standardised ranks of score and grade; its mean is "
        "Spearman's correlation",
        "squared_error": "square of score minus mean grade, as a share of the highest grade",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield what would stop or spoil training, before weights load."""
        problems = [*common_problems(run), *_settings(run)]
        if can_encode(run, *_COLUMNS[:2]) and "grades" in run.dataset["train"].column_names:
            problems += check_single_kind(run, *_COLUMNS[:2])
            problems += _grades(run)
            if not problems:
                problems += within_positions(run, partial(_lengths, run), drops=True)
        return problems

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return how many rows are short enough to be trained on, or measured."""
        most = run.training.max_length

        def count(lengths: Sequence[int]) -> RowCounts:
            long = sum(most is not None and length > most for length in lengths)
            fix = f"Raise `max_length`: the longest row has {max(lengths):,} tokens."
            return RowCounts(len(lengths), {f"over `max_length` {most}": long}, fix=fix)

        return {split: count(_lengths(run, split, rows)) for split, rows in splits(run)}

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this is where the weights are loaded."""
        rows, held_out = training_rows(run, *_COLUMNS), eval_rows(run, *_COLUMNS)
        encoded = _encoded(run, rows)
        trainer = cls(
            model=_model(run, len(criteria(rows))),
            args=run.training,
            train_dataset=encoded,
            eval_dataset=None if held_out is None else _encoded(run, held_out),
            data_collator=partial(_collated, run.tokenizer.pad_token_id),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
        )
        # The loss is a mean over the rows of a micro-batch.
        trainer.loss_is_scaled_for_ga = False
        trainer.criteria, trainer.provided = criteria(rows), len(rows)
        trainer.errors = defaultdict(list)
        return trainer

    criteria: Sequence[str]
    provided: int
    """Training rows before those over `max_length` were left out."""
    errors: dict[str, list[torch.Tensor]]
    """Squared errors of each criterion since the last log."""

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the squared error against the mean grade, and that of each criterion's head."""
        grades = inputs.pop("labels")
        by_criterion = self.args.heads == "per_criterion"
        outputs = model(**inputs, use_cache=False, output_hidden_states=by_criterion)
        mean = outputs.logits.squeeze(-1).float()
        errors = (mean - grades.mean(dim=1)) ** 2
        if by_criterion:
            head = self.accelerator.unwrap_model(model).criteria
            hidden = _last(outputs.hidden_states[-1], inputs["attention_mask"])
            difference = head(hidden.to(head.weight.dtype)).float()
            predicted = mean[:, None] + difference - difference.mean(dim=1, keepdim=True)
            # Its mean is the error against the mean grade plus that of the deviations from it.
            parts = (predicted - grades) ** 2
            errors = parts.mean(dim=1)
            by_name = zip(self.criteria, parts.detach().mean(dim=0), strict=True)
            for name, part in by_name if model.training else ():
                self.errors[name].append(part)
        loss = errors.mean()
        return (loss, {"logits": outputs.logits}) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the squared error of each criterion since the last time."""
        if "loss" in logs:  # of training, not of an evaluation
            for name, values in self.errors.items():
                logs[f"squared_error/{name}"] = float(torch.stack(values).mean())
            self.errors.clear()
        super().log(logs, *args, **kwargs)

    def report(self) -> Mapping[str, Any]:
        """Return how many rows were trained on, and by which criteria they are graded."""
        rows = {
            "given": self.provided,
            "over max_length, left out": self.provided - len(self.train_dataset),
            "trained on": len(self.train_dataset),
            "criteria": ", ".join(self.criteria),
        }
        return {"Graded responses": rows}

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return the error, rank agreement and pairwise accuracy of each held-out row."""
        rows = held_out_rows(run)
        limit = run.training.max_length

        def measure(batch: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
            ids = _ids(run.tokenizer, batch)
            known = [limit is None or len(each) <= limit for each in ids]
            read = [each for each, short in zip(ids, known, strict=True) if short]
            values = iter(scores(scorer, read, run.tokenizer.pad_token_id, len(batch)))
            return [{"score": next(values) if short else None} for short in known]

        with saved_model(run, model, model_kwargs) as scorer:
            measured = measure_rows(rows, measure, batch_size=batch_size(run)).rows
        values = [row["score"] for row in measured]
        scored = [index for index, value in enumerate(values) if value is not None]
        grades = targets(rows).mean(axis=1)[scored]
        metrics = row_metrics([value for value in values if value is not None], grades)
        nothing = dict.fromkeys(cls.held_out_metrics)
        by_row = dict(zip(scored, metrics, strict=True))
        return Evaluation([by_row.get(index, nothing) for index in range(len(values))])


def _settings(run: Run) -> Iterator[Problem]:
    if run.training.heads == "per_criterion" and run.model.use_peft:
        fix = "Write `use_peft: false`, or `heads: sum`."
        yield Problem("heads", "per_criterion trains a head that no adapter saves.", fix)
    if run.training.label_smoothing_factor:
        yield Problem("label_smoothing_factor", "has no effect on this loss.", "Leave it out.")


def _grades(run: Run) -> Iterator[Problem]:
    names = run.dataset["train"].features["grades"]
    for split, rows in splits(run):
        if "grades" in rows.column_names:
            yield from grade_problems(split, rows, list(names) if hasattr(names, "items") else [])


def _model(run: Run, count: int) -> Any:
    arguments = load_policy(run)
    model, adapter = arguments["model"], arguments["peft_config"]
    model.config.get_text_config().pad_token_id = run.tokenizer.pad_token_id
    if adapter is not None:
        from peft import get_peft_model

        model = get_peft_model(model, adapter)
    if run.training.heads == "per_criterion":
        head = nn.Linear(model.config.get_text_config().hidden_size, count, bias=False)
        model.criteria = head.to(model.device, model.dtype)
    return model


def _ids(tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    texts = [joined(row["prompt"], ended(tokenizer, row["completion"])) for row in rows]
    return encode_batch(tokenizer, texts, rows)


def _lengths(run: Run, split: str, rows: Any) -> list[int]:
    key = ("graded", len(rows), len(run.tokenizer))
    return once(
        run.dataset[split], key, lambda: [len(ids) for ids in _ids(run.tokenizer, rows.to_list())]
    )


def _encoded(run: Run, rows: Any) -> Any:
    """Return token ids and grades of the rows that are short enough, as a dataset."""
    from datasets import Dataset

    ids, labels = _ids(run.tokenizer, rows.to_list()), targets(rows).tolist()
    most = run.training.max_length
    short = [index for index, each in enumerate(ids) if most is None or len(each) <= most]
    kept = {"input_ids": [ids[n] for n in short], "labels": [labels[n] for n in short]}
    return Dataset.from_dict(kept)


def _collated(pad: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    ids, mask = padded([row["input_ids"] for row in rows], pad, "cpu")
    labels = torch.tensor([row["labels"] for row in rows], dtype=torch.float32)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the hidden state of each row's last token that is not padding."""
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]

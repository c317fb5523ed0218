"""Train reward models by regression on grades, with the public API of transformers' Trainer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import DataCollatorWithPadding, TrainingArguments

from hf_rlhf import Method
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows
from hf_rlhf.models import FOR_TEMPLATES, load_policy
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import can_encode, check_single_kind, common_problems, splits
from hf_rlhf_classic.encoding import encode_batch, ended, joined
from hf_rlhf_classic.pairs import scores
from hf_rlhf_lab.encoded import EncodedRowsTrainer, Row, with_adapter
from hf_rlhf_lab.feedback.rubric_grades import HIGHEST
from hf_rlhf_lab.process.chains import Encoded, right_padded
from hf_rlhf_lab.rubric.grades import criteria, grade_problems, row_metrics, targets

_TEXTS = ("prompt", "completion")


@dataclass
class RubricRewardConfig(TrainingArguments):  # type: ignore[misc]
    """The settings of `--plugin rubric_reward`."""

    max_length: int | None = field(
        default=1024, metadata={"help": "Rows with more tokens, prompt included, are left out."}
    )


class RubricRewardTrainer(EncodedRowsTrainer):
    """Train a reward model on grades by a rubric: `--plugin rubric_reward`.

    The loss is the squared error of the score against the mean grade, as a share of the highest
    grade: sum/25 for five criteria from 1 to 5. The score is a linear head without bias on the last
    token that is not padding, as in `--plugin reward`, so `reward_model` reads the saved model.
    Rows of more than `max_length` tokens are left out and counted.
    """

    Config = RubricRewardConfig
    default_run = "tiny"
    task = "text-classification"
    columns = frozenset({*_TEXTS, "grades"})
    refused_settings: ClassVar = {
        "label_smoothing_factor": ("has no effect on this trainer's loss.", "Leave it out."),
    }
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
        """Yield problems that would stop or spoil training, before weights load."""
        problems = list(common_problems(run, FOR_TEMPLATES))
        if can_encode(run, *_TEXTS) and "grades" in run.dataset["train"].column_names:
            problems += [*check_single_kind(run, *_TEXTS), *_grades(run)]
            problems += [] if problems else cls.length_problems(run)
        return problems

    @classmethod
    def encode(cls, run: Run, rows: Iterable[Row]) -> list[Encoded]:
        """Return the tokens of each prompt and response, with the end-of-sequence token."""
        values = list(rows)
        texts = [joined(row["prompt"], ended(run.tokenizer, row["completion"])) for row in values]
        return list(map(Encoded, encode_batch(run.tokenizer, texts, values)))

    @classmethod
    def labels_for(cls, run: Run, row: Row, encoded: Encoded) -> list[float]:
        """Return the grades as shares of the highest grade."""
        return [row["grades"][name] / HIGHEST for name in criteria(run.dataset["train"])]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        arguments = load_policy(run)
        arguments["model"].config.get_text_config().pad_token_id = run.tokenizer.pad_token_id
        model = with_adapter(arguments["model"], arguments["peft_config"])
        collator = DataCollatorWithPadding(right_padded(run.tokenizer))
        trainer = cls.build(run, model, data_collator=collator)
        # The loss is a mean over the rows of a micro-batch.
        trainer.loss_is_scaled_for_ga = False
        return trainer

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the squared error against the mean grade."""
        grades = inputs.pop("labels")
        outputs = model(**inputs, use_cache=False)
        loss = ((outputs.logits.squeeze(-1).float() - grades.mean(dim=1)) ** 2).mean()
        return (loss, {"logits": outputs.logits}) if return_outputs else loss

    def report(self) -> Mapping[str, Any]:
        """Return the number of training rows and the criteria of their grades."""
        rows = {
            **self.count_rows("given"),
            "trained on": len(self.train_dataset),
            "criteria": ", ".join(criteria(self.run.dataset["train"])),
        }
        return {"Graded responses": rows}

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return the error, rank agreement and pairwise accuracy of each held-out row."""

        def score(scorer: Any, _: Any, rows: Sequence[Encoded]) -> Any:
            ids = [row.ids for row in rows]
            values = scores(scorer, ids, run.tokenizer.pad_token_id, len(ids))
            return ({"score": value} for value in values)

        measured = cls.measure(run, model, model_kwargs, score, ["score"]).column("score")
        scored = [index for index, value in enumerate(measured) if value is not None]
        grades = targets(held_out_rows(run)).mean(axis=1)[scored]
        metrics = row_metrics([value for value in measured if value is not None], grades)
        by_row = dict(zip(scored, metrics, strict=True))
        nothing = dict.fromkeys(cls.held_out_metrics)
        return Evaluation([by_row.get(index, nothing) for index in range(len(measured))])


def _grades(run: Run) -> Iterator[Problem]:
    names = run.dataset["train"].features["grades"]
    for split, rows in splits(run):
        if "grades" in rows.column_names:
            yield from grade_problems(split, rows, list(names) if hasattr(names, "items") else [])

"""ORPO and CPO (SimPO): preference optimisation without a reference model, from TRL's experiments.

TRL may change or remove them in any release. They use their own tokenization: a response that does
not fit into `max_length` after its prompt is truncated, and every response ends with the
end-of-sequence token, even after a chat template.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

# TRL warns on import; these trainers' documentation repeats the warning.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from datasets import Features, Value
from trl import apply_chat_template
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from hf_rlhf import Method
from hf_rlhf.errors import Problem
from hf_rlhf.models import load_policy
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import OWN_LOSS, choice, eval_rows, no_lengths, training_rows
from hf_rlhf_classic.encoding import is_text
from hf_rlhf_classic.implicit_rewards import LogProbs
from hf_rlhf_classic.pair_training import PairTraining
from hf_rlhf_classic.row_lengths import SIDES

CPO_LOSSES = ("sigmoid", "hinge", "ipo", "simpo")


class ReferenceFreeTraining(PairTraining):
    """Builds a trainer on pairs that TRL tokenizes itself, and counts the truncated pairs."""

    for_templates = ("chat_template_kwargs",)
    refused_settings: ClassVar = {
        "max_completion_length": ("is for encoder-decoder models.", "Set `max_length`."),
        **OWN_LOSS,
    }

    held_out_metrics: ClassVar = {
        **PairTraining.held_out_metrics,
        "implicit_accuracy": "share of pairs whose chosen response has the higher implicit reward, "
        "`beta` times its log-probability (per token for ORPO and SimPO); a tie is half",
    }

    @classmethod
    def implicit_rewards(cls, run: Run, rows: Sequence[LogProbs]) -> list[list[float]]:
        """Return the implicit rewards by the loss, which has no reference."""
        beta, per_token = run.training.beta, cls.is_per_token(run)

        def reward(row: LogProbs, side: str) -> float:
            tokens = (row[f"{side}_tokens"] or 1) if per_token else 1
            return float(beta * (row[side] or 0.0) / tokens)

        return [[reward(row, side) for side in SIDES] for row in rows]

    @classmethod
    def is_per_token(cls, run: Run) -> bool:
        """Return whether the loss compares mean log-probabilities per token, not sums."""
        return getattr(run.training, "loss_type", "orpo") in ("orpo", "simpo")

    @classmethod
    def setting_problems(cls, run: Run) -> Iterator[Problem]:
        """Yield the settings that TRL would refuse only once the weights are loaded."""
        yield from no_lengths(run)
        if run.training.max_length is None:
            yield Problem("max_length", "is null, which this trainer reads as 512.", "Set it.")

    train_dataset: Any

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        build: Any = cls
        trainer: Self = build(
            **load_policy(run),
            args=run.training,
            train_dataset=_as_texts(run, training_rows(run, "prompt", *SIDES)),
            eval_dataset=_as_texts(run, eval_rows(run, "prompt", *SIDES)),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
        )
        trainer.pair_counts = trainer.drop_empty_responses()
        return trainer

    pair_counts: Mapping[str, int]
    """Numbers of training pairs: total, and left out."""

    def drop_empty_responses(self) -> dict[str, int]:
        """Leave out pairs whose prompt fills `max_length`, because their loss would be NaN."""
        rows = self.train_dataset
        given = len(rows)
        kept = [
            index
            for index, row in enumerate(rows.select_columns([f"{side}_labels" for side in SIDES]))
            if all(any(label != -100 for label in row[f"{side}_labels"]) for side in SIDES)
        ]
        if len(kept) < given:
            self.train_dataset = rows.select(kept)
        return {"given": given, "prompt over max_length, left out": given - len(kept)}

    def report(self) -> Mapping[str, Any]:
        """Return the number of training pairs, and of those left out."""
        return {"Training pairs": self.pair_counts}


def _as_texts(run: Run, rows: Any) -> Any:
    """Return conversations as TRL writes them; it would parse its texts of JSON columns as JSON."""
    if rows is None or is_text(rows[0]["prompt"]):
        return rows
    names = ("prompt", *SIDES)
    return rows.map(
        apply_chat_template,
        fn_kwargs={"processing_class": run.tokenizer},
        remove_columns=rows.column_names,
        features=Features(dict.fromkeys(names, Value("string"))),
    )


class OddsRatioTrainer(ReferenceFreeTraining, ORPOTrainer):  # type: ignore[misc]
    """ORPO (Hong et al. 2024) on pairs: `--plugin orpo`.

    The loss is the chosen response's negative log-likelihood plus `beta` times the log odds ratio
    of the two responses, so it needs neither supervised fine-tuning first nor a reference model.
    """

    Config = ORPOConfig
    default_run = "tiny"
    method = Method(
        "ORPO",
        tags=("trl", "orpo"),
        citations=("Hong et al. 2024, ORPO, arXiv:2403.07691",),
    )


class ContrastiveTrainer(ReferenceFreeTraining, CPOTrainer):  # type: ignore[misc]
    """CPO (Xu et al. 2024) and SimPO (Meng et al. 2024, `loss_type: simpo`): `--plugin cpo`.

    The loss contrasts the two responses' likelihoods, plus `cpo_alpha` times the chosen response's
    negative log-likelihood. SimPO's likelihoods are means per token; `simpo_gamma` is its margin.
    """

    Config = CPOConfig
    default_run = "tiny"
    method = Method(
        "CPO",
        tags=("trl", "cpo"),
        citations=(
            "Xu et al. 2024, Contrastive Preference Optimization, arXiv:2401.08417",
            "Meng et al. 2024, SimPO, arXiv:2405.14734",
        ),
    )

    @classmethod
    def setting_problems(cls, run: Run) -> Iterator[Problem]:
        """Yield the settings that TRL would refuse only once the weights are loaded."""
        training = run.training
        yield from super().setting_problems(run)
        yield from choice(run, "loss_type", CPO_LOSSES)
        if training.beta == 0:
            yield Problem("beta", "is 0, so the pairs have no effect.", "Set a number above 0.")
        if training.loss_type in ("hinge", "ipo") and training.label_smoothing:
            yield Problem(
                "label_smoothing", f"has no effect with `loss_type: {training.loss_type}`."
            )

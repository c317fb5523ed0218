"""On-policy distillation, with TRL's public API only."""

from collections.abc import Iterable
from typing import Any, Self

from trl import DistillationConfig, DistillationTrainer

from hf_rlhf import Method, Trainer
from hf_rlhf.contracts import HeldModel, StepShape
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import validation_rows
from hf_rlhf.models import find_model, policy_arguments
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems, fills_a_step, same_tokens, training_rows
from hf_rlhf_classic.held_out_only import HeldOutOnly, no_eval_loss


class DistilledTrainer(HeldOutOnly, Trainer, DistillationTrainer):  # type: ignore[misc]
    """On-policy distillation (GKD, Agarwal et al. 2024): `--plugin distillation`.

    The student completes each prompt and learns the next-token distributions of
    `teacher_model_name_or_path`, which has the same vocabulary. `beta` is the divergence: 0 for the
    forward KL, 1 for the reverse KL, between them a generalised Jensen-Shannon divergence. Rewards
    are measured and not trained on.
    """

    Config = DistillationConfig
    default_run = "tiny"
    columns = frozenset({"prompt"})
    trains_by_rewards = False
    method = Method(
        "On-policy distillation",
        tags=("trl", "distillation"),
        citations=("Agarwal et al. 2024, On-Policy Distillation, arXiv:2306.13649",),
    )

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        training = run.training
        teacher = training.teacher_model_name_or_path, training.teacher_model_revision
        problems = [*common_problems(run), *no_eval_loss(run), *fills_a_step(run)]
        return [*problems, *same_tokens(run, "teacher_model_name_or_path", *teacher)]

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: a tiled loss, and the teacher."""
        teacher = HeldModel(run.training.teacher_model_name_or_path)
        return StepShape(head="fused", held={"teacher": teacher})

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        build: Any = cls
        trainer: Self = build(
            **policy_arguments(run),
            teacher_model=find_model(run.training.teacher_model_name_or_path),
            args=run.training,
            train_dataset=training_rows(run, "prompt"),
            eval_dataset=validation_rows(run),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
        )
        return trainer

"""On-policy distillation, with TRL's public API only."""

from collections.abc import Iterable, Iterator
from typing import Any, Self

from trl import DistillationConfig, DistillationTrainer

from hf_rlhf import Method, Trainer
from hf_rlhf.contracts import HeldModel, StepShape
from hf_rlhf.distributed import processes
from hf_rlhf.errors import ModelError, Problem, first_line
from hf_rlhf.evaluation import validation_rows
from hf_rlhf.models import find_model, load_tokenizer, policy_arguments
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems, training_rows
from hf_rlhf_classic.held_out_only import HeldOutOnly, no_eval_loss

TEACHER = "teacher_model_name_or_path"


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
        return [*common_problems(run), *no_eval_loss(run), *_teacher(run), *_batch(run)]

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


def _teacher(run: Run) -> Iterator[Problem]:
    """Check that teacher and student share the vocabulary; TRL compares only the size, late."""
    name = run.training.teacher_model_name_or_path
    if not name:
        yield Problem(TEACHER, "is missing.", "Write a Hub id, a folder, or package://...")
        return
    revision = run.training.teacher_model_revision
    try:
        tokenizer = load_tokenizer(find_model(name), None, revision=revision)
    except (ModelError, OSError, ValueError) as error:
        yield Problem(TEACHER, f"its tokenizer does not load: {first_line(error)}")
        return
    if tokenizer.get_vocab() != run.tokenizer.get_vocab():
        yield Problem(
            TEACHER,
            f"{name} has another vocabulary than {run.model.model_name_or_path}, so the "
            "probabilities of their tokens cannot be compared.",
            "Use a teacher of the same family.",
        )


def _batch(run: Run) -> Iterator[Problem]:
    """Check that the prompts fill an optimizer step; with fewer, TRL silently trains 0 steps."""
    training, rows = run.training, len(run.dataset["train"])
    prompts = training.per_device_train_batch_size * training.gradient_accumulation_steps
    if rows < (batch := prompts * processes()):
        yield Problem(
            "dataset",
            f"{rows} training rows, but one optimizer step takes {batch} prompts.",
            "Add rows, or lower per_device_train_batch_size or gradient_accumulation_steps.",
        )

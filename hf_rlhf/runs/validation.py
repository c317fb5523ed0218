"""Checks of evaluations during training, before weights load."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hf_rlhf.distributed import distributed_type
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation.validation import (
    LOSS,
    is_validated,
    metric_key,
    validation_range,
    validation_run,
)
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.runs.estimate import cycle_in_steps
from hf_rlhf.runs.preflight_data import evaluation_problems, length_problems
from hf_rlhf.storage.record_schema import HELD_OUT

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


def validation_problems(run: "Run") -> Iterator[Problem]:
    """Yield why evaluations during training would fail, or decide nothing."""
    from transformers import EarlyStoppingCallback

    if any(isinstance(callback, EarlyStoppingCallback) for callback in run.callbacks):
        what = "EarlyStoppingCallback would decide before the held-out rows are measured."
        yield Problem("callbacks", what, "Write `early_stopping: {patience: 3}` instead.")
    if not is_validated(run):
        for key in ("validation", "early_stopping"):
            if getattr(run.spec, key) is not None:
                what = "has no effect: nothing is evaluated during training."
                yield Problem(key, what, "Set `eval_strategy`, or leave it out.")
        if run.training.eval_on_start:
            what = "is true, and there are no rows for it: nothing is evaluated during training."
            fix = "Set `eval_strategy`, or remove this: `evaluation` measures before training."
            yield Problem("eval_on_start", what, fix)
        return
    if run.spec.evaluation is None:
        what = "needs the `evaluation` section, which says how to measure."
        yield Problem("eval_strategy", what, "Write `evaluation: {split: test}`.")
        return
    stage = getattr(getattr(run.training, "deepspeed_plugin", None), "zero_stage", None)
    if distributed_type(run.training) == "FSDP" or stage == 3:
        yield Problem(
            "eval_strategy",
            "needs the whole model on each process, and FSDP and ZeRO-3 shard it.",
            "Launch with DDP or ZeRO-2, or leave it out.",
        )
    rows = list(_row_problems(run))
    yield from rows or _problems_of_rows(run)
    yield from _metric_problems(run)
    yield from _alignment_problems(run)


def _row_problems(run: "Run") -> Iterator[Problem]:
    split, rows = validation_range(run)
    if split not in run.dataset:
        have = ", ".join(run.dataset)
        yield Problem("validation", f"there is no split {split!r}.", f"The dataset has: {have}.")
    elif not rows:
        yield Problem(
            "validation",
            f"the results are measured on all {len(run.dataset[split])} rows of {split!r}, so none "
            "is left to choose weights by.",
            "Lower `evaluation.rows`, hold out more rows, or name another split as "
            "`validation.split`; with the same split the results are optimistic, and the card "
            "says so.",
        )


def _problems_of_rows(run: "Run") -> Iterator[Problem]:
    measured = validation_run(run)
    yield from evaluation_problems(measured)
    yield from length_problems(measured)
    yield from measured.trainer_class.preflight(measured)


def _metric_problems(run: "Run") -> Iterator[Problem]:
    key, trainer = metric_key(run), run.trainer_class
    if key is None:
        if run.spec.early_stopping is not None or run.training.save_strategy == "best":
            which = "early_stopping" if run.spec.early_stopping is not None else "save_strategy"
            yield Problem(which, "needs `metric_for_best_model`.", _known(run))
        return
    declared = bool(trainer.held_out_metrics) or not trainer.measures_held_out()
    if declared and key.removeprefix(HELD_OUT) not in _metrics(run):
        name = run.training.metric_for_best_model
        yield Problem("metric_for_best_model", f"{name!r} is not measured.", _known(run))


def _metrics(run: "Run") -> list[str]:
    # The loss of a policy on its own samples does not tell how good they are.
    samples = hasattr(run.training, "num_generations")
    names = [*([] if samples else [LOSS]), *run.trainer_class.held_out_metrics]
    if run.reward is not None and run.writes_text:
        labels = [part.label for part in (*run.reward.rewards, *run.reward.gates)]
        names += [TOTAL, *labels, "completion_tokens", "truncated"]
    return list(dict.fromkeys(names))


def _known(run: "Run") -> str:
    return f"Measured are {', '.join(_metrics(run))}."


def _alignment_problems(run: "Run") -> Iterator[Problem]:
    """Evaluated weights must also be saved, and lie between two cycles."""
    training, cycle = run.training, cycle_in_steps(run.training)
    if training.eval_strategy != "steps":
        return
    every = training.eval_steps
    if training.load_best_model_at_end and training.save_strategy == "steps":
        if every != training.save_steps:
            yield Problem(
                "save_steps",
                f"is {training.save_steps:g}, and evaluations are {every:g} steps apart, so the "
                "best weights might not have been saved.",
                "Set `save_steps` and `eval_steps` to the same number.",
            )
    elif training.save_strategy == "best" and (every < 1 or every % cycle):
        yield Problem(
            "eval_steps",
            f"is {every:g}, but a generation cycle takes {cycle} optimizer steps, and a checkpoint "
            "inside one cannot be resumed exactly.",
            f"Use a multiple of {cycle}.",
        )

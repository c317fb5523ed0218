"""Evaluate the run's held-out metrics on its validation rows during training.

transformers decides when (`eval_strategy`), logs its own loss on the same rows, and stores the best
step in each checkpoint's state. Nothing here changes what is trained.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback

from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.evaluation.held_out import measure_in_training
from hf_rlhf.evaluation.validation import (
    is_separate,
    is_validated,
    metric_key,
    validation_range,
    validation_run,
)
from hf_rlhf.formatting import counted
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.checkpoints import flaw
from hf_rlhf.storage.record_schema import HELD_OUT, ValidationSection
from hf_rlhf.training.generation_cycle import Boundary
from hf_rlhf.training.progress import say


class Validation(TrainerCallback):  # type: ignore[misc]
    """Adds the run's held-out metrics to transformers' evaluation, and logs and prints them.

    Evaluations restore the random states, so they do not affect training. This callback must
    precede callbacks that read the metrics.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.early_stopping: EarlyStopping | None = None
        self.callbacks: tuple[TrainerCallback, ...] = ()
        """Empty where the run is not evaluated during training."""
        if is_validated(run):
            run.training.metric_for_best_model = metric_key(run)
            self._measured = validation_run(run)
            self._separate = is_separate(run)
            if (stopping := run.spec.early_stopping) is not None:
                self.early_stopping = EarlyStopping(stopping.patience, stopping.threshold)
            self.callbacks = tuple(filter(None, (self, self.early_stopping)))
        self.trainer: Any = None
        """Set before training begins."""
        self._before: Boundary | None = None
        self._began = 0.0

    @property
    def stopped_early(self) -> bool:
        """Return whether training stops, or has stopped, early."""
        return self.early_stopping is not None and self.early_stopping.stopped

    def load_best(self, state: Any) -> None:
        """Load the weights of the best step after resuming a finished training."""
        restores = bool(self.callbacks) and self.run.training.load_best_model_at_end
        if restores and state.best_model_checkpoint is not None:
            # transformers does it only at the end of training, not by a public method.
            self.trainer._load_best_model()

    def section(self, state: Any) -> ValidationSection | None:
        """Return the measurements and their consequences for the record."""
        if not self.callbacks:
            return None
        training, stopping = self.run.training, self.run.spec.early_stopping
        split, rows = validation_range(self.run)
        best = training.metric_for_best_model is not None and bool(state.best_global_step)
        return ValidationSection(
            split=split,
            first_row=rows.start,
            rows=len(rows),
            separate=self._separate,
            metric=training.metric_for_best_model,
            greater_is_better=training.greater_is_better,
            best=state.best_metric if best else None,
            best_step=state.best_global_step if best else None,
            restored=best and training.load_best_model_at_end,
            patience=stopping.patience if stopping else None,
            threshold=stopping.threshold if stopping else None,
            stopped_early=self.stopped_early,
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check that the best checkpoint so far exists, if its weights will be saved."""
        # An interrupted run already had the evaluation at its start.
        args.eval_on_start = args.eval_on_start and not state.global_step
        self._prepare(args.eval_on_start, state)
        if args.load_best_model_at_end and state.best_global_step:
            best = Path(args.output_dir) / f"checkpoint-{state.best_global_step}"
            run_on_main_process(lambda: _check_best(best))
            # transformers loses it if the run folder was moved.
            state.best_model_checkpoint = str(best)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the random states if an evaluation follows."""
        self._prepare(control.should_evaluate, state)

    on_epoch_end = on_step_end

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        """Measure the model, and add metrics for the choice of the best step."""
        with self.trainer.accelerator.autocast():
            measured = measure_in_training(self._measured, kwargs["model"])
        means = {
            f"eval_{HELD_OUT}{name}": sum(values) / len(values)
            for part in measured.parts
            for name in part.metrics()
            if (values := [value for value in part.column(name) if value is not None])
        }
        metrics.update(means)
        self.trainer.log(dict(means))
        key = f"eval_{args.metric_for_best_model}"
        if args.metric_for_best_model is not None and key not in metrics:
            raise ModelError(
                f"step {state.global_step}: no validation row has a value for "
                f"`metric_for_best_model` {args.metric_for_best_model.removeprefix(HELD_OUT)!r}. "
                f"Measured: {', '.join(name.removeprefix('eval_' + HELD_OUT) for name in means)}."
            )
        if state.is_world_process_zero:
            seconds = time.monotonic() - self._began
            line = f"step {state.global_step:>5}  evaluation: {_line(metrics)}  {seconds:.1f} s"
            say(line)
        if self._before is not None:
            self._before.put_back(state)

    def _prepare(self, evaluates: bool, state: Any) -> None:
        self._before = Boundary.taken(state) if evaluates else None
        self._began = time.monotonic()


class EarlyStopping(EarlyStoppingCallback):  # type: ignore[misc]
    """transformers' callback, which continues the count of an interrupted run."""

    @property
    def stopped(self) -> bool:
        """Return whether training stops, or has stopped, without an improvement."""
        return bool(self.early_stopping_patience_counter >= self.early_stopping_patience)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the checkpoint's count."""
        saved = state.stateful_callbacks[type(self).__name__]["attributes"]
        self.early_stopping_patience_counter = saved["early_stopping_patience_counter"]

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any], **kwargs: Any
    ) -> None:
        """Stop after `patience` evaluations without an improvement, and print it."""
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if self.stopped and state.is_world_process_zero:
            say(
                f"early stopping: {args.metric_for_best_model.removeprefix(HELD_OUT)} was best at "
                f"step {state.best_global_step} ({state.best_metric:.4g}), and is no better after "
                f"{counted(self.early_stopping_patience, 'evaluation')} since"
            )


def _check_best(checkpoint: Path) -> None:
    if (reason := flaw(checkpoint)) is not None:
        raise RunFolderError(
            f"{checkpoint} has the best weights so far, and cannot be used: {reason}. Restore it; "
            "or delete it and all later checkpoints, and the same command repeats those steps."
        )


def _line(metrics: Mapping[str, Any]) -> str:
    """Return transformers' loss and our metrics as a line."""
    named = {"eval_loss": metrics.get("eval_loss")}
    start = f"eval_{HELD_OUT}"
    named |= {k.removeprefix(start): v for k, v in metrics.items() if k.startswith(start)}
    return "  ".join(f"{name} {value:.4g}" for name, value in named.items() if value is not None)

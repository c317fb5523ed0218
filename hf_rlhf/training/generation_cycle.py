"""Boundaries of generation cycles: steps after which training can stop and resume exactly.

A GRPO checkpoint does not contain the current completions, so it resumes exactly only if the next
step generates. For trainers that do not generate, every optimizer step is a boundary.
"""

import random
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import get_sampler
from accelerate.utils import reduce
from transformers import TrainerCallback

from hf_rlhf.training.signals import Stopping

SAVE_SECONDS = 5.0
"""Assumed duration of a save until it is measured."""


@dataclass(frozen=True)
class Boundary:
    """The random states at the end of `step`, on which the next step depends."""

    step: int
    python: Any
    numpy: Any
    torch: Any
    devices: Any
    tokens_seen: int

    @classmethod
    def taken(cls, state: Any) -> "Boundary":
        """Return the current random states."""
        return cls(
            state.global_step,
            random.getstate(),
            np.random.get_state(),
            torch.random.get_rng_state(),
            torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None,
            state.num_input_tokens_seen,
        )

    def put_back(self, state: Any) -> None:
        """Restore the random states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.random.set_rng_state(self.torch)
        if self.devices is not None:
            torch.cuda.set_rng_state_all(self.devices)
        state.num_input_tokens_seen = self.tokens_seen


class Cycle(TrainerCallback):  # type: ignore[misc]
    """Tracks the generation cycle, and ends training at a boundary if the run must stop.

    It requests saves, so it must precede the callback that seals checkpoints.
    """

    def __init__(self, training: Any, stopping: Stopping) -> None:
        per_generation = getattr(training, "steps_per_generation", None) or 1
        self.micro_steps = per_generation * getattr(training, "num_iterations", 1)
        self.stopping = stopping
        self.boundary: Boundary | None = None
        self._done = 0  # micro-steps since training began
        self._deferred = False  # a save is due at the next boundary
        self._evaluation_deferred = False
        self._evaluates_what_is_saved = getattr(training, "load_best_model_at_end", False)
        self._between_steps = True  # the weights are at the end of an optimizer step
        self._began: float | None = None
        self._saving: float | None = None
        self._cycle_seconds: float | None = None
        self._save_seconds = SAVE_SECONDS

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the data order of an uninterrupted run."""
        loader = kwargs.get("train_dataloader")
        sampler: Any = None if loader is None else get_sampler(loader)
        # TRL's sampler shuffles by its generator's state, which resuming resets.
        if isinstance(getattr(sampler, "generator", None), torch.Generator) and not hasattr(
            sampler, "set_epoch"
        ):
            for _ in range(int(state.epoch or 0)):
                deque(sampler, maxlen=0)
        self.stopping.time_to_save = self.time_to_save

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Allow an immediate stop: after training nothing is lost."""
        self.stopping.time_to_save = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock of a cycle, which excludes logging and saving between cycles."""
        if self._began is None:
            self._began = time.monotonic()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a micro-step."""
        self._done += 1

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the weights as in transition until the end of the step."""
        self._between_steps = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save and stop at a boundary if requested; defer earlier saves to it."""
        self._done += 1
        at_boundary = self._done % self.micro_steps == 0
        if at_boundary:
            self.boundary = Boundary.taken(state)
            if self._began is not None:
                self._cycle_seconds = time.monotonic() - self._began
            self._began = None
            if self._stop_requested(args):
                control.should_save = control.should_training_stop = True
        # An epoch's last, shorter step may shift the cycle against the steps.
        due = control.should_save or self._deferred
        control.should_save = due and (at_boundary or state.global_step >= state.max_steps)
        self._deferred = due and not control.should_save
        if self._evaluates_what_is_saved:
            # The evaluated weights are the saved weights.
            evaluates = control.should_evaluate or self._evaluation_deferred
            control.should_evaluate = evaluates and not self._deferred
            self._evaluation_deferred = evaluates and self._deferred
        if control.should_save:
            # Values not yet logged would be lost with this process, and the means would differ.
            control.should_log = True
            self._saving = time.monotonic()
        self._between_steps = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop if requested during the save."""
        if self._saving is not None:
            self._save_seconds = time.monotonic() - self._saving
            self._saving = None
        if self._stop_requested(args):
            control.should_training_stop = True

    def time_to_save(self) -> float | None:
        """Return the seconds until the next boundary's checkpoint is written; None if unknown."""
        now = time.monotonic()
        if self._saving is not None:
            return max(self._saving + self._save_seconds - now, 0.0)
        if self._cycle_seconds is None:
            return None
        began = now if self._began is None else self._began
        return max(began + self._cycle_seconds - now, 0.0) + self._save_seconds

    def stands_at_boundary(self, state: Any) -> bool:
        """Return whether the weights are still unchanged since the last boundary."""
        return (
            self._between_steps
            and self.boundary is not None
            and self.boundary.step == state.global_step
        )

    def _stop_requested(self, args: Any) -> bool:
        """Return whether any process must stop; all processes must call this."""
        is_requested = self.stopping.cause is not None
        if args.world_size == 1:
            return is_requested
        anywhere = bool(reduce(torch.tensor([float(is_requested)], device=args.device)).item())
        if anywhere and not is_requested:
            self.stopping.cause = "another process was asked to"
        return anywhere

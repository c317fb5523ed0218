"""Progress output: a bar on a terminal, a line per logging step, and tables at the end."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging

from hf_rlhf.cards.results import partial_count
from hf_rlhf.formatting import counted, duration, interval, terminal_message, visible
from hf_rlhf.monitoring.monitor import RewardCallback
from hf_rlhf.rewards.composed import TOTAL, ComposedReward
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import Estimate
from hf_rlhf.storage.secrets import redact_secrets

SAMPLES_NAME = "samples.jsonl"
_WIDTH = 80
FACTS = (
    ("accuracy", "accuracy", 3),
    ("margin", "margin", 3),
    ("rewards/accuracies", "accuracy", 3),
    ("rewards/margins", "margin", 3),
    ("kl", "kl", 4),
    ("entropy", "entropy", 3),
    ("clip_ratio/region_mean", "clipped", 3),
    ("clip_ratio/policy", "clipped", 3),
    ("clip_fraction", "clipped", 3),
    ("explained_variance", "explained variance", 3),
    ("mean_token_accuracy", "token accuracy", 3),
)
"""Metrics of a logging step beside the total, most important first: key, name, decimals."""
_SHOWN = 3
"""Maximum of these metrics in a line."""
_CUT = "completions/clipped_ratio"
"""TRL's metric for the share of a step's completions that reached the length limit."""


def say(text: str) -> None:
    """Print a message above the bar, if there is one."""
    with tqdm.external_write_mode():
        print(terminal_message(text, sys.stdout), flush=True)


def disable_progress_bars() -> None:
    """Turn off the bars of transformers and datasets."""
    logging.disable_progress_bar()
    datasets.disable_progress_bars()


def remove_printers(trainer: Any) -> None:
    """Remove transformers' callbacks that print bars and dictionaries."""
    if not isinstance(trainer, Trainer):
        return
    printers = (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK)
    for callback in [*trainer.callback_handler.callbacks]:
        if type(callback) in printers:  # not a subclass, such as ours
            trainer.remove_callback(callback)


class ShowProgress(RewardCallback):
    """Prints a line for each logging step, and writes a scored completion to `samples.jsonl`.

    On a terminal a bar below the lines has the rate and the remaining time; elsewhere each line has
    them. With `log_level` info or debug a line has all metrics, not only 80 columns. The first and
    the last step are always logged, regardless of `logging_steps`: a user sees after a step that
    the run works, and very short runs have metrics.
    """

    def __init__(self, reward: ComposedReward | None, folder: Path) -> None:
        self.reward = reward
        self.path = folder / SAMPLES_NAME
        self._first, self._began = 0, time.monotonic()
        self._bar: tqdm[Any] | None = None
        self._warned = False  # that every completion was truncated

    def follow(self, reward: ComposedReward) -> None:
        """Print samples of `reward`."""
        self.reward = reward

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record time and step of the start, and delete samples of steps that will be repeated."""
        self._first, self._began = state.global_step, time.monotonic()
        shown = state.is_world_process_zero and not getattr(args, "disable_tqdm", False)
        self._bar = tqdm(
            desc="training",
            total=state.max_steps,
            initial=state.global_step,
            unit="step",
            disable=None if shown else True,  # None if stderr is not a terminal
            dynamic_ncols=True,
            leave=False,
            delay=0,
        )
        rows = [row for row in read_samples(self.path) if row["step"] <= state.global_step]
        if state.is_world_process_zero and self.path.exists():
            atomic_write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Move the bar; request the logging of the first and the last step."""
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)
        if args.logging_strategy == "steps" and state.global_step in (1, state.max_steps):
            control.should_log = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the bar."""
        self.close()

    def close(self) -> None:
        """Remove the bar, also after a failure."""
        if self._bar is not None:
            self._bar.close()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        """Print a line and write a sample."""
        if not state.is_world_process_zero or "loss" not in logs or self._bar is None:
            return
        step = f"step {state.global_step:>{len(str(state.max_steps))}}/{state.max_steps}"
        head, *facts = summary(logs)
        done, to_do = state.global_step - self._first, state.max_steps - state.global_step
        left = (time.monotonic() - self._began) / max(done, 1) * to_do
        end = () if not self._bar.disable else (f"{duration(left)} left",)
        if getattr(args, "log_level", "passive") not in ("debug", "info"):
            facts = facts[:_SHOWN]
            while facts and len("  ".join((step, head, *facts, *end))) > _WIDTH:
                facts.pop()
        say("  ".join((step, head, *facts, *end)))
        limit = getattr(args, "max_completion_length", None)
        if limit and logs.get(_CUT) == 1 and not self._warned:
            self._warned = True
            say(
                f"note: every completion was cut at `max_completion_length`, {limit} tokens. If "
                "answers are longer than that, raise it."
            )
        if self.reward is not None and self.reward.last_sample:
            row = {"step": state.global_step, **self.reward.last_sample}
            with self.path.open("a") as file:
                file.write(json.dumps(redact_secrets(row)) + "\n")


class AfterSave(TrainerCallback):  # type: ignore[misc]
    """Calls each function in `work` after a checkpoint is saved."""

    def __init__(self, work: Sequence[Callable[[], object]]) -> None:
        self.work = work

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Call the functions."""
        for work in self.work:
            work()


def summary(logs: Mapping[str, Any]) -> list[str]:
    """Return the total or the loss of a logging step, then its other metrics by importance."""
    total = logs.get(f"rewards/{TOTAL}/mean")
    if total is not None:
        # A reward may have this label itself.
        name = TOTAL if "rewards/reward/mean" in logs else "reward"
        parts = [f"{name} {total:.3f} ± {logs.get('reward_std') or 0:.3f}"]
    else:
        parts = [f"loss {logs['loss']:.4f}"]
    if abstained := logs.get(f"rewards/{TOTAL}/none"):
        parts.append(f"abstained {abstained:g}")
    if logs.get(_CUT):
        parts.append(f"truncated {logs[_CUT]:.3f}")
    for key, name, places in FACTS:
        if isinstance(logs.get(key), (int, float)):
            parts.append(f"{name} {logs[key]:.{places}f}")
    for key, value in logs.items():
        label = key.removeprefix("rewards/").removesuffix("/mean")
        if key == f"rewards/{label}/mean" and label != TOTAL and value is not None:
            parts.append(f"{label} {value:.2f}")
    return parts


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples in a file, up to a line truncated by a crash."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def evenly(rows: Sequence[Any], count: int) -> list[Any]:
    """Return at most `count` of `rows`, including the first and the last."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]


def print_results(record: RunRecord) -> None:
    """Print samples and held-out results."""
    from rich.console import Console

    console = Console()
    if record.samples:
        console.print(samples_table(record))
    if record.evaluation:
        console.print(results_table(record))


def results_table(record: RunRecord) -> Any:
    """Return held-out results before and after as a `rich` table."""
    from rich.table import Table

    evaluation = record.evaluation
    assert evaluation is not None, "there are results to show"
    table = Table(title=f"Held-out results, {evaluation.rows} rows ({evaluation.split})")
    for heading in ("metric", "before", "after", "paired difference (95%)"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for metric, after in (evaluation.after or {}).items():
        before = (evaluation.before or {}).get(metric)
        difference = (evaluation.difference or {}).get(metric)
        table.add_row(
            f"{metric}{_of_rows(evaluation.rows, after)}",
            f"{before.mean:.3f}" if before else "-",
            f"{after.mean:.3f}",
            interval(difference, signed=True) if difference else "-",
        )
    return table


def _of_rows(rows: int | None, estimate: Estimate) -> str:
    """Return the number of rows of a metric, if not all."""
    count = partial_count(rows, estimate)
    return "" if count is None else f" ({counted(count, 'row')})"


def samples_table(record: RunRecord, stages: Sequence[str] = ("before", "after")) -> Any:
    """Return a few sample completions as a `rich` table."""
    from rich.table import Table
    from rich.text import Text

    scored = bool(record.reward.rewards)
    table = Table(title="Sample completions", show_lines=True)
    for heading in ("stage", *("reward",) * scored, "completion"):
        table.add_column(heading, overflow="fold")
    there = {row.stage for row in record.samples}
    # Without `evaluation` there are only samples of training.
    for stage in stages if there & {*stages} else ("train",):
        rows = [row for row in record.samples if row.stage == stage]
        for row in rows[-2:] if stage == "train" else rows[:2]:
            reward = "none" if row.reward is None else f"{row.reward:.2f}"
            completion = (row.completion or "")[:400]
            completion += " [cut off at the token limit]" if row.truncated else ""
            table.add_row(stage, *(reward,) * scored, Text(visible(completion)))
    return table

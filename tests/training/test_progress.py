"""What a run shows while it trains, and what it advises against."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from types import SimpleNamespace

import pytest

from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training.progress import (
    ShowProgress,
    samples_table,
    summary,
)


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_the_first_and_the_last_step_are_logged_whatever_logging_steps_is(tmp_path, strategy):
    progress = ShowProgress(None, tmp_path)
    logged = []
    for step in range(1, 8):
        control = SimpleNamespace(should_log=False)
        state = SimpleNamespace(global_step=step, max_steps=7)
        progress.on_step_end(SimpleNamespace(logging_strategy=strategy), state, control)
        logged += [step] * control.should_log
    assert logged == ([1, 7] if strategy == "steps" else [])


def test_the_line_of_a_step_has_what_each_stage_logs():
    """Under the names that TRL's trainers and PPO's have for them."""
    ppo = {"loss": 0.1, "kl": 0.02, "entropy": 1.5, "clip_ratio/policy": 0.11}
    ppo |= {"explained_variance": 0.4, "rewards/total/mean": 0.5, "reward_std": 0.2}
    assert summary(ppo) == [
        *("reward 0.500 ± 0.200", "kl 0.0200", "entropy 1.500", "clipped 0.110"),
        "explained variance 0.400",
    ]
    grpo = {"loss": 0.1, "kl": 0.02, "entropy": 1.5, "clip_ratio/region_mean": 0.11}
    assert summary(grpo) == ["loss 0.1000", "kl 0.0200", "entropy 1.500", "clipped 0.110"]
    grpo["completions/clipped_ratio"] = 0.0
    assert not any("truncated" in text for text in summary(grpo))
    grpo["completions/clipped_ratio"] = 0.25
    assert summary(grpo)[1] == "truncated 0.250", "what is wrong stands first"
    dpo = {"loss": 0.6, "mean_token_accuracy": 0.5, "entropy": 1.5}
    dpo |= {"rewards/accuracies": 0.75, "rewards/margins": 0.3}
    assert summary(dpo)[:3] == ["loss 0.6000", "accuracy 0.750", "margin 0.300"]


@pytest.mark.parametrize(("level", "shown"), [("passive", False), ("info", True)])
def test_a_line_fits_80_columns_unless_all_numbers_are_wanted(tmp_path, capsys, level, shown):
    progress = ShowProgress(None, tmp_path)
    args = SimpleNamespace(log_level=level)
    state = SimpleNamespace(global_step=0, max_steps=10_000, is_world_process_zero=True)
    progress.on_train_begin(args, state, None)
    state.global_step = 9_999
    numbers = {"loss": 0.1, "kl": 0.02, "entropy": 1.5, "clip_ratio/policy": 0.11}
    numbers |= {f"rewards/{label}/mean": 0.5 for label in ("total", "correct", "short")}
    progress.on_log(args, state, None, numbers)
    line = capsys.readouterr().out.rstrip("\n")
    assert line.startswith("step  9999/10000  reward 0.500 ± 0.000  kl 0.0200  entropy 1.500")
    assert line.endswith("0 s left")
    assert (len(line) > 80) == shown
    assert ("short 0.50" in line) == shown


def test_that_every_completion_was_cut_is_said_once_and_why(tmp_path, capsys):
    progress = ShowProgress(None, tmp_path)
    args = SimpleNamespace(max_completion_length=8)
    state = SimpleNamespace(global_step=0, max_steps=4, is_world_process_zero=True)
    progress.on_train_begin(args, state, None)
    for step, cut in enumerate([0.9, 1.0, 1.0], start=1):
        state.global_step = step
        progress.on_log(args, state, None, {"loss": 0.1, "completions/clipped_ratio": cut})
        notes = capsys.readouterr().out.count("note: every completion was cut at `max_completion_l")
        assert notes == (step == 2)


def test_samples_of_training_are_shown_where_no_others_are():
    def sample(stage, text):
        return {"stage": stage, "reward": 0.5, "completion": text}

    def shown(*samples):
        table = samples_table(RunRecord(samples=samples, reward={"rewards": [{"label": "a"}]}))
        return [str(cell) for cell in table.columns[-1].cells]

    trained = [sample("train", text) for text in "abc"]
    assert shown(*trained) == ["b", "c"]
    assert shown(sample("before", "x"), *trained, sample("after", "y")) == ["x", "y"]
    assert shown(sample("after", "\x1b]52;c;x\x07")) == [r"\u001b]52;c;x\u0007"]
    cut = {**sample("after", "on and on"), "truncated": True}
    assert shown(cut) == ["on and on [cut off at the token limit]"]


_BAR = """
import sys
from pathlib import Path
from types import SimpleNamespace
from hf_rlhf.training.progress import ShowProgress, say
args = SimpleNamespace(logging_strategy="steps")
state = SimpleNamespace(global_step=2, max_steps=4, is_world_process_zero=True)
progress = ShowProgress(None, Path(sys.argv[1]))
progress.on_train_begin(args, state, None)
for state.global_step in (3, 4):
    progress.on_step_end(args, state, SimpleNamespace(should_log=False))
    progress.on_log(args, state, None, {"loss": 0.5})
say("note: " + "two words " * 12)
progress.close()
"""


def _in_terminal(*command):
    """Return what a command writes to a terminal of 60 columns and to nothing else."""
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    environment.pop("NO_COLOR", None)
    done = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    written = b""
    with suppress(OSError):  # the end, on Linux
        while chunk := os.read(reader, 65536):
            written += chunk
    os.close(reader)
    assert done.wait() == 0
    return written.decode()


@pytest.mark.slow
def test_a_terminal_gets_a_bar_and_a_pipe_only_lines(tmp_path):
    script = (sys.executable, "-c", _BAR, str(tmp_path))
    piped = subprocess.run(script, capture_output=True, text=True, check=True)
    assert piped.stdout.startswith("step 3/4  loss 0.5000  0 s left\nstep 4/4")
    assert "training:" not in piped.stdout + piped.stderr
    assert piped.stdout.endswith("note: " + "two words " * 12 + "\n")
    shown = _in_terminal(*script)
    assert "training:  50%" in shown, "of a run that is resumed"
    assert "4/4 [" in shown
    assert "\x1b[33mnote:" in shown

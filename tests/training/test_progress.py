"""What a run shows while it trains, and what it advises against."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training.progress import (
    ShowProgress,
    results_table,
    samples_table,
    summary_line,
    truncation_note,
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
    assert summary_line(ppo) == (
        "reward 0.500 ± 0.200  kl 0.0200  entropy 1.500  ratio clipped 0.110  "
        "explained variance 0.400"
    )
    grpo = {"loss": 0.1, "kl": 0.02, "entropy": 1.5, "clip_ratio/region_mean": 0.11}
    assert summary_line(grpo) == "loss 0.1000  kl 0.0200  entropy 1.500  ratio clipped 0.110"
    grpo["completions/clipped_ratio"] = 0.0
    assert "truncated" not in summary_line(grpo)
    grpo["completions/clipped_ratio"] = 0.25
    assert summary_line(grpo).endswith("ratio clipped 0.110  truncated 0.250")
    dpo = {"loss": 0.6, "rewards/accuracies": 0.75, "rewards/margins": 0.3, "entropy": 1.5}
    assert summary_line(dpo) == "loss 0.6000  accuracy 0.750  margin 0.300  entropy 1.500"


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


def test_that_most_held_out_completions_were_cut_is_said_at_the_end():
    def record(share):
        cut = {"mean": share, "low": share, "high": share, "n": 4}
        after = {"truncated": cut} if share is not None else {"loss": cut}
        sampling = {"max_new_tokens": 8} if share is not None else {}
        return RunRecord(evaluation={"after": after, "sampling": sampling})

    assert truncation_note(record(1.0)).startswith(
        "100.0% of the held-out completions after training"
    )
    assert "8 tokens" in truncation_note(record(0.75))
    assert [truncation_note(one) for one in (record(0.25), record(None), RunRecord())] == [""] * 3


def test_the_table_shows_no_interval_where_there_is_none():
    def estimate(mean, low, high, n):
        return {"mean": mean, "low": low, "high": high, "n": n}

    found = {
        "one": estimate(1.0, 1.0, 1.0, 1),
        "alike": estimate(0.0, 0.0, 0.0, 1200),
        "some": estimate(0.5, 0.25, 0.75, 4),
    }
    # Only the first is not of all four rows.
    evaluation = {"rows": 4, "split": "test", "after": found, "difference": found}
    table = results_table(RunRecord(evaluation=evaluation))
    assert [*table.columns[-1].cells] == [
        "+1.000 (one row)",
        "0 (all 1,200 alike)",
        "+0.500 [+0.250, +0.750]",
    ]
    assert [*table.columns[0].cells] == ["one (1 row)", "alike", "some"]


def test_a_reward_that_is_labelled_reward_is_not_taken_for_the_total():
    one = {"loss": 0.1, "rewards/total/mean": 0.5, "rewards/correct/mean": 0.25}
    assert summary_line(one) == "reward 0.500 ± 0.000  correct 0.25"
    both = {**one, "rewards/reward/mean": 0.75}
    assert summary_line(both) == "total 0.500 ± 0.000  correct 0.25  reward 0.75"


def test_samples_of_training_are_shown_where_no_others_are():
    def sample(stage, text):
        return {"stage": stage, "reward": 0.5, "completion": text}

    def shown(*samples):
        table = samples_table(RunRecord(samples=samples, reward={"rewards": [{"label": "a"}]}))
        return [str(cell) for cell in table.columns[-1].cells]

    trained = [sample("train", text) for text in "abc"]
    assert shown(*trained) == ["b", "c"]
    assert shown(sample("before", "x"), *trained, sample("after", "y")) == ["x", "y"]


@pytest.mark.slow
def test_a_quiet_launch_ends_with_our_message():
    """As the README says; without `--quiet` accelerate adds a traceback of itself."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--cpu"]
    command += ["--num_processes", "1", "-m", "hf_rlhf.train", "--plugin", "no_such_trainer"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "no_such_trainer" in done.stderr
    assert "Traceback" not in done.stderr

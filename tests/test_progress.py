"""What a run shows while it trains, and what it advises against."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from hf_rlhf.check import check
from hf_rlhf.config import RunFile
from hf_rlhf.preflight import advice
from hf_rlhf.prepare import prepare
from hf_rlhf.progress import ShowProgress, samples_table, summary_line


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
        "reward 0.500 ± 0.200  kl 0.0200  entropy 1.500  clipped 0.110  explained variance 0.400"
    )
    grpo = {"loss": 0.1, "kl": 0.02, "entropy": 1.5, "clip_ratio/region_mean": 0.11}
    assert summary_line(grpo) == "loss 0.1000  kl 0.0200  entropy 1.500  clipped 0.110"
    dpo = {"loss": 0.6, "rewards/accuracies": 0.75, "rewards/margins": 0.3, "entropy": 1.5}
    assert summary_line(dpo) == "loss 0.6000  accuracy 0.750  margin 0.300  entropy 1.500"


def test_a_reward_that_is_labelled_reward_is_not_taken_for_the_total():
    one = {"loss": 0.1, "rewards/total/mean": 0.5, "rewards/correct/mean": 0.25}
    assert summary_line(one) == "reward 0.500 ± 0.000  correct 0.25"
    both = {**one, "rewards/reward/mean": 0.75}
    assert summary_line(both) == "total 0.500 ± 0.000  correct 0.25  reward 0.75"


def test_samples_of_training_are_shown_where_no_others_are():
    def sample(stage, text):
        return {"stage": stage, "reward": 0.5, "completion": text}

    def shown(*samples):
        table = samples_table({"samples": samples, "reward": {"rewards": [1]}})
        return [str(cell) for cell in table.columns[-1].cells]

    trained = [sample("train", text) for text in "abc"]
    assert shown(*trained) == ["b", "c"]
    assert shown(sample("before", "x"), *trained, sample("after", "y")) == ["x", "y"]


@pytest.mark.slow
def test_bf16_on_a_cpu_is_advised_against_and_nothing_else(tiny_run):
    def run(**settings):
        return prepare(RunFile.from_mapping({**tiny_run, **settings}))

    assert advice(run()) == []
    slow = run(bf16=True)
    assert "`--bf16 false`" in advice(slow)[0]
    shown = [finding for finding in check(slow) if finding.what == "advice"]
    assert [(finding.status, finding.said) for finding in shown] == [("note", advice(slow)[0])]


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

"""The trainer of iterative DPO: what it refuses, what it writes, what it says."""

import re
from dataclasses import dataclass

import pytest

from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.data.messages import text_of
from hf_rlhf.errors import ConfigError, RewardError, RunFolderError
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.testing import check_trainer
from hf_rlhf_classic.iterative_dpo import IterativeDPOTrainer
from hf_rlhf_classic.iterative_dpo_config import IterativeDPOConfig
from hf_rlhf_classic.iterative_dpo_measures import paired_gain, reason_to_stop
from hf_rlhf_classic.iterative_dpo_rounds import Rounds

TINY = {
    "plugin": "iterative_dpo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "dataset": {"name": "tastes", "train_rows": 16, "test_rows": 8},
    "rewards": [{"name": "known_utility", "label": "utility"}],
    **{"use_peft": True, "lora_r": 4, "lora_target_modules": ["all-linear"]},
    **{"iterations": 2, "prompts_per_iteration": 8, "completions_per_prompt": 3},
    **{"rollout_batch_size": 12, "max_completion_length": 12, "measured_prompts": 8},
    **{"per_device_train_batch_size": 4, "learning_rate": 1e-2, "max_length": 64},
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "logging_steps": 1, "save_steps": 2, "seed": 5},
}
ON_CPU = {"use_cpu": True, "bf16": False, "output_dir": "nowhere"}


def rounds_in(folder):
    rounds = Rounds.__new__(Rounds)
    rounds.folder = folder
    return rounds


def config(**given):
    return IterativeDPOConfig(**ON_CPU, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rollout_batch_size": 2}, "does not hold the 4 completions of one prompt"),
        ({"max_steps": 9, "steps_per_iteration": 4}, "is not iterations 3 x"),
        ({"steps_per_iteration": 0}, "expected 1 up"),
        ({"stop_without_gain": True, "measured_prompts": 0}, "needs `measured_prompts`"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        config(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"eval_strategy": "steps"}, "eval_strategy: .*measured_prompts"),
        ({"num_train_epochs": 2}, "num_train_epochs: .*steps_per_iteration"),
        ({"train_sampling_strategy": "random"}, "train_sampling_strategy: has no effect"),
        ({"loss_type": ["bogus"]}, "loss_type: 'bogus' is unknown"),
        ({"completions_per_prompt": 1}, "completions_per_prompt: should be "),
        ({"temperature": 0.0}, "temperature: should be greater than 0"),
        ({"beta": 0.0}, "beta: is 0"),
    ],
)
def test_settings_of_dpo_that_mean_nothing_here_or_end_training(tmp_path, given, said):
    run = {**TINY, "output_dir": str(tmp_path), **given}
    with pytest.raises(ConfigError, match=re.compile(said, re.S)):
        resolve_run(RunFile.from_mapping(run))


@pytest.mark.parametrize(("measured", "warned"), [(8, False), (500, True)])
def test_that_fewer_prompts_are_held_out_than_asked_for_is_said(tmp_path, measured, warned):
    given = {**TINY, "output_dir": str(tmp_path), "measured_prompts": measured}
    run = resolve_run(RunFile.from_mapping(given))
    advice = run.trainer_class.advice(run)
    assert any("measured_prompts is 500" in each for each in advice) == warned


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"prompts_per_iteration": 100, "per_device_train_batch_size": 8}, 13),
        ({"prompts_per_iteration": 10, "pairs": "all", "per_device_train_batch_size": 8}, 8),
        ({"steps_per_iteration": 7, "buffer": "full"}, 7),
        ({"prompts_per_iteration": 64, "gradient_accumulation_steps": 4}, 2),
    ],
)
def test_an_iteration_has_as_many_steps_whatever_the_buffer(given, steps):
    made = config(**given)
    assert (made.steps_per_iteration, made.max_steps) == (steps, 3 * steps)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts_per_iteration": 17}, "is 17, and the dataset has 16 training rows"),
        ({"max_length": 12}, "completions have up to 12"),
        ({"rewards": []}, "no completion is preferred"),
        (
            {"evaluation": {"split": "validation"}},
            "no rows are held out ('validation')",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_weights_load(given, said, tmp_path, monkeypatch):
    monkeypatch.setattr(IterativeDPOTrainer, "from_run", None)
    with pytest.raises(ConfigError) as refused:
        train(config={**TINY, **given}, output_dir=str(tmp_path / "run"))
    assert said in str(refused.value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of two iterations, and its record."""
    folder = tmp_path_factory.mktemp("iterative") / "run"
    return folder, train(config={**TINY, "buffer": "full"}, output_dir=str(folder))


def test_the_log_has_each_iteration_once_and_the_steps_of_all(trained):
    _, record = trained
    history = record.training.history
    assert [entry["iteration"] for entry in history if "iteration" in entry] == [1, 2]
    assert [entry["policy"] for entry in history if "policy" in entry] == [0, 1, 2]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4]
    rates = [entry["learning_rate"] for entry in history if "loss" in entry]
    assert rates == sorted(rates, reverse=True), "one schedule spans all iterations"
    assert len(set(rates)) == 4


def test_before_the_first_step_the_policy_is_its_reference(trained):
    _, record = trained
    history = record.training.history
    first = next(entry for entry in history if "loss" in entry)
    assert first["rewards/chosen"] == pytest.approx(0, abs=1e-4)
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)
    kl = [entry["kl/sequence"] for entry in history if "policy" in entry]
    assert kl[0] == 0 < min(kl[1:])


def test_the_run_folder_has_what_was_sampled(trained):
    folder, record = trained
    rounds = rounds_in(folder / "iterations")
    for policy in range(2):
        rows = rounds.rows_of(policy, "rollouts")
        assert len({row["row"] for row in rows}) == len(rows) == 8
        rewards = [one["reward"] for row in rows for one in row["completions"]]
        assert len(rewards) == 24
        logged = next(e for e in record.training.history if e.get("iteration") == policy + 1)
        assert logged["rollouts/reward"] == pytest.approx(sum(rewards) / 24)
        assert logged["rollouts/utility"] == logged["rollouts/reward"]
    assert not rounds.rows_of(2, "rollouts")
    assert len(rounds.rows_of(2, "held_out")) == 8


def test_the_full_buffer_grows_and_trains_as_many_pairs(trained):
    _, record = trained
    first, second = [e for e in record.training.history if "iteration" in e]
    assert second["pairs/buffer"] == first["pairs/new"] + second["pairs/new"]
    assert second["pairs/passes"] == 8 / second["pairs/buffer"]


@dataclass
class Indifferent:
    """Likes everything as well, after `varied` calls in which it does not."""

    varied: int = 0
    calls: int = 0

    def __call__(self, prompts, completions, **_):
        self.calls += 1
        if self.calls <= self.varied:
            return [float(len(text_of(completion))) for completion in completions]
        return [1.0 for _ in completions]


def test_a_reward_that_does_not_vary_stops_the_run(offer, tmp_path):
    offer("rewards", indifferent=Indifferent)
    given = {**TINY, "rewards": [{"name": "indifferent"}], "measured_prompts": 0}
    with pytest.raises(RewardError, match=r"iteration 1 has no pairs.*0 pairs of 8 prompts \(8 ti"):
        train(config={**given, "on_no_pairs": "reuse"}, output_dir=str(tmp_path / "run"))


@pytest.mark.slow
def test_when_asked_to_an_iteration_without_pairs_reuses_the_buffer(offer, tmp_path):
    offer("rewards", indifferent=Indifferent)
    given = {**TINY, "rewards": [{"name": "indifferent", "varied": 2}], "measured_prompts": 0}
    with pytest.raises(RewardError, match="iteration 2 has no pairs"):
        train(config=given, output_dir=str(tmp_path / "stops"))
    record = train(config={**given, "on_no_pairs": "reuse"}, output_dir=str(tmp_path / "goes_on"))
    first, second = [e for e in record.training.history if "iteration" in e]
    assert (second["pairs/new"], second["pairs/tied"]) == (0, 8)
    assert second["pairs/buffer"] == first["pairs/buffer"] > 0


def test_gains_are_paired_and_say_when_there_are_none():
    before = [{"reward": reward} for reward in (1.0, 5.0, 9.0, None, 3.0)]
    after = [{"reward": reward} for reward in (1.5, 5.5, 9.25, 4.0, 3.75)]
    gain = paired_gain(before, after)
    assert (gain.mean, gain.n, gain.low > 0) == (0.5, 4, True)
    history = [
        {"policy": 1, "held_out/gain_low": 0.1},
        {"policy": 2, "held_out/gain_low": -0.1},
        {"policy": 3},
    ]
    gained, stopped, unknown = (reason_to_stop(history, policy) for policy in (1, 2, 3))
    assert gained is None
    assert "includes 0" in stopped
    assert "no held-out prompt has a reward both before and after it" in unknown


def test_an_iteration_that_is_missing_from_the_folder_is_reported(tmp_path):
    rounds = rounds_in(tmp_path)
    rounds.files(0).write("rollouts", 0, [1, 2])
    with pytest.raises(RunFolderError, match=r"policy-0000 has 2 of 3 rollouts"):
        rounds._earlier_rows(0, "rollouts", 3)


def test_another_runs_iterations_are_copied_and_none_replaced(tmp_path):
    theirs, ours = rounds_in(tmp_path / "theirs"), rounds_in(tmp_path / "ours")
    for policy in range(2):
        theirs.files(policy).write("rollouts", 0, ["theirs"])
    ours.files(0).write("rollouts", 0, ["ours"])
    ours.copy_missing(theirs.folder)
    assert [ours.rows_of(policy, "rollouts") for policy in range(2)] == [["ours"], ["theirs"]]


CONFORMANCE = {
    **{"prompts_per_iteration": 4, "completions_per_prompt": 3, "measured_prompts": 4},
    **{"per_device_train_batch_size": 2, "activation_checkpointing": False},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"iterations": 2, "buffer": "full", "use_peft": True},
        {"iterations": 1, "reference": "previous"},
        {
            "iterations": 2,
            "max_steps": 4,
            "pairs": "all",
            "reference": "previous",
            "use_peft": True,
        },
    ],
)
def test_it_keeps_the_contract_of_trainers(given):
    check_trainer(
        IterativeDPOTrainer,
        settings={**CONFORMANCE, "lora_target_modules": ["all-linear"], **given},
    )

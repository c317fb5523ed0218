"""What trainers compute at once and hold, from which a run's memory is counted."""

from types import SimpleNamespace

import pytest

from hf_rlhf.contracts import HeldModel
from hf_rlhf_classic.iterative_dpo import IterativeDPOTrainer
from hf_rlhf_classic.ppo_models import step_shape
from hf_rlhf_classic.reference import held_reference

PPO = {"per_device_train_batch_size": 32, "num_mini_batches": 2, "micro_batch_size": 4}
PPO |= {"rollout_micro_batch_size": None, "value": "policy_adapter", "value_model_path": None}
PPO |= {"reference": "initial", "reference_model_path": None}
PPO |= {"reward_adapter": None, "reward_model_path": None}


def run_of(adapter=None, use_peft=True, **settings):
    model = SimpleNamespace(use_peft=use_peft)
    return SimpleNamespace(training=SimpleNamespace(**settings), model=model, adapter=adapter)


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, {}),
        ({"adapter": "folder"}, {"reference": HeldModel(adapter=True)}),
        ({"value": "own_adapter"}, {"value": HeldModel(trained=True, adapter=True)}),
        (
            {"value": "own_model", "reference_model_path": "ref", "reward_model_path": "rm"},
            {"value": HeldModel(trained=True), "reference": HeldModel("ref")}
            | {"reward": HeldModel("rm")},
        ),
        ({"reward_adapter": "a"}, {"reward": HeldModel(adapter=True)}),
    ],
)
def test_the_four_roles_of_ppo(changes, held):
    shape = step_shape(run_of(**{**PPO, **changes}))
    assert shape.held == held
    assert (shape.rows, shape.sampled_rows, shape.accumulates) == (4, 32, True)


@pytest.mark.parametrize(
    ("settings", "held"),
    [
        ({"beta": 0.1}, {}),
        ({"beta": 0.1, "use_peft": False}, {"reference": HeldModel()}),
        ({"beta": 0.0, "use_peft": False}, {}),
        ({"beta": 0.1, "use_peft": False, "precompute_ref_log_probs": True}, {}),
        ({"beta": 0.1, "adapter": "folder"}, {"reference": HeldModel(adapter=True)}),
        (
            {"beta": 0.1, "use_peft": False, "reference": "cpu_offload"},
            {"reference": HeldModel(in_host=True)},
        ),
    ],
)
def test_the_references_of_trl(settings, held):
    assert held_reference(run_of(**settings)) == held


def test_iterative_dpo_samples_its_own_batch_and_holds_a_reference():
    settings = {"per_device_train_batch_size": 2, "rollout_batch_size": 64, "beta": 0.1}
    shape = IterativeDPOTrainer.step_shape(run_of(use_peft=False, **settings))
    assert (shape.rows, shape.sampled_rows) == (4, 64)
    assert shape.held == {"reference": HeldModel()}

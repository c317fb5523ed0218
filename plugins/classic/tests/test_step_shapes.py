"""What trainers compute at once and hold, from which a run's memory is counted."""

from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM, MixtralConfig

from hf_rlhf.cli import main
from hf_rlhf.contracts import HeldModel
from hf_rlhf_classic.iterative_dpo import IterativeDPOTrainer
from hf_rlhf_classic.ppo_models import step_shape
from hf_rlhf_classic.reference import held_reference
from hf_rlhf_classic.shares_prompt import Sharing

PPO = {"per_device_train_batch_size": 32, "num_mini_batches": 2, "micro_batch_size": 4}
PPO |= {"rollout_micro_batch_size": None, "value": "policy_adapter"}
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


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({"router_aux_loss_coef": None}, True),
        ({"router_aux_loss_coef": 0.1}, True),
        ({"router_aux_loss_coef": 0.0}, False),
    ],
)
def test_no_prompt_is_shared_under_an_auxiliary_loss(settings, off):
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = MixtralConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    trainer = SimpleNamespace(
        model=AutoModelForCausalLM.from_config(config),
        args=SimpleNamespace(torch_compile=False, share_prompt=None, **settings),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model, is_main_process=False),
    )
    assert ("auxiliary loss" in Sharing(trainer).reason) == off


@pytest.mark.slow
def test_a_change_is_of_a_setting_that_the_trainer_has(capsys):
    assert main(["memory", "--plugin", "online_dpo", "--max_new_tokens", "32"]) == 0
    assert "max_new_tokens: 16 (longer rows are cut)" in capsys.readouterr().out

"""What PPO's own lines on the model card say."""

from types import SimpleNamespace
from typing import Any

from hf_rlhf_classic.ppo_card import facts


def training(**changed: Any) -> Any:
    settings = {
        **{"rollout_batch_size": None, "per_device_train_batch_size": 8, "world_size": 2},
        **{"num_ppo_epochs": 2, "num_mini_batches": 4, "temperature": 0.7, "top_p": 1.0},
        **{"kl_coef": 0.1, "kl_target": None, "kl_horizon": 10000, "kl_estimator": "k1"},
        **{"reward_adapter": None, "reward_model_path": None, "learned_reward_weight": 1.0},
        **{"cliprange": 0.2, "value_learning_rate": None},
    }
    return SimpleNamespace(**{**settings, **changed})


def test_rollouts_count_completions_and_updates_of_a_step() -> None:
    rollouts = facts(training(), composed=True)["Rollouts"]
    assert rollouts.startswith("16 completions and 8 updates per step, one completion per prompt")
    assert facts(training(rollout_batch_size=128), composed=True)["Rollouts"].startswith("128 comp")


def test_a_fixed_kl_coefficient_has_no_horizon() -> None:
    assert facts(training(), composed=True)["KL"] == "`kl_coef = 0.1`, `kl_estimator = k1`"
    assert "`kl_horizon = 10000`" in facts(training(kl_target=6.0), composed=True)["KL"]


def test_the_learned_reward_is_named_where_there_is_one() -> None:
    assert "Learned reward" not in facts(training(), composed=True)
    assert "Value function" not in facts(training(), composed=True)
    learned = training(reward_adapter="runs/reward/adapter")
    line = facts(learned, composed=True)["Learned reward"]
    assert line.startswith("`reward_adapter = runs/reward/adapter`, `learned_reward_weight = 1`")
    assert "not in the held-out `total`" in line
    assert "total" not in facts(learned, composed=False)["Learned reward"]

"""What PPO's model card says of its setup, beside what every trainer's says."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.formatting import counted, settings_line

_LOSS = (
    *("cliprange", "cliprange_value", "vf_coef", "gamma", "lam", "num_ppo_epochs"),
    "num_mini_batches",
)


def facts(training: Any, *, composed: bool) -> Mapping[str, str]:
    """Return lines of the card by title, as Markdown, without those that say nothing.

    Args:
        training: a `PPOConfig`.
        composed: whether the run file has rewards beside the learned one.
    """
    settings = vars(training)
    lines = {
        "Learned reward": _learned(settings, composed),
        "KL": _kl(settings),
        "Loss": settings_line(settings, *_LOSS),
        "Rollouts": _rollouts(training),
        "Value function": settings_line(settings, "value_learning_rate"),
    }
    return {title: text for title, text in lines.items() if text}


def _learned(settings: Mapping[str, Any], composed: bool) -> str:
    model = settings_line(settings, "reward_adapter", "reward_model_path")
    if not model:
        return ""
    names = ("learned_reward_weight", "score_normalisation", "score_clip")
    added = "; added to the composed rewards in training, not in the held-out `total`"
    return f"{model}, {settings_line(settings, *names)}{added if composed else ''}"


def _kl(settings: Mapping[str, Any]) -> str:
    names = ["kl_coef", "kl_estimator"]
    if settings["kl_target"] is not None:
        names[1:1] = ["kl_target", "kl_horizon"]
    return settings_line(settings, *names)


def _rollouts(training: Any) -> str:
    batch = training.rollout_batch_size
    if batch is None:
        batch = training.per_device_train_batch_size * training.world_size
    updates = training.num_ppo_epochs * training.num_mini_batches
    return (
        f"{counted(batch, 'completion')} and {counted(updates, 'update')} per step, one completion "
        f"per prompt, {settings_line(vars(training), 'temperature', 'top_p')}"
    )

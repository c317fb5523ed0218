"""The rewards of a PPO run: its composed rewards and, optionally, a learned reward."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from hf_rlhf.evaluation import Evaluation, evaluate
from hf_rlhf.models import completion_length
from hf_rlhf.monitoring import RewardCallback
from hf_rlhf.rewards import Abstentions, ComposedReward, Part
from hf_rlhf.runs import Run
from hf_rlhf_classic.encoding import ended, joined, tokens
from hf_rlhf_classic.ppo_config import PPOConfig

ScoreIds = Callable[[list[list[int]]], list[float]]
"""Token ids of prompt and completion -> a score for each."""


class AdapterScore:
    """The score of the reward adapter on the policy's own base.

    It reads a text as in the reward model's training: with the chat template for messages, else
    with the end-of-sequence token, even after a truncated completion.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.score: ScoreIds | None = None
        """Set by the trainer, which has the model."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return a score per completion."""
        assert self.score is not None
        return self.score(
            [
                list(tokens(self.tokenizer, joined(prompt, ended(self.tokenizer, completion))))
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
        )


_IN_TRAINING: WeakKeyDictionary[Any, Part] = WeakKeyDictionary()
"""Policy -> the learned reward of its training, so that measuring need not reload it."""


def composed_reward(run: Run, learned: AdapterScore | None, policy: Any) -> ComposedReward:
    """Return the run's rewards and gates, plus the learned reward.

    The run's callbacks use it too, so that they show the actual reward.
    """
    rewards, gates = (run.reward.rewards, run.reward.gates) if run.reward else ((), ())
    extra = learned_part(run) if learned is None else _adapter_part(run, learned)
    if extra is None:
        assert run.reward is not None
        return run.reward
    _IN_TRAINING[policy] = extra
    abstentions = Abstentions(run.spec.limits.max_steps_without_reward)
    composed = ComposedReward((*rewards, extra), gates, abstentions=abstentions)
    for callback in run.callbacks:
        if isinstance(callback, RewardCallback):
            callback.follow(composed)
    return composed


def learned_part(run: Run) -> Part | None:
    """Return the learned reward as a separate model, loaded on first use."""
    from hf_rlhf_classic.scoring import RewardModel

    training, base = run.training, run.model
    if training.reward_adapter:
        return _adapter_part(
            run,
            RewardModel(
                base.model_name_or_path,
                adapter=training.reward_adapter,
                revision=base.model_revision,
                dtype=base.dtype,
            ),
        )
    if training.reward_model_path:
        model = RewardModel(training.reward_model_path)
        return Part("reward_model", model, training.learned_reward_weight)
    return None


def learned_entries(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the learned reward as an entry of a run file's `rewards`, for its validation."""
    adapter, model = settings.get("reward_adapter"), settings.get("reward_model_path")
    if not adapter and not model:
        return []
    names = {"revision": "model_revision", "dtype": "dtype"} if adapter else {}
    arguments = {"model": settings.get("model_name_or_path") if adapter else model}
    arguments |= {"adapter": adapter} if adapter else {}
    arguments |= {name: settings[key] for name, key in names.items() if settings.get(key)}
    weight = settings.get("learned_reward_weight", PPOConfig.learned_reward_weight)
    label = "reward_adapter" if adapter else "reward_model"
    return [{"name": "reward_model", "label": label, "weight": weight, **arguments}]


def _adapter_part(run: Run, score: Callable[..., Any]) -> Part:
    return Part("reward_adapter", score, run.training.learned_reward_weight)


def held_out(run: Run, model: Any, model_kwargs: Mapping[str, Any]) -> Evaluation | None:
    """Score a saved policy's completions to held-out prompts with the learned reward.

    They are sampled by the run's `evaluation`, and so are the completions that its own rewards
    score. Without such rewards the weighted learned reward is also the total. None without a
    learned reward.
    """
    saved = isinstance(model, (str, Path))
    part, spec = learned_part(run) if saved else _IN_TRAINING.get(model), run.spec.evaluation
    if part is None or spec is None:
        return None
    result = evaluate(
        model,
        run.tokenizer,
        run.dataset[spec.split],
        ComposedReward((part,)),
        spec,
        max_new_tokens=completion_length(run),
        device=str(run.training.device),
        model_kwargs=model_kwargs,
        chat_template_kwargs=run.training.chat_template_kwargs,
    )
    # With rewards of its own, the run already has their total and the lengths.
    names = result.metrics() if run.reward is None else (part.label,)
    rows = [{name: row[name] for name in names} for row in result.rows]
    # Core shows samples in any case.
    return Evaluation(rows, (), result.completions_per_prompt)

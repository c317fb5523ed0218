"""The rewards of a PPO run: those that it composes, and a learned one among them if it has one."""

from collections.abc import Callable, Sequence
from typing import Any

from hf_rlhf.compose import ComposedReward, Part
from hf_rlhf.progress import ShowProgress
from hf_rlhf.run import Run
from hf_rlhf_classic.encoding import ended, joined, tokens

ScoreIds = Callable[[list[list[int]]], list[float]]
"""Token ids of prompt and completion -> one score for each."""


class AdapterScore:
    """The score of the reward adapter on the policy's own base.

    It reads a text as the reward model was trained to: with the chat template for messages, else
    with the end-of-sequence token, also after a completion that was cut.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.score: ScoreIds | None = None
        """Set by the trainer, which has the model."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return one score per completion."""
        assert self.score is not None
        return self.score(
            [
                list(tokens(self.tokenizer, joined(prompt, ended(self.tokenizer, completion))))
                for prompt, completion in zip(prompts, completions, strict=True)
            ]
        )


def composed_reward(run: Run, learned: AdapterScore | None) -> ComposedReward:
    """Return the run's rewards and gates, and the learned reward as one more.

    What keeps samples of completions is told, so that it shows what is really rewarded.
    """
    training = run.training
    rewards, gates = (run.reward.rewards, run.reward.gates) if run.reward else ((), ())
    weight = training.learned_reward_weight
    if learned is not None:
        extra = Part("reward_adapter", learned, weight)
    elif training.reward_model_path:
        from hf_rlhf_classic.scoring import RewardModel

        extra = Part("reward_model", RewardModel(training.reward_model_path), weight)
    else:
        assert run.reward is not None
        return run.reward
    composed = ComposedReward((*rewards, extra), gates)
    for callback in run.callbacks:
        if isinstance(callback, ShowProgress):
            callback.reward = composed
    return composed

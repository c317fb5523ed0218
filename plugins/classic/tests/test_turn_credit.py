"""Credit by turn: unbiased where the policy decides when to stop, and TRL's where it is equal."""

from itertools import product

import pytest
import torch

from hf_rlhf.errors import ConfigError, RewardError
from hf_rlhf.rewards import ComposedReward, Part
from hf_rlhf_classic.grpo import GroupTrainer
from hf_rlhf_classic.turn_credit import TurnCredit, corrections, turn_of_tokens

SETTINGS = {
    **{"plugin": "grpo", "model_name_or_path": "package://hf_rlhf_worlds/tiny_caller"},
    **{"environment": "calculator", "max_steps": 2, "per_device_train_batch_size": 8},
    **{"num_generations": 4, "max_completion_length": 48, "max_tool_calling_iterations": 3},
    **{"learning_rate": 1e-3, "use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "warmup_steps": 0,
    },
    **{"scale_rewards": "none"},
}
GROUP = 2
EARNED = (0.0, 3.0, -1.0)
"""What a turn earns, by its place: the second is worth going on for, the third is not."""


def trajectories(going_on, outcome):
    """Yield (probability, gradient of each turn's log-probability, earned by turn, outcome)."""
    for length in (1, 2, 3):
        probability, gradients = torch.tensor(1.0, dtype=torch.float64), []
        for turn in range(length):
            stops = turn == length - 1
            if turn == 2:
                gradients.append(torch.zeros(2, dtype=torch.float64))
                continue
            p = going_on[turn]
            probability = probability * ((1 - p) if stops else p)
            gradient = torch.zeros(2, dtype=torch.float64)
            gradient[turn] = -p if stops else 1 - p  # of log sigmoid, by the logit
            gradients.append(gradient)
        yield probability, gradients, EARNED[:length], outcome[length - 1]


def expected_estimate(advantages, logits, outcome):
    """Return the exact mean of the estimate over all groups, by enumeration."""
    going_on = torch.sigmoid(logits)
    mean = torch.zeros(2, dtype=torch.float64)
    for group in product(list(trajectories(going_on, outcome)), repeat=GROUP):
        probability = torch.stack([each[0] for each in group]).prod()
        found = advantages([each[2] for each in group], [each[3] for each in group])
        for (_, gradients, *_), own in zip(group, found, strict=True):
            for gradient, advantage in zip(gradients, own, strict=True):
                mean += probability * advantage * gradient / GROUP
    return mean


def ours(turns, outcomes):
    totals = [sum(each) + outcome for each, outcome in zip(turns, outcomes, strict=True)]
    taken = corrections(totals, turns, GROUP)
    mean = sum(totals) / GROUP
    return [
        [total - mean - past for past in own[: len(each)]]
        for total, own, each in zip(totals, taken, turns, strict=True)
    ]


def common(turns, outcomes):
    """The return that follows a turn, less its mean over the completions that reached the turn."""
    following = [
        [sum(each[k:]) + outcome for k in range(len(each))]
        for each, outcome in zip(turns, outcomes, strict=True)
    ]
    return [
        [
            value - _mean(other[k] for other in following if len(other) > k)
            for k, value in enumerate(own)
        ]
        for own in following
    ]


def _mean(values):
    values = list(values)
    return sum(values) / len(values)


def true_gradient(logits, outcome):
    logits = logits.clone().requires_grad_()
    going_on = torch.sigmoid(logits)
    first, second = going_on
    values = [sum(EARNED[: k + 1]) + outcome[k] for k in range(3)]
    value = (1 - first) * values[0] + first * ((1 - second) * values[1] + second * values[2])
    value.backward()
    return logits.grad


@pytest.mark.parametrize("outcome", [(0.0, 0.0, 0.0), (1.0, 0.0, 2.0)])
@pytest.mark.parametrize("logits", [(0.0, 0.0), (1.5, -0.7), (-2.0, 2.0)])
def test_the_estimate_is_unbiased_and_the_common_form_is_not(logits, outcome):
    logits = torch.tensor(logits, dtype=torch.float64)
    truth = true_gradient(logits, outcome)
    factor = (GROUP - 1) / GROUP
    assert torch.allclose(expected_estimate(ours, logits, outcome), factor * truth, atol=1e-12)
    biased = expected_estimate(common, logits, outcome) / factor
    assert ((biased - truth).abs() / truth.abs()).max() > 0.1


def test_turns_that_earn_nothing_change_nothing():
    assert corrections([1.0, 0.0], [(0.0, 0.0), (0.0,)], 2) == [[0.0] * 3] * 2


def test_the_first_turn_keeps_the_advantage():
    assert corrections([2.0, 0.0], [(2.0,), (0.0,)], 2) == [[0.0, 1.0], [0.0, -1.0]]


def test_a_completion_without_a_total_counts_nowhere():
    taken = corrections([2.0, None, 0.0], [(2.0,), (9.0,), (0.0,)], 3)
    assert taken == [[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]]


def test_turns_of_tokens():
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])
    assert turn_of_tokens(mask).tolist() == [[0, 0, 0, 0, 1, 1, 2], [0] * 7, [0] * 7]


class PerTurn:
    """Earns 1 in the first turn and 2 in the second."""

    def __call__(self, prompts, completions, **_):
        return [3.0 * (len(each) > 1) for each in completions]

    def turn_scores(self, prompts, completions, **_):
        return [[1.0, 2.0] if len(each) > 1 else [0.0] for each in completions]


class Gate:
    def __call__(self, prompts, completions, **_):
        return [float(len(each) < 3) for each in completions]


def credit(reward, gates=()):
    composed = ComposedReward((Part("turns", reward, weight=0.5),), gates)
    return TurnCredit(composed, 2, lambda ids: "".join(map(str, ids.tolist())))


def batch(prompt_ids, completion_ids, mask, advantages):
    return {
        "prompt_ids": torch.tensor(prompt_ids),
        "completion_ids": torch.tensor(completion_ids),
        "completion_mask": torch.tensor(
            [[int(token != 0) for token in row] for row in completion_ids]
        ),
        "tool_mask": torch.tensor(mask),
        "advantages": torch.tensor(advantages),
    }


def test_advantages_find_shuffled_completions_and_padding():
    reward = credit(PerTurn())
    assert reward(["7", "7"], ["ab", "c"], [[5, 6, 8], [9]]) == [1.5, 0.0]
    found = reward.advantages(
        batch([[7], [7]], [[9, 0, 0], [5, 6, 8]], [[1, 1, 1], [1, 0, 1]], [-0.75, 0.75])
    )
    assert found.tolist() == [[-0.75] * 3, [0.75, 0.75, 0.5]]


def test_equal_completions_of_two_prompts_keep_their_own_credit():
    reward = credit(PerTurn())
    reward(["7", "7", "4", "4"], ["ab", "c", "ab", "ab"], [[5, 0, 8], [9], [5, 0, 8], [5, 0, 8]])
    inputs = batch([[7], [4]], [[5, 1, 8]] * 2, [[1, 0, 1]] * 2, [0.0, 0.0])
    inputs["completion_ids"][:, 1] = 0
    inputs["completion_mask"][:] = 1
    assert reward.advantages(inputs)[:, 2].tolist() == [-0.25, 0.0]


def test_a_prompt_within_another_keeps_its_own_credit():
    reward = credit(PerTurn())
    reward(["7", "7", "77", "77"], ["ab", "c", "ab", "ab"], [[5, 8], [9], [5, 8], [5, 8]])
    found = [reward._past(torch.tensor(prompt), (5, 8)) for prompt in ([0, 7], [7, 7])]
    assert found == [[0.0, 0.25, 0.75], [0.0, 0.0, 0.0]]


def test_an_unknown_completion_is_an_error():
    reward = credit(PerTurn())
    reward(["7", "7"], ["ab", "c"], [[5], [9]])
    with pytest.raises(RewardError, match="does not know"):
        reward.advantages(batch([[7]], [[4]], [[1]], [0.0]))


def test_turns_that_do_not_add_up_are_an_error():
    class Wrong(PerTurn):
        def turn_scores(self, prompts, completions, **_):
            return [[1.0, 1.0]] * len(completions)

    with pytest.raises(RewardError, match="add up"):
        credit(Wrong())(["7", "7"], ["ab", "ab"], [[5], [9]])


def test_a_failed_gate_takes_the_turns_with_it():
    reward = credit(PerTurn(), (Part("short", Gate()),))
    assert reward(["7", "7"], ["abc", "ab"], [[5, 6, 8], [9, 6, 8]]) == [0.0, 1.5]
    found = reward.advantages(batch([[7]], [[5, 6, 8]], [[1, 0, 1]], [-0.75]))
    assert found.tolist() == [[-0.75, -0.75, -0.5]]


def test_evaluations_between_micro_batches_change_nothing():
    reward = credit(PerTurn())
    reward(["7", "7"], ["ab", "c"], [[5, 6, 8], [9]])
    reward.is_training = lambda: False
    reward(["7"], ["c"], [[3]])
    assert reward.advantages(batch([[7]], [[9]], [[1]], [0.0])).tolist() == [[0.0]]


class Length:
    """The answer's length."""

    def __call__(self, prompts, completions, **_):
        return [float(len(str(each[-1]["content"]))) for each in completions]


class Calls:
    """0.5 for each turn, or nothing for any."""

    def __init__(self, each: float = 0.0):
        self.each = each

    def __call__(self, prompts, completions, **_):
        return [sum(turns) for turns in self.turn_scores(prompts, completions)]

    def turn_scores(self, prompts, completions, **_):
        return [[self.each for m in each if m["role"] == "assistant"] for each in completions]


@pytest.fixture
def run(prepared, offer):
    offer("rewards", length=Length, calls=Calls)
    rows = [{"prompt": [{"role": "user", "content": f"1{n}+3{n}="}]} for n in range(8)]

    def make(each=0.0, **settings):
        rewards = [{"name": "length"}, {"name": "calls", "each": each}]
        return prepared(rows, rows[:2], **{**SETTINGS, "rewards": rewards, **settings})

    return make


def test_turns_that_earn_nothing_train_equal_weights(run):
    def weights(**settings):
        trainer = GroupTrainer.from_run(run(**settings))
        trainer.train()
        return torch.cat([each.detach().flatten() for each in trainer.model.parameters()])

    assert torch.equal(weights(credit="completion"), weights(credit="turn"))
    one = weights(credit="completion", each=0.5)
    assert not torch.equal(one, weights(credit="turn", each=0.5))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"environment": None}, "needs tools"),
        ({"rewards": [{"name": "length"}]}, "turn_scores"),
        ({"rewards": [{"name": "calls", "clip": [0, 1]}]}, "clip"),
        ({"scale_rewards": "group"}, "scale_rewards: none"),
    ],
)
def test_what_turn_credit_needs(run, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        run(**{"credit": "turn", **settings})

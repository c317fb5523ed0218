"""A whole step of PPO against one written plainly: row by row, token by token, nothing padded."""

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from tokenizers import pre_tokenizers

from hf_rlhf.testing.trainers import TrainerCase
from hf_rlhf_classic.ppo import PPOTrainer

LORA = {"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]}
NUMBERS = {
    "kl_coef": 0.3,
    "gamma": 0.9,
    "lam": 0.8,
    "temperature": 0.7,
    "entropy_coef": 0.05,
    "cliprange": 0.01,
    "cliprange_value": 0.05,
    "vf_coef": 0.4,
    "score_clip": 0.6,
    "missing_eos_penalty": 0.25,
    "max_completion_length": 6,
    "eos_token": "e",
}


@dataclass
class Lengths:
    """A reward that varies, and has nothing to say of one completion."""

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float | None]:
        found: list[float | None] = [len(text) / 5 for text in completions]
        found[1] = None
        return found


def trainer_of(case, name, **settings):
    case.settings = {**NUMBERS, **settings}
    with case.run(name) as run:
        trainer = case.build(run)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return trainer


@pytest.fixture(scope="module")
def case():
    rows = Dataset.from_dict({"prompt": ["sum", "a longer prompt", "x", "some more"] * 2})
    return TrainerCase(PPOTrainer, {}, DatasetDict(train=rows), Lengths(), ())


def answers(model, prompts, first):
    """Completions of different lengths; two end with the stop token, which one has to itself."""
    return [[40, 41, 42, 43, 44, 45], [50, STOP], [60, 61, 62, STOP], [STOP]][: len(prompts)]


STOP = 5 + sorted(pre_tokenizers.ByteLevel.alphabet()).index("e")


def outputs(trainer, ids, reference):
    """Return one row's logits and the hidden states that its values are read from."""
    policy, kind, given = trainer.model, trainer.args.value, {"input_ids": torch.tensor([ids])}
    flags = [parameter.requires_grad for parameter in policy.parameters()]
    if reference and trainer.reference.kind == "model":
        logits = trainer.reference.model(**given).logits[0]
        return logits, None
    with policy.disable_adapter() if reference else nullcontext():
        output = policy(**given, output_hidden_states=True)
    hidden = output.hidden_states[-1][0]
    if kind == "own_adapter" and not reference:
        policy.set_adapter("value")
        hidden = policy(**given, output_hidden_states=True).hidden_states[-1][0]
        policy.set_adapter("default")
    elif kind == "own_model" and not reference:
        hidden = policy.value_model(**given).last_hidden_state[0]
    for parameter, flag in zip(policy.parameters(), flags, strict=True):
        parameter.requires_grad_(flag)
    return output.logits[0], hidden


def look(trainer, ids, begin, reference=False):
    """Return log-probabilities, entropies and values of one row's completion, token by token."""
    logits, hidden = outputs(trainer, ids, reference)
    logs, entropies, values = [], [], []
    for place in range(begin - 1, len(ids) - 1):
        distribution = (logits[place] / trainer.args.temperature).log_softmax(-1)
        logs.append(distribution[ids[place + 1]])
        entropies.append(-(distribution.exp() * distribution).sum())
        values.append(trainer.model.value_head(hidden[place])[0] if hidden is not None else 0.0)
    return logs, entropies, values


def plain_advantages(trainer, completion, score, old, reference, values):
    """Return one row's advantages: its score shaped, the KL taken off, discounted backwards."""
    args, count = trainer.args, len(completion)
    score = max(min(score, args.score_clip), -args.score_clip)
    if completion[-1] not in trainer.stop_ids:
        score -= args.missing_eos_penalty
    rewards = [-args.kl_coef * float(old[t] - reference[t]) for t in range(count)]
    rewards[-1] += score
    advantages, following = [0.0] * count, 0.0
    for t in reversed(range(count)):
        after = float(values[t + 1]) if t + 1 < count else 0.0
        delta = rewards[t] + args.gamma * after - float(values[t])
        following = delta + args.gamma * args.lam * following
        advantages[t] = following
    return advantages


def plain_losses(trainer, episode, mean, deviation):
    """Yield the loss of each token of one row."""
    args, (ids, begin, old, old_values, advantages) = trainer.args, episode
    logs, entropies, values = look(trainer, ids, begin)
    for t in range(len(logs)):
        advantage = (advantages[t] - mean) / deviation
        target = advantages[t] + float(old_values[t])
        ratio = torch.exp(logs[t] - old[t])
        kept = torch.clamp(ratio, 1 - args.cliprange, 1 + args.cliprange)
        limit = args.cliprange_value
        near = old_values[t] + torch.clamp(values[t] - old_values[t], -limit, limit)
        square = torch.maximum((values[t] - target) ** 2, (near - target) ** 2)
        yield (
            -torch.minimum(ratio * advantage, kept * advantage)
            + args.vf_coef * square / 2
            - args.entropy_coef * entropies[t]
        )


def plain_step(trainer, prompts, completions, scores, moved):
    """Return the mean loss of all tokens, of rows that have a score."""
    episodes = []
    for prompt, completion, score in zip(prompts, completions, scores, strict=True):
        if score is None:
            continue
        ids = prompt + completion
        with torch.no_grad():
            old, _, values = look(trainer, ids, len(prompt))
            reference, _, _ = look(trainer, ids, len(prompt), reference=True)
        advantages = plain_advantages(trainer, completion, score, old, reference, values)
        episodes.append((ids, len(prompt), old, values, advantages))
    everything = [advantage for episode in episodes for advantage in episode[4]]
    mean = math.fsum(everything) / len(everything)
    variance = math.fsum((each - mean) ** 2 for each in everything) / len(everything)
    moved()
    losses = [
        loss
        for episode in episodes
        for loss in plain_losses(trainer, episode, mean, math.sqrt(variance + 1e-8))
    ]
    return torch.stack(losses).sum() / len(losses)


@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {**LORA, "value": "policy_adapter"},
        {**LORA, "value": "own_adapter"},
        {**LORA, "value": "own_model"},
        {**LORA, "value": "own_adapter", "activation_checkpointing": True},
        {"use_peft": False, "reference_model_path": "ITSELF"},
    ],
    ids=lambda given: "-".join(str(value) for key, value in given.items() if "lora" not in key),
)
def test_losses_and_gradients_are_those_of_a_plain_step(case, settings, micro):
    if settings.get("reference_model_path"):
        with case.run("path") as run:
            settings = {**settings, "reference_model_path": run.model_path}
    trainer = trainer_of(case, "step", micro_batch_size=micro, **settings)
    if settings.get("activation_checkpointing"):
        trainer.model.activation_checkpointing_enable(trainer.args.activation_checkpointing_kwargs)
    trainer.answers = answers
    model, rows = trainer.model, [trainer.train_dataset[row] for row in range(4)]
    model.eval()
    with torch.no_grad():
        rollout = trainer.roll_out(model, rows)
        experience, _ = trainer.look_at(model, rollout)
    assert trainer.stop_ids == {STOP, trainer.model.generation_config.eos_token_id}
    assert rollout.stopped.tolist() == [False, True, True, True]
    before = copy.deepcopy(model.state_dict())
    generator = torch.Generator()

    def moved():
        """Move the weights, so that ratios are not 1 and some are clipped."""
        generator.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)

    moved()
    model.train()
    tokens = rollout.mask.sum()
    sums = trainer.accumulate(model, experience, np.array([3, 0, 2, 1]), tokens)
    ours = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    model.load_state_dict(before)
    scores = [float(s) if k else None for s, k in zip(rollout.scores, rollout.scored, strict=True)]
    loss = plain_step(trainer, rollout.prompts, rollout.completions, scores, moved)
    loss.backward()
    theirs = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert 0 < float(sums[4]) < float(sums[0]), "clipping was not compared"
    assert (
        ours.keys()
        == theirs.keys()
        == {name for name, p in model.named_parameters() if p.requires_grad}
    )
    for name in ours:
        assert torch.allclose(ours[name], theirs[name], atol=1e-5, rtol=1e-4), name
    parts = trainer.args.vf_coef * sums[3] + sums[2]
    entropy = _entropy(trainer, model, rollout)
    found = float(parts / sums[0]) - trainer.args.entropy_coef * entropy
    assert found == pytest.approx(loss.item(), abs=1e-5)


def _entropy(trainer, model, rollout):
    with torch.no_grad():
        _, entropies, _ = trainer.policy_and_value(model, rollout, range(4), entropy=True)
    keep = rollout.mask.any(1).repeat_interleave(trainer.lengths(rollout, range(4)))
    return float(entropies[keep].mean())

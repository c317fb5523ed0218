"""What a step of PPO learns from, and what is carried from step to step."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_rlhf.errors import ModelError
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_classic import ppo_math
from hf_rlhf_classic.ppo_models import value_tensors

STATE_NAME = "ppo_state.json"
VALUE_NAME = "value.safetensors"


@dataclass(frozen=True)
class State:
    """What PPO carries from step to step beside weights: part of every checkpoint."""

    kl: ppo_math.KLController
    scores: ppo_math.RunningMoments

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        atomic_write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read what `save` wrote."""
        held = json.loads(path.read_text())
        return cls(ppo_math.KLController(**held["kl"]), ppo_math.RunningMoments(**held["scores"]))


@dataclass(frozen=True)
class Rollout:
    """One step's completions. Tensors have a row for each and a column for each of its tokens."""

    prompts: list[list[int]]
    completions: list[list[int]]
    mask: Tensor
    """Where a token was sampled, of completions that have a score: (rows, tokens)."""
    stopped: Tensor
    """Which completions ended by themselves: (rows,)."""
    scores: Tensor
    """As the rewards gave them, 0 where they abstained: (rows,)."""
    scored: Tensor
    """Which have a score: (rows,)."""


@dataclass(frozen=True)
class Experience:
    """What is learned from: a rollout as policy, value and reference saw it. (rows, tokens)."""

    rollout: Rollout
    logprobs: Tensor
    reference: Tensor
    entropy: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


def save_value(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write value tensors by their names in the policy, as safetensors."""
    from safetensors.torch import save_file

    save_file(dict(tensors), path, metadata={"format": "pt"})


def load_value(policy: Any, path: Path) -> None:
    """Put a checkpoint's value tensors back, in place. Raises ModelError if they are others."""
    from safetensors.torch import load_file

    tensors, own = load_file(path), value_tensors(policy)
    if tensors.keys() != own.keys():
        raise ModelError(
            f"{path} holds the value of another configuration: {len(tensors)} tensors, where this "
            f"run has {len(own)}. Was `value` or the adapter changed?"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)

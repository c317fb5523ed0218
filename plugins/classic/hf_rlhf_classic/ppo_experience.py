"""The data of a PPO step, and the state between steps."""

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
    """PPO's state between steps beside weights, a part of every checkpoint."""

    kl: ppo_math.KLController
    scores: ppo_math.RunningMoments

    def save(self, path: Path) -> None:
        """Write the state as JSON."""
        atomic_write_text(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "State":
        """Read what `save` wrote."""
        held = json.loads(path.read_text())
        return cls(ppo_math.KLController(**held["kl"]), ppo_math.RunningMoments(**held["scores"]))


@dataclass(frozen=True)
class Rollout:
    """The completions of a step. Tensors have a row per completion and a column per token."""

    prompts: list[list[int]]
    completions: list[list[int]]
    mask: Tensor
    """Whether a token was sampled, for completions with a score: (rows, tokens)."""
    stopped: Tensor
    """Whether a completion ended by itself: (rows,)."""
    scores: Tensor
    """The rewards' scores, 0 for an abstention: (rows,)."""
    scored: Tensor
    """Whether a completion has a score: (rows,)."""


@dataclass(frozen=True)
class Experience:
    """A rollout with the outputs of policy, value and reference. (rows, tokens)."""

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
    """Restore a checkpoint's value tensors in place. Raises ModelError if they do not match."""
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

"""The setting `reference` of DPO: the source of the reference's log-probabilities."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_rlhf.errors import Problem
from hf_rlhf.models import skeleton
from hf_rlhf.runs import Run, launch_kind
from hf_rlhf.storage import human

_SHARDED = ("DEEPSPEED", "FSDP")


@dataclass
class ReferenceConfig:
    """A base class, before TRL's, for the `Config` of a TRL trainer with a reference model."""

    reference: Literal["model", "adapter_off", "precomputed", "cpu_offload"] | None = field(
        default=None,
        metadata={
            "help": "Where the reference's log-probabilities come from: `model`, a frozen copy of "
            "the weights; `adapter_off`, the policy without its LoRA; `precomputed`, a pass over "
            "all pairs before the first step; `cpu_offload`, a copy in host memory. Default: "
            "adapter_off with LoRA, else model."
        },
    )

    def __post_init__(self) -> None:
        """Set TRL's option for values that are computed before training."""
        if self.reference == "precomputed":
            self.precompute_ref_log_probs: bool = True
        super().__post_init__()  # type: ignore[misc]


def reference_kind(run: Run) -> str:
    """Return the run's `reference`, or its default."""
    if run.training.reference is not None:
        return str(run.training.reference)
    if run.training.precompute_ref_log_probs:
        return "precomputed"
    return "adapter_off" if run.model.use_peft else "model"


def reference_problems(run: Run) -> Iterator[Problem]:
    """Yield a problem if `reference` contradicts the trained weights, launch or another setting."""
    kind, lora = run.training.reference, run.model.use_peft
    if kind is None:
        return
    if kind in ("model", "cpu_offload") and lora:
        yield Problem(
            "reference",
            f"{kind}, but with LoRA the policy's own frozen weights are the reference's, and a "
            "copy of them would only take memory.",
            "Write `reference: adapter_off`, or train all weights: `use_peft: false`.",
        )
    if kind == "adapter_off" and not lora:
        yield Problem(
            "reference",
            "adapter_off, but every weight is trained, so there is no adapter.",
            "Write `use_peft: true`, or `reference: model`, precomputed or cpu_offload.",
        )
    precompute = run.spec.settings.get("precompute_ref_log_probs")
    if precompute is not None and precompute != (kind == "precomputed"):
        yield Problem(
            "precompute_ref_log_probs",
            f"is {str(precompute).lower()}, and `reference` is {kind}.",
            "Leave it out: `reference: precomputed` does it.",
        )
    if kind == "cpu_offload":
        yield from _offload_problems(run)


def _offload_problems(run: Run) -> Iterator[Problem]:
    if (launch := launch_kind(run)) in _SHARDED:
        yield Problem(
            "reference",
            f"cpu_offload is for whole weights on each device, and {launch} distributes them.",
            "Write `reference: precomputed`, or `reference: model` with a launch that offloads "
            "policy and reference (`hf-rlhf launch-configs fsdp2_offload`).",
        )
    if run.training.sync_ref_model:
        what = "moves the reference, and with `reference: cpu_offload` its weights are elsewhere."
        yield Problem("sync_ref_model", what, "Write `reference: model`.")
    if run.training.torch_compile:
        what = "would compile blocks whose weights come and go: `reference` is cpu_offload."
        yield Problem("torch_compile", what, "Leave it out, or write `reference: precomputed`.")
    if not run.model.use_peft and not blocks(_skeleton(run)):
        what = "cpu_offload moves the weights block by block, and this model has no known blocks."
        yield Problem("reference", what, "Write `reference: precomputed`.")


def describe_reference(run: Run) -> str:
    """Return the kind of the run's reference, with its cost in memory and time."""
    kind, model, launch = reference_kind(run), _skeleton(run), launch_kind(run)
    held, copy = "the base weights, with the adapter off", f"a frozen copy of {_size(model)}"
    if run.adapter is not None:
        held = "the base weights with a frozen copy of the adapter that is continued"
    if launch in _SHARDED:
        copy += f", distributed as {launch} does it"
    cost = {
        "adapter_off": f"{held}; a forward pass more in each step",
        "precomputed": "computed for all pairs before the first step: one forward pass, once",
        "model": f"{copy}, on each device; a forward pass more in each step",
        "cpu_offload": f"{copy}, in host memory for each process, of which one block at a time is "
        "on the device; a forward pass and the copies more in each step",
    }
    return f"{kind}{'' if run.training.reference else ', by default'}: {cost[kind]}"


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a transformer, in order."""
    return [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]


def offload_blocks(model: nn.Module, device: torch.device) -> None:
    """Keep the frozen weights of each block in host memory, except while it computes.

    Embeddings and head stay on the device, because TRL's fused head reads them without a call.
    """
    for block in blocks(model):
        _offload(block, device)


def _offload(block: nn.Module, device: torch.device) -> None:
    host = [(weight, weight.data.cpu()) for weight in block.parameters()]
    if device.type == "cuda":
        host = [(weight, kept.pin_memory()) for weight, kept in host]

    def fetch(*_: Any) -> None:
        for weight, kept in host:
            weight.data = kept.to(device, non_blocking=True, copy=True)

    def free(*_: Any) -> None:
        for weight, kept in host:
            weight.data = kept

    free()
    block.register_forward_pre_hook(fetch)
    block.register_forward_hook(free, always_call=True)


def _skeleton(run: Run) -> nn.Module:
    """Return the model without its weights; an empty module if only TRL can build it."""
    try:
        model: nn.Module = skeleton(run)
    except ValueError:
        return nn.Module()
    return model


def _size(model: nn.Module) -> str:
    count = sum(each.numel() * each.element_size() for each in model.parameters())
    return f"the weights ({human(count)})" if count else "the weights"

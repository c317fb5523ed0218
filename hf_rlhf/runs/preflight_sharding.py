"""Checks that a sharded launch shards as configured, and can resume the folder's checkpoint."""

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.distributed import distributed_type, fsdp_requested, is_planned, processes
from hf_rlhf.errors import Problem
from hf_rlhf.runs.preflight_launch import launch_kind

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

SHARDED = ("DEEPSPEED", "FSDP")
_MESH = ("DP_REPLICATE", "DP_SHARD", "TP", "CP", "SP")


def sharding_advice(run: "Run") -> Iterator[str]:
    """Yield a note if a sharded launch has a single device, and so shards nothing."""
    kind = launch_kind(run)
    count = processes() if is_planned() else run.training.world_size
    if kind in SHARDED and count == 1:
        yield (
            f"{kind} on one device shards nothing: each part of the state is whole there, as in a "
            "plain launch, and only its offloading saves memory. Launch more processes, or "
            "`hf-rlhf launch-configs single_gpu`"
        )


def sharding_problems(run: "Run") -> Iterator[Problem]:
    """Yield problems that accelerate or transformers would find only after loading the weights."""
    if is_planned() or not fsdp_requested(run.training):
        return
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
        yield from _mesh_problems(run.training.world_size)
    config = getattr(run.training, "fsdp_config", None) or {}
    again = str(config.get("activation_checkpointing") or _fsdp("ACTIVATION_CHECKPOINTING"))
    if again.lower() == "true" and getattr(run.training, "activation_checkpointing", False):
        yield Problem(
            "activation_checkpointing",
            "is true here and in the launch configuration (`fsdp_activation_checkpointing`), and "
            "each block would be recomputed twice.",
            "Leave it to the run: `fsdp_activation_checkpointing: false`.",
        )


def _mesh_problems(count: int) -> Iterator[Problem]:
    sizes = {name: int(os.environ.get(f"PARALLELISM_CONFIG_{name}_SIZE") or 1) for name in _MESH}
    given = " x ".join(f"{name.lower()} {size}" for name, size in sizes.items() if size != 1)
    if prod(sizes.values()) != count:
        yield Problem(
            "launch",
            f"`parallelism_config` is for {given or 'one process'} = {prod(sizes.values())} "
            f"processes, and {count} were launched.",
            "The product of dp_replicate_size and dp_shard_size must be the number of processes: "
            "`--parallelism_config_dp_replicate_size` is the number of copies.",
        )
    elif sizes["DP_SHARD"] == sizes["CP"] == 1:
        yield Problem(
            "launch",
            f"FSDP has nothing to shard over: `parallelism_config` is {given or 'of one process'}.",
            "Make dp_shard_size 2 or more, or launch plain data parallel "
            "(`hf-rlhf launch-configs ddp`).",
        )


def _fsdp(name: str) -> str:
    return os.environ.get(f"FSDP_{name}", "")


def resume_problems(run: "Run") -> Iterator[Problem]:
    """Yield a problem if another kind of launch wrote the newest checkpoint's optimizer.

    Another kind would silently start with a new optimizer state
    (`Trainer._load_optimizer_and_scheduler`), or stop after loading the weights. FSDP resumes on
    any number of processes, DeepSpeed on the same number.
    """
    from hf_rlhf.storage.checkpoints import valid_checkpoints

    checkpoints = valid_checkpoints(Path(run.training.output_dir))
    if not checkpoints or is_planned():
        return
    newest, real = checkpoints[-1], distributed_type(run.training)
    shards = len(list(newest.glob("global_step*/*optim_states.pt")))
    kind = "DEEPSPEED" if shards else "FSDP" if any(newest.glob("*_fsdp*")) else None
    if kind == (real if real in SHARDED else None) and shards in (0, run.training.world_size):
        return
    wrote = {
        "DEEPSPEED": f"{shards} processes under DeepSpeed",
        "FSDP": "processes under FSDP",
        None: "a run without DeepSpeed or FSDP",
    }[kind]
    number = "any number of processes" if kind == "FSDP" else "the same processes"
    yield Problem(
        "output_dir",
        f"{newest} was written by {wrote}; this launch cannot resume its optimizer.",
        f"Launch as before, on {number if kind else 'any number of processes'}, or choose another "
        "`output_dir`.",
    )

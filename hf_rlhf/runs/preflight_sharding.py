"""Checks whether a sharded launch shards anything, and can resume the folder's checkpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.distributed import distributed_type, is_planned, processes
from hf_rlhf.errors import Problem
from hf_rlhf.runs.preflight_launch import launch_kind

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

SHARDED = ("DEEPSPEED", "FSDP")


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

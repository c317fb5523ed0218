"""Check that the launch is as requested, since accelerate falls back silently.

See `hf_rlhf.distributed`.
"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import (
    deepspeed_requested,
    distributed_type,
    fsdp_requested,
    is_elsewhere,
    is_planned,
)
from hf_rlhf.errors import Problem
from hf_rlhf.models.loading import trained_skeleton

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


CONFIGS = "`hf-rlhf launch-configs` lists launch configurations that do what they say."
_SHARDED = (
    "launch with DeepSpeed or FSDP, which keep one (`hf-rlhf launch-configs`; tell `hf-rlhf check` "
    "with `--expect_distributed DEEPSPEED`)"
)
_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""Environment variables with the number of started commands."""


def launch_problems(run: "Run", where: Callable[[str], str]) -> Iterator[Problem]:
    """Yield how the processes that run differ from the request.

    The run file's expectation is compared last: a cause is clearer than two numbers. `where`
    returns the origin of a top-level key.
    """
    kind, real = run.spec.expect_distributed, distributed_type(run.training)
    types = [each.value for each in type(run.training.distributed_state.distributed_type)]
    if kind is not None and kind.upper() not in types:
        what = f"{kind!r} is not a DistributedType of accelerate."
        yield Problem(where("expect_distributed"), what, f"One of {', '.join(types)}.")
        return
    if is_planned():
        return
    training = run.training
    causes = [*_alone(run), *_undistributed(training), *_data_parallel(training), *_restarts()]
    if causes:
        yield from causes
        return
    size, actual = run.spec.expect_world_size, run.training.world_size
    if size is not None and size != actual:
        what = f"{size} processes were expected, {actual} were launched."
        yield Problem(where("expect_world_size"), what, CONFIGS)
    if kind is not None and kind.upper() != real:
        what = f"{kind} was expected, but the launch is {real}."
        yield Problem(where("expect_distributed"), what, CONFIGS)


def launch_kind(run: "Run") -> str | None:
    """Return the DistributedType of the launch, in a plan the expected type; None if unknown."""
    if is_planned() and run.spec.expect_distributed is not None:
        return run.spec.expect_distributed.upper()
    if deepspeed_requested(run.training):
        return "DEEPSPEED"
    if fsdp_requested(run.training):
        return "FSDP"
    return None if is_elsewhere() else distributed_type(run.training)


def sharding(run: "Run") -> str | None:
    """Return DEEPSPEED or FSDP if the launch is or must be sharded; else None.

    For a plan without a launch and 16-bit weights, it is DeepSpeed, which takes the most space.
    """
    kind = launch_kind(run)
    if kind is None and not _is_partial(run) and narrow_dtype(run):
        return "DEEPSPEED"
    return kind if kind in ("DEEPSPEED", "FSDP") else None


def narrow_dtype(run: "Run") -> str | None:
    """Return the 16 bit dtype of weights that are trained in it, None if all are in float32."""
    if run.model.dtype in (None, "float32"):
        return None
    try:
        trained = [each.dtype for each in trained_skeleton(run).parameters() if each.requires_grad]
    except ValueError:  # a kind of model that only its trainer can build
        trained = [run.model.dtype]
    names = {str(dtype).removeprefix("torch.") for dtype in trained}
    return next(iter(sorted(names & {"bfloat16", "float16"})), None)


def master_copy_problems(run: "Run") -> Iterator[Problem]:
    """Yield a problem if weights in 16 bit would be trained without a copy in float32.

    DeepSpeed has a copy, and FSDP in mixed precision. A plan without a launch gets a note.
    """
    kind, training = launch_kind(run), run.training
    if _is_partial(run) or kind in (None, "DEEPSPEED") or not (dtype := narrow_dtype(run)):
        return
    mixed = training.bf16 or training.fp16
    # Other optimizers leave the argument unread.
    kahan = training.optim == "adamw_anyprecision" and (
        "use_kahan_summation=true" in str(training.optim_args).lower()
    )
    if kahan or (kind == "FSDP" and mixed):
        return
    yield Problem(
        "dtype",
        f"{dtype}: every weight is trained, and nothing keeps a copy in float32. Most updates are "
        f"smaller than the steps of {dtype}, and would be rounded away.",
        "FSDP keeps one with `bf16: true`."
        if kind == "FSDP"
        else f"Write `dtype: float32` with `bf16: true`, train a LoRA (`use_peft: true`), or "
        f"{_SHARDED}.",
    )


def master_copy_advice(run: "Run") -> Iterator[str]:
    """Yield which weights are trained in 16 bit, if that is not certainly a mistake."""
    if not _is_partial(run) and launch_kind(run) is not None:
        return
    if (dtype := narrow_dtype(run)) is None:
        return
    if _is_partial(run):
        yield (
            "weights trained beside LoRA or frozen weights (a head, `lora_modules_to_save`) are in "
            f"{dtype}, in which small updates are rounded away: `dtype: float32` keeps them"
        )
    else:
        yield f"every weight is trained in {dtype}, so that a copy in float32 is needed: {_SHARDED}"


def _is_partial(run: "Run") -> bool:
    """Return whether the run trains a part of the weights: LoRA, or a head on frozen ones."""
    return run.model.use_peft or not run.reads_tokens


def _alone(run: "Run") -> Iterator[Problem]:
    """Yield a problem if processes were launched together, but each would train alone."""
    actual = run.training.world_size
    together = int(os.environ.get("WORLD_SIZE") or 1)
    if together > actual:
        yield Problem(
            "launch",
            f"{together} processes were launched, and each would train alone, on all rows.",
            "They found no GPUs: for the CPU write `use_cpu: true`.",
        )
        return
    # A met expectation overrides the merely likely problems below.
    if run.spec.expect_world_size == actual:
        return
    tasks = max(int(os.environ.get(name) or 1) for name in _TASKS)
    together = tasks * int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if tasks > 1 and together > actual:
        yield Problem(
            "launch",
            f"{tasks} tasks were started with {together} processes in all, but only {actual} train "
            "together.",
            "Start one launcher per machine, each with --num_machines, --machine_rank and "
            "--main_process_ip (`hf-rlhf launch-configs slurm`). If the tasks are runs of their "
            f"own, write `expect_world_size: {actual}`.",
        )


def _undistributed(training: Any) -> Iterator[Problem]:
    real = distributed_type(training)
    requested = {"DEEPSPEED": deepspeed_requested(training), "FSDP": fsdp_requested(training)}
    for kind, wanted in requested.items():
        if wanted and real != kind:
            yield Problem(
                "launch",
                f"{kind} was requested, but accelerate would silently make it {real}.",
                "FSDP needs GPUs, and a launcher that starts a process for each."
                if kind == "FSDP"
                else "Unset ACCELERATE_USE_CPU, and use `accelerate launch`.",
            )


def _restarts() -> Iterator[Problem]:
    """Yield a problem if a restart would read the addresses of ended processes.

    torch 2.13 reuses the store for all restarts (`_create_c10d_store` takes it for new), so the new
    processes wait for the old.
    """
    store, restarts = (
        os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("USE_AGENT_STORE", "MAX_RESTARTS")
    )
    if store == "True" and restarts not in ("", "0"):
        yield Problem(
            "launch",
            f"--max-restarts is {restarts}, and restarted processes would wait for the addresses "
            "of those that have ended, because the launcher keeps them.",
            "`export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, and launch with `--rdzv-backend c10d` "
            "(`accelerate launch`: `--rdzv_backend c10d`).",
        )


def _data_parallel(training: Any) -> Iterator[Problem]:
    """Yield a problem if a process with several GPUs would multiply its batch by their number."""
    if training.n_gpu > 1:
        yield Problem(
            "launch",
            f"one process sees {training.n_gpu} GPUs, and would train with torch's DataParallel on "
            f"a batch {training.n_gpu} times as large.",
            "Launch a process for each (`hf-rlhf launch-configs ddp`), or make one visible: "
            "`CUDA_VISIBLE_DEVICES=0`.",
        )

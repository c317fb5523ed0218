"""The processes of a launch and how they are distributed: requested and actual.

accelerate falls back silently: `--cpu --num_processes 2` starts one process, FSDP on the CPU is
plain DDP, and ranks with neither a GPU nor `use_cpu` each train alone, into the same folder. The
launcher passes the request in environment variables.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.errors import HfRlhfError

_EFFICIENT = "FSDP_CPU_RAM_EFFICIENT_LOADING"
_planned: ContextVar[int | None] = ContextVar("planned", default=None)
_elsewhere: ContextVar[bool] = ContextVar("elsewhere", default=False)


def rank() -> int:
    """Return this process's rank from its launcher, before a process group exists."""
    return int(os.environ.get("RANK") or 0)


def few_threads() -> None:
    """Use a single CPU thread, like `accelerate launch`, unless the user sets a number.

    Threads that wait for each other spin, which on a busy machine takes longer than the work. If
    torch is already loaded, the caller's number of threads stays.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def processes() -> int:
    """Return the number of training processes, launched or planned in a dry run.

    It is known before the trainer's arguments, whose batch sizes may depend on it.
    """
    return _planned.get() or int(os.environ.get("WORLD_SIZE") or 1)


@contextmanager
def planned(count: int, *, elsewhere: bool = False) -> Iterator[None]:
    """Resolve runs inside the block as if launched on `count` processes, for a dry run.

    With `elsewhere` they are GPUs of another machine, so limits of this machine are no errors.
    """
    tokens = _planned.set(count), _elsewhere.set(elsewhere)
    try:
        yield
    finally:
        _planned.reset(tokens[0])
        _elsewhere.reset(tokens[1])


def distributed_type(training: Any) -> str:
    """Return the value of the `accelerate.DistributedType` that training will have.

    accelerate reports DEEPSPEED or FSDP only once the trainer's Accelerator is built; until then it
    reports the underlying type (`accelerate.state.AcceleratorState`).
    """
    plain = str(training.distributed_state.distributed_type.value)
    if not plain.startswith("MULTI_"):
        return plain
    if deepspeed_requested(training) and not _flag("ACCELERATE_USE_CPU"):
        return "DEEPSPEED"
    return "FSDP" if fsdp_requested(training) and plain != "MULTI_CPU" else plain


def is_planned() -> bool:
    """Return whether this is a dry run, for processes that are not launched."""
    return _planned.get() is not None


def is_elsewhere() -> bool:
    """Return whether this is a dry run for the GPUs of another machine."""
    return _elsewhere.get()


@contextmanager
def whole_weights() -> Iterator[None]:
    """Load models whole on every process inside the block, regardless of the launch.

    ZeRO-3 shards loaded models; FSDP's RAM-efficient loading gives weights to the first process
    only.
    """
    from transformers.integrations import deepspeed

    sharded = deepspeed.is_deepspeed_zero3_enabled()
    active = deepspeed._hf_deepspeed_config_weak_ref() if sharded else None
    if sharded:
        deepspeed.unset_hf_deepspeed_config()
    efficient = os.environ.pop(_EFFICIENT, None)
    try:
        yield
    finally:
        if sharded:
            deepspeed.set_hf_deepspeed_config(active)
        if efficient is not None:
            os.environ[_EFFICIENT] = efficient


def config_file() -> str | None:
    """Return the `--config_file` of the accelerate launcher above this process."""
    import psutil

    try:
        commands = [parent.cmdline() for parent in psutil.Process().parents()[:3]]
    except psutil.Error:
        return None  # the process is another user's, or gone
    for words in commands:
        for index, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name == "--config_file" and any("accelerate" in word for word in words[:index]):
                return value if equals else next(iter(words[index + 1 :]), None)
    return None


def deepspeed_requested(training: Any) -> bool:
    """Return whether the run file or the launcher requests DeepSpeed."""
    return bool(training.deepspeed) or _flag("ACCELERATE_USE_DEEPSPEED")


def fsdp_requested(training: Any) -> bool:
    """Return whether the run file or the launcher requests FSDP."""
    return bool(getattr(training, "fsdp", None)) or _flag("ACCELERATE_USE_FSDP")


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def run_on_main_process(work: Callable[[], object]) -> None:
    """Run `work` on the main process while the others wait; if it fails, all raise."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    failure: BaseException | None = None
    if PartialState().is_main_process:
        try:
            work()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the others would wait forever
            failure = error
    if broadcast_object_list([failure is not None])[0]:
        raise failure or HfRlhfError("stopped, because the main process did; it says why.")


def leave_process_group() -> None:
    """Destroy the process group once it is no longer needed.

    Otherwise a process may abort on exit (`terminate called without an active exception`), and its
    launcher then stops the others, which may still be publishing.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


@dataclass
class PromptsPerStep:
    """Base for the `Config` of sampling trainers: `class Mine(PromptsPerStep, GRPOConfig)`.

    `prompts_per_step` derives gradient accumulation from the number of processes, so that the batch
    is the same on one GPU and on eight: `prompts_per_step * num_generations` completions form one
    generation and one optimizer step. Raises ValueError if they do not divide evenly.
    """

    prompts_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Prompts of one optimizer step, over all processes. Accumulation is derived."
        },
    )

    def __post_init__(self) -> None:
        if self.prompts_per_step is not None:
            derived = self._accumulation(self.prompts_per_step)
            if self.gradient_accumulation_steps not in (1, derived):
                raise ValueError(
                    f"gradient_accumulation_steps {self.gradient_accumulation_steps} is not the "
                    f"{derived} that prompts_per_step {self.prompts_per_step} makes. Give one."
                )
            self.gradient_accumulation_steps: int = derived
        super().__post_init__()  # type: ignore[misc]

    def _accumulation(self, prompts: int) -> int:
        if prompts < 1:
            raise ValueError(f"prompts_per_step is {prompts}, and must be 1 or more.")
        generations: int = getattr(self, "num_generations", None) or 1
        batch: int = self.per_device_train_batch_size  # type: ignore[attr-defined]
        completions = prompts * generations
        if completions % (batch * processes()):
            raise ValueError(
                f"prompts_per_step {prompts} x num_generations {generations} = {completions} "
                f"completions do not divide into {processes()} processes x "
                f"per_device_train_batch_size {batch}. Change one."
            )
        return completions // (batch * processes())

"""Lets FSDP2 run on the CPU, which accelerate leaves out: for tests of what is saved from it."""

from typing import Any

import torch.distributed as dist
from accelerate import DistributedType
from accelerate.state import AcceleratorState, PartialState
from torch.distributed.fsdp import CPUOffloadPolicy

ON_CPU = (DistributedType.MULTI_CPU, DistributedType.NO)


def allow() -> None:
    """Make accelerate take an FSDP launch on the CPU as one, and the preflight with it."""
    import hf_rlhf.runs.preflight
    import hf_rlhf.runs.preflight_sharding

    original = AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and not dist.is_initialized():
            dist.init_process_group("gloo")  # one process, which accelerate does not connect
        if self.distributed_type in ON_CPU and fsdp_plugin is not None:
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            if isinstance(fsdp_plugin.cpu_offload, CPUOffloadPolicy):
                # There is no device to pin memory for.
                fsdp_plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)

    AcceleratorState.__init__ = init
    hf_rlhf.runs.preflight.launch_problems = lambda run, where: []
    hf_rlhf.runs.preflight_sharding.distributed_type = lambda training: "FSDP"

"""The software and hardware of a run, without secrets."""

import os
import platform
import re
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hf_rlhf.config.registry import KINDS, offered, package
from hf_rlhf.runs.sources import package_sources
from hf_rlhf.storage.record_schema import Environment

PACKAGES = (
    *("hf-rlhf", "trl", "transformers", "peft", "accelerate", "datasets", "tokenizers"),
    *("safetensors", "torch", "huggingface-hub", "hf-xet", "numpy", "openai", "deepspeed"),
    *("vllm", "flash-attn", "bitsandbytes", "liger-kernel", "kernels"),
)


def environment() -> Environment:
    """Return software and machine as the record's `environment`, without host and user names.

    Imports torch, for the GPUs' names.
    """
    import psutil

    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        packages=packages(),
        cpu=cpu_name(),
        cpu_count=os.cpu_count(),
        gpu=installed_gpus(),
        memory_gb=round(psutil.virtual_memory().total / 2**30, 1),
        sources=package_sources(),
    )


def peak_memory() -> dict[str, Any]:
    """Return the peak memory of this process: `bytes`, and `of` what.

    On a GPU it is that of torch's tensors; elsewhere the resident set, with code and libraries.
    """
    import torch

    if torch.cuda.is_available():
        return {"bytes": torch.cuda.max_memory_allocated(), "of": "GPU"}
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return {"bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "of": "RSS"}


def packages() -> dict[str, str]:
    """Return the installed versions of a run's dependencies and of every plugin."""
    plugins = {package(point)[0] for kind in KINDS for point in offered(kind) if point.dist}
    versions = {}
    for name in sorted({*PACKAGES, *plugins}):
        with suppress(PackageNotFoundError):  # an optional package that is not installed
            versions[name] = version(name)
    return versions


def cpu_name() -> str | None:
    """Return the name of the processor, if the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    named = re.search(r"^model name\s*: *(.+)", text, re.M)
    return named[1].strip() if named else platform.processor() or platform.machine() or None


def installed_gpus() -> list[str]:
    """Return the name of each GPU."""
    import torch

    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ["Apple MPS"] if torch.backends.mps.is_available() else []

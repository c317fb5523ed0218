"""Measured peaks of memory of runs, and the correction of later counts by them.

A count excludes workspaces of kernels, fragmentation and, on a CPU, the process itself. Their size
depends on the machine, so a count is corrected by earlier runs on the same machine.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.formatting import counted
from hf_rlhf.runs.devices import Device
from hf_rlhf.runs.machine import cpu_name, installed_gpus
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record

LEAST = 2**28
"""Runs with a smaller count are ignored: most of their memory is the libraries' own."""
_NEWEST = 50


@dataclass(frozen=True)
class Correction:
    """Ratios of measured peaks to counts for runs on a machine."""

    ratios: tuple[float, ...]
    """Measured / counted."""
    where: str

    @property
    def factor(self) -> float:
        """The median of the ratios, at least 1; a count is multiplied by it."""
        return max(1.0, statistics.median(self.ratios))

    @property
    def error(self) -> float:
        """The largest error that a corrected count of these runs would have had."""
        return max(abs(ratio / self.factor - 1) for ratio in self.ratios)

    def __str__(self) -> str:
        """Return the text that is printed with a corrected count."""
        spread = f" ({min(self.ratios):.2f} to {max(self.ratios):.2f})" * (len(self.ratios) > 1)
        runs = counted(len(self.ratios), "run")
        return f"× {self.factor:.2f}{spread}, as measured in {runs} {self.where}"


def correction(folder: Path, device: Device | None = None) -> Correction | None:
    """Return the correction by finished runs in `folder`; None without a usable run.

    It uses runs on `device`, by default this kind of machine, among the newest 50.
    """
    own_gpus, own_cpu = installed_gpus(), cpu_name()
    # Records have the vendor's name of a GPU, such as NVIDIA A100-SXM4-80GB.
    name = device.name.split("-")[0] if device is not None else (*own_gpus, own_cpu)[0]
    ratios = []
    for record in _records(folder):
        gpus, cpu = record.environment.gpu or [], record.environment.cpu
        if device is None:
            same = gpus[:1] == own_gpus[:1] and (bool(gpus) or cpu == own_cpu)
        else:
            same = any(name in gpu.replace("-", " ").split() for gpu in gpus)
        if same and (ratio := _ratio(record)):
            ratios.append(ratio)
    return Correction(tuple(ratios), f"of {folder} on {name}") if ratios else None


def _records(folder: Path) -> Iterator[RunRecord]:
    files = [file for file in folder.glob(f"*/{RECORD_NAME}") if file.is_file()]
    for file in sorted(files, key=lambda each: each.stat().st_mtime)[-_NEWEST:]:
        try:
            yield load_record(file.parent)
        except HfRlhfError:  # of another version, or damaged: not needed here
            continue


def _ratio(record: RunRecord) -> float | None:
    """Return measured / counted of a run that trained without interruption."""
    peak: dict[str, Any] = record.training.peak_memory or {}
    predicted = peak.get("predicted") or 0
    if predicted < LEAST or record.status != "finished" or len(record.sessions) != 1:
        return None
    measured = peak["bytes"] - (peak["before"] if peak["of"] == "RSS" else 0)
    return float(measured / predicted)

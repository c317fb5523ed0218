"""The machine that a dry run plans for: how many devices of which kind, by their data sheets."""

import re
from dataclasses import dataclass

from hf_rlhf.errors import HfRlhfError, did_you_mean


@dataclass(frozen=True)
class Device:
    """One GPU by its maker's data sheet."""

    name: str
    memory_gb: int
    """In 10^9 bytes."""
    tflops: int
    """Dense matrix products in bf16, 10^12 operations a second."""
    bandwidth: float
    """Of its memory, in 10^12 bytes a second."""


_SHEETS = (
    ("A10", 24, 125, 0.6),
    ("A100", 80, 312, 2.039),
    ("A100-40GB", 40, 312, 1.555),
    ("B200", 180, 2250, 7.7),
    ("H100", 80, 989, 3.35),
    ("H200", 141, 989, 4.8),
    ("L4", 24, 121, 0.3),
    ("L40S", 48, 362, 0.864),
    ("MI300X", 192, 1307, 5.3),
    ("RTX4090", 24, 165, 1.008),
)
"""The SXM versions, where there are several."""
DEVICES = {sheet[0]: Device(*sheet) for sheet in _SHEETS}


def parse_machine(text: str) -> tuple[int, Device]:
    """Return the number and the kind of devices in a text such as `8xH100` or `H100`."""
    match = re.fullmatch(r"(?:(\d{1,5})x)?(\S+)", text)
    name = match[2].upper() if match else ""
    by_upper = {known.upper(): device for known, device in DEVICES.items()}
    if match is None or name not in by_upper or match[1] == "0":
        raise HfRlhfError(
            f"--for {text!r} is not a machine{did_you_mean(name, DEVICES)}. Expected the number "
            f"and kind of its devices, such as 8xH100, of {', '.join(DEVICES)}."
        )
    return int(match[1] or 1), by_upper[name]

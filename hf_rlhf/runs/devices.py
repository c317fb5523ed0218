"""The machine that a dry run plans for: number and kind of devices, by data sheet."""

import re
from dataclasses import dataclass

from hf_rlhf.errors import HfRlhfError, did_you_mean


@dataclass(frozen=True)
class Device:
    """A GPU by its maker's data sheet."""

    name: str
    memory_gb: int
    """In 10^9 bytes."""


_GB = {"A10": 24, "A100": 80, "A100-40GB": 40, "B200": 180, "H100": 80, "H200": 141, "L4": 24}
_GB |= {"L40S": 48, "MI300X": 192, "RTX4090": 24}
DEVICES = {name: Device(name, memory) for name, memory in _GB.items()}


def parse_machine(text: str) -> tuple[int, Device]:
    """Return the number and the kind of devices in a text like `8xH100` or `H100`."""
    match = re.fullmatch(r"(?:(\d{1,5})x)?(\S+)", text)
    name = match[2].upper() if match else ""
    by_upper = {known.upper(): device for known, device in DEVICES.items()}
    if match is None or name not in by_upper or match[1] == "0":
        raise HfRlhfError(
            f"--for {text!r} is not a machine{did_you_mean(name, DEVICES)}. Expected the number "
            f"and kind of its devices, such as 8xH100, of {', '.join(DEVICES)}."
        )
    return int(match[1] or 1), by_upper[name]

"""Checkpoints as safetensors files: read a block of rows at a time, write a block at a time.

`safetensors.torch.save_file` wants a whole file's tensors in memory. Here the header is written
first, from names, dtypes and shapes that are known beforehand, and the data after it, so that
memory is bounded by a block whatever the size of the model, of its shards, or of its tensors.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.errors import ModelError
from hf_rlhf.storage.pure_json import parse_json

if TYPE_CHECKING:
    from torch import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32",
    "I64": "int64", "U64": "uint64", "F64": "float64",
}  # fmt: skip
"""safetensors' name of a dtype -> torch's."""
_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
_BLOCK = 1 << 20
"""Numbers in a block: few enough to stay in the processor's cache from reading to writing."""
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file, not yet read."""

    file: Path
    key: str
    dtype: str
    """As safetensors spells it: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    start: int
    """Where its data begins in the file, in bytes."""

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * _BYTES[self.dtype]

    def load(self) -> "Tensor":
        """Read it into memory."""
        return self._read(0, self.shape)

    def blocks(self) -> "Iterator[tuple[slice, Tensor]]":
        """Read it in blocks of whole rows (of the first dimension); yield each with its rows."""
        if not self.shape:
            yield slice(None), self.load()
            return
        width = max(1, math.prod(self.shape[1:]))
        step = max(1, _BLOCK // width)
        for first in range(0, self.shape[0], step):
            last = min(first + step, self.shape[0])
            yield slice(first, last), self._read(first * width, (last - first, *self.shape[1:]))

    def _read(self, skipped: int, shape: tuple[int, ...]) -> "Tensor":
        import torch

        # Not by safe_open: the pages of its mapping count as ours, and each costs a fault.
        data = torch.empty(math.prod(shape) * _BYTES[self.dtype], dtype=torch.uint8)
        try:
            with self.file.open("rb") as file:
                file.seek(self.start + skipped * _BYTES[self.dtype])
                got = file.readinto(data.numpy().data)
        except OSError as error:
            raise ModelError(f"{self.file} cannot be read: {error}.") from error
        if got != data.numel():
            raise ModelError(f"{self.file} became shorter while it was read.")
        tensor: Tensor = data.view(getattr(torch, DTYPES[self.dtype])).reshape(shape)
        return tensor


@dataclass(frozen=True)
class Entry:
    """A tensor about to be written: its name in the file, its dtype and shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * _BYTES[self.dtype]


def read_header(file: Path) -> dict[str, Stored]:
    """Return the tensors of one safetensors file by name; ModelError if it is not one."""
    from safetensors import SafetensorError, safe_open

    result = {}
    try:
        with safe_open(file, "np"):  # checks the header, and that no data is missing; without torch
            pass
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        for key, value in header.items():
            if key != "__metadata__":
                shape, start = tuple(value["shape"]), 8 + size + value["data_offsets"][0]
                result[key] = Stored(file, key, value["dtype"], shape, start)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{file} cannot be read as safetensors ({error}). It may be cut short: copy or "
            "download it again."
        ) from error
    return result


def open_checkpoint(folder: Path) -> dict[str, Stored]:
    """Return every tensor of a (sharded) checkpoint folder by its name in the files.

    Raises ModelError when the folder has no safetensors weights, or not all that its index names.
    """
    index = folder / INDEX
    if not index.exists():
        if (folder / SINGLE).exists():
            return read_header(folder / SINGLE)
        raise ModelError(_no_weights(folder))
    try:
        weight_map = dict[str, str](parse_json(index.read_text(encoding="utf-8"))["weight_map"])
    except (ValueError, LookupError, TypeError) as error:
        raise ModelError(
            f"{index} is not an index of shards ({error}). Download it again."
        ) from error
    result: dict[str, Stored] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelError(
                f"{index} names the file {name!r}, which {folder} does not have. "
                "Download the checkpoint again."
            )
        result.update(read_header(folder / name))
    if absent := sorted(set(weight_map) - set(result)):
        raise ModelError(
            f"{folder}: the shards lack {len(absent)} tensors that {INDEX} promises, such as "
            f"{absent[0]}. Download the checkpoint again."
        )
    return {key: result[key] for key in weight_map}


def _no_weights(folder: Path) -> str:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if not pickled:
        return f"{folder} has neither {SINGLE} nor {INDEX}, so there are no weights to merge into."
    return (
        f"{folder} has its weights only as a pickle ({pickled[0]}), which can run code when it is "
        "read. Convert it once, where you trust it: AutoModelForCausalLM.from_pretrained(DIR)"
        ".save_pretrained(NEW_DIR), and use NEW_DIR (or a revision that has safetensors)."
    )


def parse_size(size: int | str) -> int:
    """Return bytes from 5_000_000 or "5GB" (decimal, as on the Hub) or "5GiB"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", str(size).strip().upper())
    if match is None or float(match[1]) <= 0:
        raise ModelError(f'max_shard_size is {size!r}; expected bytes or text such as "5GB".')
    return int(float(match[1]) * _UNITS[match[2] or ""])


def write_checkpoint(
    folder: Path,
    entries: Sequence[Entry],
    produce: Callable[[str], Iterable["Tensor"]],
    max_shard_size: int | str = "5GB",
) -> list[Path]:
    """Write `entries` in order, asking `produce(key)` for each one's blocks when its turn comes.

    Shards are filled up to `max_shard_size`, with an index beside them; a checkpoint that fits in
    one becomes `model.safetensors` alone. Returns the files written.
    """
    shards = _split(entries, parse_size(max_shard_size))
    if len(shards) == 1:
        names = [SINGLE]
    else:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    weight_map = {}
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard, produce)
        weight_map.update({entry.key: name for entry in shard})
    files = [folder / name for name in names]
    if len(shards) > 1:
        total = sum(entry.nbytes for entry in entries)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        files.append(folder / INDEX)
    return files


def _split(entries: Sequence[Entry], limit: int) -> list[list[Entry]]:
    shards: list[list[Entry]] = [[]]
    filled = 0
    for entry in entries:
        if shards[-1] and filled + entry.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(entry)
        filled += entry.nbytes
    return shards


def _write_file(
    path: Path, entries: Sequence[Entry], produce: Callable[[str], Iterable["Tensor"]]
) -> None:
    import torch

    # Widest dtype first keeps every tensor aligned to its own size, as safetensors' writer does.
    ordered = sorted(entries, key=lambda entry: -_BYTES[entry.dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in ordered:
        end = offset + entry.nbytes
        header[entry.key] = {
            "dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, end]
        }  # fmt: skip
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in ordered:
            written = 0
            for block in produce(entry.key):
                data = block.contiguous().reshape(-1).view(torch.uint8)
                written += file.write(data.numpy().data)
            if written != entry.nbytes:
                raise ModelError(f"{entry.key} changed its size or dtype while {path} was written.")
        file.flush()
        os.fsync(file.fileno())

"""Read and write checkpoints as safetensors files, tensor by tensor.

`safetensors.torch.save_file` needs a whole file's tensors in memory. Here the header is written
first, from known dtypes and shapes, and then the data, so that memory is bounded by the largest
tensor for any size of model and shards.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hf_rlhf.errors import ModelError
from hf_rlhf.storage.pure_json import parse_json

if TYPE_CHECKING:
    from torch import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file, not yet read."""

    file: Path
    key: str
    dtype: str
    """In safetensors' notation: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    start: int
    """Byte offset of its data in the file."""
    nbytes: int

    def load(self) -> "Tensor":
        """Read it into memory. Raises ModelError."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file, "pt") as file:
                tensor: Tensor = file.get_tensor(self.key)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{self.file} cannot be read: {error}.") from error
        return tensor

    def copy_to(self, target: BinaryIO) -> None:
        """Append its data to an open file in pieces."""
        left = self.nbytes
        with self.file.open("rb") as file:
            file.seek(self.start)
            while left and (data := file.read(min(left, _CHUNK))):
                target.write(data)
                left -= len(data)


@dataclass(frozen=True)
class Computed:
    """A tensor that is computed when it is written."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    load: "Callable[[], Tensor]"


def read_header(file: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file by name. Raise ModelError for another file."""
    from safetensors import SafetensorError, safe_open

    result = {}
    try:
        with safe_open(file, "np"):  # checks the header, and that no data is missing; without torch
            pass
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{file} cannot be read as safetensors ({error}). It may be cut short: copy or "
            "download it again."
        ) from error
    header.pop("__metadata__", None)
    for key, value in header.items():
        start, end = value["data_offsets"]
        shape, nbytes = tuple(value["shape"]), end - start
        result[key] = Stored(file, key, value["dtype"], shape, 8 + size + start, nbytes)
    return result


def open_checkpoint(folder: Path) -> dict[str, Stored]:
    """Return every tensor of a (sharded) checkpoint folder by its name in the files.

    Raises ModelError if the folder has no safetensors weights, or files in its index are missing.
    """
    index = folder / INDEX
    if not index.exists():
        if (folder / SINGLE).exists():
            return read_header(folder / SINGLE)
        raise ModelError(
            f"{folder} has neither {SINGLE} nor {INDEX}. Convert other weights once, where you "
            "trust them: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)."
        )
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


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Stored | Computed], max_shard_size: int | str = "5GB"
) -> None:
    """Write `tensors` in order, each loaded only when written.

    Shards are filled up to `max_shard_size` (bytes, or text like "5GB"), with an index; a
    checkpoint of a single shard is `model.safetensors` alone.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    for name, keys in split.filename_to_tensors.items():
        _write_file(folder / name, {key: tensors[key] for key in keys})
    if split.is_sharded:
        weight_map = dict(sorted(split.tensor_to_filename.items()))
        index = {"metadata": split.metadata, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, tensors: Mapping[str, Stored | Computed]) -> None:
    import torch

    # Widest dtype first keeps every tensor aligned to its own size, as safetensors' writer does.
    ordered = sorted(
        tensors.items(), key=lambda each: -(each[1].nbytes // (math.prod(each[1].shape) or 1))
    )
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, tensor in ordered:
        start, end = end, end + tensor.nbytes
        offsets = [start, end]
        header[key] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key, tensor in ordered:
            before = file.tell()
            if isinstance(tensor, Stored):
                tensor.copy_to(file)
            else:
                data = tensor.load().contiguous().reshape(-1).view(torch.uint8)
                file.write(data.numpy().data)
            if file.tell() - before != tensor.nbytes:
                raise ModelError(f"{key} changed its size or dtype while {path} was written.")
        file.flush()
        os.fsync(file.fileno())

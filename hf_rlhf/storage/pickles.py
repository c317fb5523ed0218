"""Refuse a checkpoint that could run code, before anything reads it.

A pickle can call any function when it is loaded. transformers loads its own with torch's
restricted unpickler, but DeepSpeed loads its shards, and torch.distributed the `.metadata` of a
sharded (FSDP) checkpoint and all in its `.distcp` files that is no tensor, without any restriction.
So each of these is first read by a restricted unpickler here, weights left on disk: what passes
names nothing but tensors, containers and the few classes below, and does the same when it is loaded
again.
"""

import importlib
import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hf_rlhf.errors import RunFolderError

PICKLED = frozenset({".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"})
"""Kinds of files that some loader unpickles, beside the indices of sharded checkpoints."""
NEVER_READ = frozenset({"training_args.bin"})
"""transformers writes it and reads it in no run. Do not open it by hand either."""
_INDEX = ".metadata"
"""Of a sharded checkpoint; without a common one, `__RANK.metadata`."""
_TRUSTED = frozenset(
    {
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.utils.tensor_fragment.fragment_address",
        "torchao.optim.subclass_8bit.OptimState8bit",
        "torchao.optim.subclass_4bit.OptimState4bit",
        "torchao.optim.subclass_fp8.OptimStateFp8",
    }
)
"""What optimizer states name beside plain tensors: DeepSpeed's, and torchao's of few bits."""
_METADATA = {
    "torch.distributed.checkpoint.metadata": frozenset(
        {
            *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata"),
            *("TensorProperties", "ChunkStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        }
    ),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo", "_StoragePrefix"}),
}
"""What the index of a sharded checkpoint names, by module."""
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)|(?:function|class) ([\w.]+)")


def refuse_code(checkpoint: Path) -> None:
    """Return when loading `checkpoint` can run no code that it brings.

    Raises RunFolderError, naming the file and what it would call, or why it cannot be examined.
    """
    _check_tag(checkpoint)
    for path in _loaded(checkpoint):
        try:
            if path.suffix == ".safetensors":
                _read_header(path)
            elif path.name.endswith(_INDEX):
                _read_index(path)
            else:
                _read_restricted(path)
        # A damaged or hostile file makes an unpickler raise nearly anything.
        except Exception as error:  # noqa: BLE001
            raise RunFolderError(
                f"{path} is not read, for it could run code: {_cause(error)}. Nothing in it was "
                f"run. Delete {checkpoint} to go on from the checkpoint before it, and ask where "
                "the folder comes from."
            ) from None


def _loaded(checkpoint: Path) -> Iterator[Path]:
    for path in sorted(checkpoint.rglob("*")):
        if path.is_symlink() and path.is_dir():
            raise RunFolderError(
                f"{path} is a link to another folder, which a checkpoint never has: what is behind "
                "it is not examined. Put the folder itself there, if it is yours."
            )
        is_named_so = path.suffix.lower() in PICKLED or path.name.endswith(_INDEX)
        is_named_so |= path.suffix == ".safetensors"
        if path.is_file() and is_named_so and path.name not in NEVER_READ:
            yield path


def _check_tag(checkpoint: Path) -> None:
    """DeepSpeed loads the folder that `latest` names: it must be one that was examined."""
    latest = checkpoint / "latest"
    if not latest.is_file():
        return
    tag = latest.read_bytes().decode("utf-8", "replace").strip()
    if not re.fullmatch(r"\w[\w.-]{0,200}", tag) or not (checkpoint / tag).is_dir():
        raise RunFolderError(
            f"{latest} names {tag[:80]!r}, which is no folder of this checkpoint. Delete "
            f"{checkpoint} to go on from the checkpoint before it."
        )


def _read_header(path: Path) -> None:
    from safetensors import safe_open

    with safe_open(path, framework="pt"):
        pass


def _read_restricted(source: Path | bytes) -> None:
    import torch
    from transformers.trainer_pt_utils import safe_globals

    def opened() -> Path | io.BytesIO:
        return io.BytesIO(source) if isinstance(source, bytes) else source

    names = torch.serialization.get_unsafe_globals_in_checkpoint(opened())
    # Only what is named: DeepSpeed takes seconds to import, and fails where CUDA is half there.
    known = [_imported(name) for name in names if name in _TRUSTED]
    with safe_globals(), torch.serialization.safe_globals(known):
        # Only the structure is read: storages stay on disk.
        on_disk = isinstance(source, Path)
        torch.load(opened(), map_location="meta", mmap=on_disk, weights_only=True)


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _read_index(path: Path) -> None:
    """Read an index, and what it says is in the shards beside it and no tensor."""
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    with path.open("rb") as file:
        result = _Metadata(file).load()
    if not isinstance(result, Metadata):
        raise pickle.UnpicklingError(f"holds {type(result).__name__}, not an index")
    for index, stored in (result.storage_data or {}).items():
        # Tensors go through torch's restricted unpickler.
        if not isinstance(result.state_dict_metadata.get(index.fqn), TensorStorageMetadata):
            _read_value(path.parent, index.fqn, stored)


def _read_value(folder: Path, name: str, stored: Any) -> None:
    shard = (folder / stored.relative_path).resolve()
    if not shard.is_relative_to(folder.resolve()) or getattr(stored, "transform_descriptors", None):
        raise pickle.UnpicklingError(f"{name} is kept elsewhere, or in a form of its own")
    with shard.open("rb") as file:
        file.seek(stored.offset)
        content = file.read(stored.length)
    if not content.startswith(b"PK"):  # how torch writes it; older forms are read in other ways
        raise pickle.UnpicklingError(f"{name} was not written by torch.save")
    _read_restricted(content)


class _Metadata(pickle.Unpickler):
    """Reads the index of a sharded checkpoint: plain dataclasses over names, sizes and dtypes."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes that such an index is made of. Raises UnpicklingError."""
        import torch

        if name in _METADATA.get(module, ()):
            return getattr(importlib.import_module(module), name)
        if module == "torch":
            value = getattr(torch, name, None)
            if value is torch.Size or isinstance(value, torch.dtype):
                return value
        if (module, name) == ("torch.serialization", "_get_layout"):
            return torch.serialization._get_layout
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (
            module in ("pathlib", "pathlib._local") and name == "PosixPath"
        ):  # Python 3.13: the second
            return Path
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    if match := _GLOBAL.search(text):
        return f"it names {match[1] or match[2]}"
    return f"it is not what its name says ({type(error).__name__}: {text[:120]})"

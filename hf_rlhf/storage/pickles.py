"""Refuse a checkpoint that could run code, before anything reads it.

A pickle can call any function when it is loaded. transformers loads its own with torch's
restricted unpickler, but DeepSpeed loads its shards, and torch.distributed the `.metadata` of a
sharded (FSDP) checkpoint and all in its `.distcp` files that is no tensor, without any restriction.
So each of these is first read by a restricted unpickler here, weights left on disk: a file that
passes names only tensors, containers and the few classes below, and does the same when it is loaded
again.
"""

import importlib
import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError

PICKLED = frozenset({".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"})
"""Files that some loader unpickles, beside the indices of sharded checkpoints."""
NEVER_READ = frozenset({"training_args.bin"})
"""transformers writes it and never reads it in a run. Do not open it by hand either."""
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
"""Classes in optimizer states beside plain tensors: DeepSpeed's, and torchao's of few bits."""
_METADATA = {
    "torch.distributed.checkpoint.metadata": frozenset(
        {
            *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata"),
            *("TensorProperties", "ChunkStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        }
    ),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo", "_StoragePrefix"}),
}
"""Classes in the index of a sharded checkpoint, by module."""
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)|(?:function|class) ([\w.]+)")


def refuse_code(checkpoint: Path) -> None:
    """Return if loading `checkpoint` can run no code of its own.

    Raises RunFolderError with the file and the name it would call, or why it cannot be examined.
    """
    _check_tag(checkpoint)
    for path in _unpickled_files(checkpoint):
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


def _unpickled_files(checkpoint: Path) -> Iterator[Path]:
    for path in sorted(checkpoint.rglob("*")):
        if path.is_symlink() and path.is_dir():
            raise RunFolderError(
                f"{path} is a link to another folder, which a checkpoint never has: the folder is "
                "not examined. Put the folder itself there, if it is yours."
            )
        is_read = path.suffix.lower() in {*PICKLED, ".safetensors"} or path.name.endswith(_INDEX)
        if path.is_file() and is_read and path.name not in NEVER_READ:
            yield path


def _check_tag(checkpoint: Path) -> None:
    """Check that `latest` names a folder that is examined: DeepSpeed loads that folder."""
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
    # Only these: DeepSpeed takes seconds to import, and fails where CUDA is half installed.
    trusted = [_imported(name) for name in names if name in _TRUSTED]
    with safe_globals(), torch.serialization.safe_globals(trusted):
        # Only the structure is read: storages stay on disk.
        on_disk = isinstance(source, Path)
        torch.load(opened(), map_location="meta", mmap=on_disk, weights_only=True)


def _imported(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _read_index(path: Path) -> None:
    """Read an index, and the values in its shards that are no tensors."""
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    with path.open("rb") as file:
        metadata = _Metadata(file).load()
    if not isinstance(metadata, Metadata):
        raise pickle.UnpicklingError(f"holds {type(metadata).__name__}, not an index")
    for index, stored in (metadata.storage_data or {}).items():
        # Tensors go through torch's restricted unpickler.
        if not isinstance(metadata.state_dict_metadata.get(index.fqn), TensorStorageMetadata):
            _read_value(path.parent, index.fqn, stored)


def _read_value(folder: Path, name: str, stored: Any) -> None:
    shard = (folder / stored.relative_path).resolve()
    if not shard.is_relative_to(folder.resolve()) or getattr(stored, "transform_descriptors", None):
        raise pickle.UnpicklingError(f"{name} is stored elsewhere, or in another form")
    with shard.open("rb") as file:
        file.seek(stored.offset)
        content = file.read(stored.length)
    if not content.startswith(b"PK"):  # how torch writes it; older forms are read in other ways
        raise pickle.UnpicklingError(f"{name} was not written by torch.save")
    _read_restricted(content)


class _Metadata(pickle.Unpickler):
    """Reads the index of a sharded checkpoint: plain dataclasses over names, sizes and dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few classes of such an index. Raises UnpicklingError for others."""
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
        if name == "PosixPath" and module in ("pathlib", "pathlib._local"):  # from Python 3.13
            return Path
        raise pickle.UnpicklingError(f"GLOBAL {module}.{name}")


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    if match := _GLOBAL.search(text):
        return f"it names {match[1] or match[2]}"
    return f"it is not what its name says ({type(error).__name__}: {text[:120]})"

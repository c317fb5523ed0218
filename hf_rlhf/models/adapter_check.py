"""Whether an adapter folder holds an adapter: what ZeRO-3 and FSDP save wrongly is found here.

Weights that were not gathered before they were saved are tensors without elements, or not there;
names that a wrapper left its mark in are ignored when peft loads them, without a word.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ModelError, PublishError
from hf_rlhf.models.adapter import check_patterns, head_names, read_config
from hf_rlhf.models.safetensors import Stored, read_header

ADAPTER_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_LORA = re.compile(r"(?P<module>.+)\.lora_(?:embedding_)?(?P<part>[AB])(?:\.weight)?")
GATHER = (
    "Under DeepSpeed ZeRO-3 or FSDP this means that the weights were saved without being gathered "
    "first. Save with zero3_save_16bit_model: true (FSDP: a full state dict), or publish another "
    "checkpoint. Nothing was pushed."
)


def check_tensors(file: Path) -> Mapping[str, Stored]:
    """Return the tensors of a safetensors file; PublishError for none, or one with no elements."""
    try:
        tensors = read_header(file)
    except ModelError as error:
        raise PublishError(f"{error} Nothing was pushed.") from error
    if not tensors:
        raise PublishError(f"{file} holds no tensors. {GATHER}")
    for name, stored in tensors.items():
        if 0 in stored.shape:
            raise PublishError(f"{file}: {name} has shape {list(stored.shape)}: empty. {GATHER}")
    return tensors


def check_adapter(folder: Path) -> list[str]:
    """Refuse a folder that holds no whole adapter; return what its reader should know.

    Raises PublishError when the file is absent, has no tensors or empty ones, half a LoRA pair,
    or names that peft would not find in the modules that adapter_config.json targets.
    """
    file = folder / ADAPTER_FILE
    if not file.is_file():
        raise PublishError(f"{folder} has no {ADAPTER_FILE}. {GATHER}")
    tensors = check_tensors(file)
    try:
        config = read_config(folder)
        check_patterns(folder, config, sorted(tensors))
    except ModelError as error:
        raise PublishError(f"{error} Nothing was pushed.") from error
    for name in tensors:
        if not name.startswith(_PREFIX) or any(mark in name for mark in _WRAPPERS):
            raise PublishError(
                f"{file}: peft does not know the name {name!r}, and would load the adapter "
                "without it, silently. Save the unwrapped model: "
                "accelerator.unwrap_model(model).save_pretrained(...). Nothing was pushed."
            )
    if config.get("peft_type") != "LORA":
        return []
    _check_pairs(file, tensors, config)
    _check_head(folder, config, tensors)
    return _notes(file, tensors)


def _check_head(folder: Path, config: Mapping[str, Any], tensors: Iterable[str]) -> None:
    try:
        head_names(folder, config, tensors)
    except ModelError as error:
        raise PublishError(f"{error} Nothing was pushed.") from error


def _check_pairs(file: Path, tensors: Iterable[str], config: Mapping[str, Any]) -> None:
    parts: dict[str, set[str]] = {}
    for name in tensors:
        if match := _LORA.fullmatch(name.removeprefix(_PREFIX)):
            parts.setdefault(match["module"], set()).add(match["part"])
    for module, part in parts.items():
        if part != {"A", "B"}:
            absent = min({"A", "B"} - part)
            raise PublishError(f"{file}: {module} has no lora_{absent}. {GATHER}")
    targets = config.get("target_modules")
    if config.get("target_parameters") or not targets or targets == "all-linear":
        return
    if strange := sorted(module for module in parts if not _targeted(module, targets)):
        raise PublishError(
            f"{file} and adapter_config.json are not of one adapter: the file has {strange[0]} "
            f"({len(strange)} such modules), the configuration targets {targets}. Nothing was "
            "pushed."
        )
    if not parts and not config.get("modules_to_save"):
        raise PublishError(f"{file} has no LoRA weights for {targets}. {GATHER}")


def _targeted(module: str, targets: str | list[str]) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _notes(file: Path, tensors: Mapping[str, Stored]) -> list[str]:
    """Say so when the adapter changes nothing: a run without a learning signal ends like that."""
    names = [name for name in tensors if (m := _LORA.fullmatch(name)) and m["part"] == "B"]
    if not names or any(_anything(file, names)):
        return []
    return [
        "All `lora_B` weights of the adapter are zero, so it leaves the base model as it was: "
        "every reward of a group was the same, or the weights were not gathered before saving."
    ]


def _anything(file: Path, names: Iterable[str]) -> Iterable[bool]:
    # Bytes, since numpy knows no bfloat16 and torch takes seconds to import.
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        for name in names:
            start, end = header[name]["data_offsets"]
            stream.seek(8 + length + start)
            yield bool(stream.read(end - start).strip(b"\0\x80"))

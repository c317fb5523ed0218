"""Check a LoRA adapter folder from peft, and read it as edits to a base's parameters.

Weights that ZeRO-3 or FSDP saved without gathering are empty or absent tensors; peft silently
ignores names with a wrapper's prefix. Both are detected here. Sources: LoRA (arXiv:2106.09685),
rank-stabilised LoRA (arXiv:2312.03732), DoRA (arXiv:2402.09353); key names and scaling follow
`peft.tuners.lora`.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ModelError
from hf_rlhf.models.locate import read_json
from hf_rlhf.models.safetensors import Stored, read_header

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
CLASSIFIERS = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
}
"""`task_type` of an adapter of a classification model -> the class that loads the model."""
HEADS = ("score", "classifier")
"""Names in transformers and peft of the head of a sequence classification model."""
_WRAPPERS = ("_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module")
_GATHER = (
    "Under DeepSpeed ZeRO-3 or FSDP this means that the weights were saved without being gathered "
    "first. Save with zero3_save_16bit_model: true (FSDP: a full state dict), or use another "
    "checkpoint."
)
_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?:lora_(?:embedding_)?(?P<matrix>[AB])(?:\.weight)?"
    r"|(?P<bias>lora_B\.bias)|(?P<magnitude>lora_magnitude_vector)(?:\.weight)?)"
)
# Options under which the merged weight is no longer W + scaling * B A (or DoRA's form of it).
_UNMERGEABLE = (
    "alora_invocation_tokens", "arrow_config", "ensure_weight_tying", "kasa_config",
    "layer_replication", "megatron_config", "monteclora_config", "target_parameters",
    "trainable_token_indices", "use_bdlora", "use_qalora",
)  # fmt: skip
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("rank_pattern", "alpha_pattern"), (dict,)),
    **dict.fromkeys(("target_modules", "exclude_modules", "layers_pattern"), (str, list)),
    "modules_to_save": (list,),
    **dict.fromkeys(("base_model_name_or_path", "task_type", "revision"), (str,)),
}
# These initialisations keep the base weights; PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA and MiCA move
# part of them into the adapter.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class LoraEdit:
    """The change of a module: W + scaling * B A, rescaled by column for DoRA."""

    module: str
    a: Stored
    b: Stored
    scaling: float
    magnitude: Stored | None = None
    bias: Stored | None = None

    def apply(self, weight: "Tensor", *, transposed: bool) -> "Tensor":
        """Return the merged weight, in float32.

        `weight` is (out, in) as in `torch.nn.Linear`, or (in, out) when `transposed`: GPT-2's
        Conv1D, and embeddings, whose (vocabulary, hidden) counts as in, out.
        """
        import torch

        a, b = _finite(self.a).float(), _finite(self.b).float()
        left, right = (a.T, b.T) if transposed else (b, a)
        if (left.shape[0], right.shape[1]) != tuple(weight.shape):
            raise ModelError(
                f"{self.a.file}: the edit of {self.module} has shape "
                f"{(left.shape[0], right.shape[1])}, the base weight {tuple(weight.shape)}. The "
                "adapter was trained on another base."
            )
        merged = torch.addmm(weight.float(), left, right, alpha=self.scaling)
        if self.magnitude is None:
            return merged
        norm = torch.linalg.vector_norm(merged, dim=0 if transposed else 1, keepdim=True)
        return merged.mul_(_finite(self.magnitude).float().reshape(norm.shape) / norm)


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter folder. Names are of the base model's own modules and parameters."""

    folder: Path
    config: Mapping[str, Any]
    edits: Mapping[str, LoraEdit] = field(default_factory=dict)
    """Edits by module."""
    replacements: Mapping[str, Stored] = field(default_factory=dict)
    """New values by parameter: `modules_to_save`, trained biases, and embeddings saved in full."""

    def parameters(self) -> set[str]:
        """Return the names of the base parameters that it changes."""
        names = set(self.replacements)
        for edit in self.edits.values():
            names.add(f"{edit.module}.weight")
            if edit.bias is not None:
                names.add(f"{edit.module}.bias")
        return names

    def merged(self, name: str, base: Stored, *, transposed: bool) -> "Tensor":
        """Return parameter `name` with every change applied to `base`, in float32."""
        value = _finite(self.replacements[name]) if name in self.replacements else base.load()
        module, _, kind = name.rpartition(".")
        edit = self.edits.get(module)
        if edit is not None and kind == "weight":
            return edit.apply(value, transposed=transposed)
        if edit is not None and kind == "bias" and edit.bias is not None:
            return value.float() + _finite(edit.bias).float() * edit.scaling
        return value.float()


def read_adapter(folder: Path) -> LoraAdapter:
    """Read and check an adapter folder. Raises ModelError if it cannot be merged."""
    config = _mergeable_config(folder)
    file = folder / WEIGHTS
    if not file.exists():
        pickled = (folder / "adapter_model.bin").exists()
        fix = ", only a pickle; save it again with safe_serialization=True." if pickled else "."
        raise ModelError(f"{folder} has no {WEIGHTS}{fix}")
    parts, replacements = _split_tensors(check_tensors(file))
    edits = {module: _edit(file, module, part, config) for module, part in parts.items()}
    return LoraAdapter(folder, config, edits, replacements)


def check_tensors(file: Path) -> Mapping[str, Stored]:
    """Return the tensors of a safetensors file. Raise ModelError if missing or empty."""
    tensors = read_header(file)
    if not tensors:
        raise ModelError(f"{file} holds no tensors. {_GATHER}")
    for name, stored in tensors.items():
        if 0 in stored.shape:
            raise ModelError(_empty(file, name, stored))
    return tensors


def check_adapter(folder: Path) -> list[str]:
    """Check that a folder holds a complete adapter of any peft type; return notes.

    Raises ModelError if the file is absent, has no tensors or empty tensors, half a LoRA pair, or
    names that peft would not find in the target modules of adapter_config.json.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise ModelError(f"{folder} has no {WEIGHTS}. {_GATHER}")
    tensors = check_tensors(file)
    config = read_config(folder)
    for name in tensors:
        if not name.startswith(_PREFIX) or any(mark in name for mark in _WRAPPERS):
            raise ModelError(
                f"{file}: peft does not know the name {name!r}, and would load the adapter "
                "without it, silently. Save the unwrapped model: "
                "accelerator.unwrap_model(model).save_pretrained(...)."
            )
    if config.get("peft_type") != "LORA":
        return []
    parts, _ = _split_tensors(tensors)
    pairs = [_pair(file, module, matrices) for module, matrices in parts.items()]
    _check_targets(file, parts, config)
    head_names(folder, config, tensors)
    if not pairs or any(_is_nonzero(b) for _, b in pairs):
        return []
    return [
        "All `lora_B` weights of the adapter are zero, so it leaves the base model as it was: "
        "every reward of a group was the same, or the weights were not gathered before saving."
    ]


def _split_tensors(
    tensors: Mapping[str, Stored],
) -> tuple[dict[str, dict[str, Stored]], dict[str, Stored]]:
    """Return the parts of each module's LoRA, and the other tensors by parameter."""
    parts: dict[str, dict[str, Stored]] = {}
    others = {}
    for key, stored in tensors.items():
        name = key.removeprefix(_PREFIX)
        if match := _PART.fullmatch(name):
            part = match["matrix"] or str(match.lastgroup)
            parts.setdefault(match["module"], {})[part] = stored
        else:
            others[name.replace(".base_layer.", ".")] = stored
    return parts, others


def _pair(file: Path, module: str, parts: Mapping[str, Stored]) -> tuple[Stored, Stored]:
    for matrix in "AB":
        if matrix not in parts:
            raise ModelError(f"{file}: {module} has no lora_{matrix}. {_GATHER}")
    return parts["A"], parts["B"]


def _check_targets(file: Path, modules: Collection[str], config: Mapping[str, Any]) -> None:
    targets = config.get("target_modules")
    if config.get("target_parameters") or not targets or targets == "all-linear":
        return
    if strange := sorted(module for module in modules if not is_target(module, targets)):
        raise ModelError(
            f"{file} and {CONFIG} are not of one adapter: the file has {strange[0]} "
            f"({len(strange)} such modules), the configuration targets {targets}."
        )
    if not modules and not config.get("modules_to_save"):
        raise ModelError(f"{file} has no LoRA weights for {targets}. {_GATHER}")


def is_target(module: str, targets: str | Collection[str]) -> bool:
    """Return whether peft targets a module: text is a pattern, list items are name suffixes."""
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(f".{module}".endswith(f".{target}") for target in targets)


def _is_nonzero(stored: Stored) -> bool:
    # Bytes, since numpy knows no bfloat16 and torch takes seconds to import; 0x80 is of -0.0.
    with stored.file.open("rb") as stream:
        stream.seek(stored.start)
        return bool(stream.read(stored.nbytes).strip(b"\0\x80"))


def check_head(adapter: LoraAdapter) -> dict[str, Stored]:
    """Return the parameters of a classification adapter's head; empty for other adapters.

    Raises ModelError like `head_names`.
    """
    names = head_names(adapter.folder, adapter.config, adapter.replacements)
    return {name: adapter.replacements[name] for name in names}


def head_names(folder: Path, config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the names of an adapter's tensors for a classification head.

    Raises ModelError if a classification adapter has no head: its scores would come from a random
    head.
    """
    if config.get("task_type") not in CLASSIFIERS:
        return []
    head = [name for name in names if name.split(".")[-2:-1] and name.split(".")[-2] in HEADS]
    if not any(name.endswith("weight") for name in head):
        raise ModelError(
            f"{folder} is an adapter of a classification model without its head: "
            f"{WEIGHTS} has no {' or '.join(f'{name}.weight' for name in HEADS)}, "
            "so it would score by a head drawn at random. Train it with modules_to_save=['score'] "
            f"(lora_task_type {config['task_type']}), and save it again."
        )
    return head


def _empty(file: Path, key: str, stored: Stored) -> str:
    return f"{file}: {key} has shape {list(stored.shape)}: empty. {_GATHER}"


def read_config(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration. Raises ModelError for a file that peft did not write."""
    path = folder / CONFIG
    if not path.exists():
        raise ModelError(f"{folder} is not an adapter: it has no {CONFIG}.")
    config = read_json(path)
    for key, kinds in _KINDS.items():
        if not isinstance(value := config.get(key), (*kinds, type(None))):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ModelError(
                f"{path}: {key} is of type {type(value).__name__}, expected {expected}."
            )
    return config


def _mergeable_config(folder: Path) -> dict[str, Any]:
    path, config = folder / CONFIG, read_config(folder)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"{path}: peft_type is {kind!r}; only LORA (with DoRA, rslora, modules_to_save) is "
            "merged here. Publish this adapter without merging, or use peft's merge_and_unload."
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float)):
        raise ModelError(
            f"{path}: r is {rank!r} and lora_alpha {alpha!r}; expected two numbers, r above 0."
        )
    for option in _UNMERGEABLE:
        if config.get(option):
            raise ModelError(
                f"{path}: {option} is {config[option]!r}, which this merge does not handle. Use "
                "peft's merge_and_unload where it supports it, or publish the adapter alone."
            )
    start = config.get("init_lora_weights")
    if start not in _PLAIN_STARTS:
        raise ModelError(
            f"{path}: init_lora_weights is {start!r}, which changes the base weights too. Save the "
            "adapter again with save_pretrained(..., path_initial_model_for_weight_conversion="
            "INITIAL_ADAPTER); peft then writes a plain LoRA."
        )
    return config


def _edit(
    file: Path, module: str, parts: Mapping[str, Stored], config: Mapping[str, Any]
) -> LoraEdit:
    a, b = _pair(file, module, parts)
    for matrix in (a, b):
        if len(matrix.shape) > 2:
            raise ModelError(f"{file}: {module} is a convolution, which this merge does not do.")
        if len(matrix.shape) < 2:
            raise ModelError(_empty(file, matrix.key, matrix))
    rank = _pattern(config.get("rank_pattern"), module, config["r"])
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ModelError(
            f"{file}: {module} has A {a.shape} and B {b.shape}, but {CONFIG} says rank {rank}. "
            "The two files are not of one adapter."
        )
    if bool(config.get("use_dora")) != ("magnitude" in parts):
        raise ModelError(f"{file}: use_dora and lora_magnitude_vector disagree for {module}.")
    alpha = _pattern(config.get("alpha_pattern"), module, config["lora_alpha"])
    scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LoraEdit(module, a, b, scaling, parts.get("magnitude"), parts.get("bias"))


def _pattern(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Return the value of peft's `rank_pattern` or `alpha_pattern` for a module."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _finite(stored: Stored) -> "Tensor":
    tensor = stored.load()
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ModelError(
            f"{stored.file}: {stored.key} holds NaN or infinity, so the training diverged. "
            "Merge an earlier checkpoint."
        )
    return tensor

"""A LoRA adapter folder, as peft saves it, read as edits to a base model's parameters.

Sources: LoRA (arXiv:2106.09685), rank-stabilised LoRA (arXiv:2312.03732), DoRA
(arXiv:2402.09353); key names and scaling follow `peft.tuners.lora`.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ModelError
from hf_rlhf.models.safetensors import Stored, read_header
from hf_rlhf.storage.bounded import WHOLE_NAME, pattern_problem
from hf_rlhf.storage.pure_json import parse_json

if TYPE_CHECKING:
    from torch import Tensor

    Change = Callable[[Tensor, slice], Tensor]
    """Takes rows of a parameter, and which they are; returns them changed."""

HEADS = ("score", "classifier")
"""What transformers and peft call the head of a sequence classification model."""
_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<ab>[AB])\.weight|lora_embedding_(?P<emb>[AB])"
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
}
# These initialisations leave the base weights as they are; the others (PiSSA, OLoRA, CorDA,
# LoftQ, LoRA-GA, MiCA) move part of them into the adapter.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class LoraEdit:
    """What an adapter does to one module: W + scaling * B A, rescaled by column for DoRA."""

    module: str
    a: Stored
    b: Stored
    scaling: float
    magnitude: Stored | None = None
    bias: Stored | None = None

    def whole(self, *, transposed: bool) -> bool:
        """Whether it needs all rows of the weight at once: DoRA, where they are not the outputs."""
        return self.magnitude is not None and transposed

    def on_weight(self, shape: tuple[int, ...], *, transposed: bool) -> "Change":
        """Return the edit of some rows of a weight of `shape`, in float32.

        The weight is (out, in) as in `torch.nn.Linear`, or (in, out) when `transposed`: GPT-2's
        Conv1D, and embeddings, whose (vocabulary, hidden) counts as in, out.
        """
        import torch

        a, b = _finite(self.a).float(), _finite(self.b).float()
        left, right = (a.T, b.T) if transposed else (b, a)
        if (left.shape[0], right.shape[1]) != tuple(shape):
            raise ModelError(
                f"{self.a.file}: the edit of {self.module} has shape "
                f"{(left.shape[0], right.shape[1])}, the base weight {tuple(shape)}. The adapter "
                "was trained on another base."
            )
        magnitude = None if self.magnitude is None else _finite(self.magnitude).float()

        def change(block: "Tensor", rows: slice) -> "Tensor":
            merged = torch.addmm(block.float(), left[rows], right, alpha=self.scaling)
            if magnitude is None:
                return merged
            norm = torch.linalg.vector_norm(merged, dim=0 if transposed else 1, keepdim=True)
            wanted = magnitude if transposed else magnitude.flatten()[rows]
            return merged.mul_(wanted.reshape(norm.shape) / norm)

        return change

    def on_bias(self) -> "Change":
        """Return the edit of some of the module's biases, in float32."""
        assert self.bias is not None
        bias = _finite(self.bias).float() * self.scaling
        return lambda block, rows: block.float() + bias[rows]


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter folder. Names are those of the base model's own modules and parameters."""

    folder: Path
    config: Mapping[str, Any]
    edits: Mapping[str, LoraEdit] = field(default_factory=dict)
    """By module."""
    replacements: Mapping[str, Stored] = field(default_factory=dict)
    """By parameter: `modules_to_save`, trained biases, and embeddings saved whole."""

    def parameters(self) -> set[str]:
        """Return the names of the base parameters that it changes."""
        names = set(self.replacements)
        for edit in self.edits.values():
            names.add(f"{edit.module}.weight")
            if edit.bias is not None:
                names.add(f"{edit.module}.bias")
        return names

    def merged(self, name: str, base: Stored, *, transposed: bool) -> "Iterator[Tensor]":
        """Yield parameter `name` with every change applied to `base`: blocks of rows, float32."""
        source = self.replacements.get(name, base)
        change: Change = lambda block, rows: block.float()  # noqa: E731
        module, _, kind = name.rpartition(".")
        edit = self.edits.get(module)
        whole = False
        if edit is not None and kind == "weight":
            change = edit.on_weight(source.shape, transposed=transposed)
            whole = edit.whole(transposed=transposed)
        elif edit is not None and kind == "bias" and edit.bias is not None:
            change = edit.on_bias()
        for rows, block in [(slice(None), source.load())] if whole else source.blocks():
            if source is not base:
                _check_finite(source, block)
            yield change(block, rows)


def read_adapter(folder: Path) -> LoraAdapter:
    """Read and check an adapter folder; raises ModelError, naming what cannot be merged and why."""
    config = _mergeable_config(folder)
    file = folder / "adapter_model.safetensors"
    if not file.exists():
        pickled = (folder / "adapter_model.bin").exists()
        raise ModelError(
            f"{folder} has no adapter_model.safetensors"
            + (", only a pickle; save it again with safe_serialization=True." if pickled else ".")
        )
    parts: dict[str, dict[str, Stored]] = {}
    replacements = {}
    for key, stored in read_header(file).items():
        if 0 in stored.shape:
            raise ModelError(_ungathered(file, key, stored))
        name = key.removeprefix(_PREFIX)
        match = _PART.fullmatch(name)
        if match is None:
            replacements[name.replace(".base_layer.", ".")] = stored
            continue
        part = match["ab"] or (match["emb"] and f"embedding_{match['emb']}") or match.lastgroup
        parts.setdefault(match["module"], {})[str(part)] = stored
    if not parts and not replacements:
        raise ModelError(f"{file} holds no tensors. {_GATHER}")
    check_patterns(folder, config, sorted(parts))
    edits = {module: _edit(file, module, part, config) for module, part in parts.items()}
    return LoraAdapter(folder, config, edits, replacements)


def check_head(adapter: LoraAdapter) -> dict[str, Stored]:
    """Return the parameters of a classification adapter's head; empty for other adapters.

    Raises ModelError as `head_names` does.
    """
    names = head_names(adapter.folder, adapter.config, adapter.replacements)
    return {name: adapter.replacements[name] for name in names}


def head_names(folder: Path, config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return which of an adapter's tensors are the head of a classification model.

    Raises ModelError when it is one of such a model and has none: its scores would be those of a
    head drawn at random.
    """
    if config.get("task_type") != "SEQ_CLS":
        return []
    head = [name for name in names if name.split(".")[-2:-1] and name.split(".")[-2] in HEADS]
    if not any(name.endswith("weight") for name in head):
        raise ModelError(
            f"{folder} is an adapter of a classification model without its head: "
            f"adapter_model.safetensors has no {' or '.join(f'{name}.weight' for name in HEADS)}, "
            "so it would score by a head drawn at random. Train it with modules_to_save=['score'] "
            "(lora_task_type SEQ_CLS), and save it again."
        )
    return head


_GATHER = (
    "Under DeepSpeed ZeRO-3 or FSDP this means that the weights were saved without being gathered "
    "first. Save with zero3_save_16bit_model: true (or gather, then save), or merge another "
    "checkpoint."
)


def _ungathered(file: Path, key: str, stored: Stored) -> str:
    return f"{file}: {key} has shape {stored.shape}, so there is nothing in it. {_GATHER}"


def read_config(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration. Raises ModelError for a file that peft never writes."""
    path = folder / "adapter_config.json"
    try:
        config: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder} is not an adapter: it has no adapter_config.json.") from None
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds {type(config).__name__}, not a mapping. Copy it again.")
    for key, kinds in _KINDS.items():
        if not isinstance(config.get(key), (*kinds, type(None))):
            result, wanted = (
                type(config[key]).__name__,
                " or ".join(kind.__name__ for kind in kinds),
            )
            raise ModelError(f"{path}: {key} is of type {result}, expected {wanted}.")
    return config


def _mergeable_config(folder: Path) -> dict[str, Any]:
    path, config = folder / "adapter_config.json", read_config(folder)
    _check_numbers(path, config)
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"{path}: peft_type is {kind!r}; only LORA (with DoRA, rslora, modules_to_save) is "
            "merged here. Publish this adapter without merging, or use peft's merge_and_unload."
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


def _check_numbers(path: Path, config: Mapping[str, Any]) -> None:
    rank, alpha = config.get("r"), config.get("lora_alpha")
    numbers = isinstance(rank, int) and rank > 0 and isinstance(alpha, (int, float))
    if config.get("peft_type") == "LORA" and not numbers:
        raise ModelError(
            f"{path}: r is {rank!r} and lora_alpha {alpha!r}; expected two numbers, r above 0."
        )


def check_patterns(folder: Path, config: Mapping[str, Any], modules: Sequence[str]) -> None:
    """Raise ModelError for an adapter whose patterns do not finish on the module names.

    They are matched as peft does, which does it with whatever a file says.
    """
    layers = config.get("layers_pattern") or ()
    layers = (layers,) if isinstance(layers, str) else layers
    patterns = [
        *((WHOLE_NAME, config.get(key)) for key in ("target_modules", "exclude_modules")),
        *((r"(.*\.)?({})$", item) for item in config.get("rank_pattern") or ()),
        *((r"(.*\.)?({})$", item) for item in config.get("alpha_pattern") or ()),
        *((r"(^|.*\.){}($|\..*)", item) for item in config.get("modules_to_save") or ()),
        *((r"(?:^|.*?\.){}\.(?P<idx>\d+)\.", layer) for layer in layers),
    ]
    texts = [(form, item) for form, item in patterns if isinstance(item, str)]
    if problem := pattern_problem(texts, modules):
        raise ModelError(
            f"{folder / 'adapter_config.json'}: a pattern for module names {problem}. List the "
            "names instead, or write a simpler pattern."
        )


def _edit(
    file: Path, module: str, found: Mapping[str, Stored], config: Mapping[str, Any]
) -> LoraEdit:
    prefix = "embedding_" if "embedding_A" in found or "embedding_B" in found else ""
    a, b = found.get(f"{prefix}A"), found.get(f"{prefix}B")
    if a is None or b is None:
        raise ModelError(f"{file}: {module} has {', '.join(sorted(found))} but not both A and B.")
    if len(a.shape) != 2 or len(b.shape) != 2:
        if len(a.shape) > 2 or len(b.shape) > 2:
            raise ModelError(f"{file}: {module} is a convolution, which this merge does not do.")
        raise ModelError(_ungathered(file, module, a if len(a.shape) != 2 else b))
    rank = _pattern(config.get("rank_pattern"), module, config["r"])
    if a.shape[0] != rank or b.shape[1] != rank:
        raise ModelError(
            f"{file}: {module} has A {a.shape} and B {b.shape}, but adapter_config.json says rank "
            f"{rank}. The two files are not of one adapter."
        )
    if bool(config.get("use_dora")) != ("magnitude" in found):
        raise ModelError(f"{file}: use_dora and lora_magnitude_vector disagree for {module}.")
    alpha = _pattern(config.get("alpha_pattern"), module, config["lora_alpha"])
    scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LoraEdit(module, a, b, scaling, found.get("magnitude"), found.get("bias"))


def _pattern(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """Return the value that peft's `rank_pattern` or `alpha_pattern` gives a module."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _finite(stored: Stored) -> "Tensor":
    tensor = stored.load()
    _check_finite(stored, tensor)
    return tensor


def _check_finite(stored: Stored, tensor: "Tensor") -> None:
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ModelError(
            f"{stored.file}: {stored.key} holds NaN or infinity, so the training diverged. "
            "Merge an earlier checkpoint."
        )

"""Merge a LoRA adapter into its base model without ever holding the model.

Tensors stream from the base's safetensors files to new ones in blocks of rows; the arithmetic is
float32 and the result has the base's dtype. Equal to peft's `merge_and_unload` within the rounding
of that dtype. Only the model's structure is built (on torch's meta device), for what files do
not say: which weights are stored transposed, which are tied, and how names map to modules.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import ModelError
from hf_rlhf.models.adapter import LoraAdapter, read_adapter
from hf_rlhf.models.classifier import Classifier
from hf_rlhf.models.safetensors import (
    DTYPES,
    INDEX,
    Entry,
    Stored,
    open_checkpoint,
    write_checkpoint,
)
from hf_rlhf.storage.files import atomic_dir

if TYPE_CHECKING:
    from torch import Tensor

_TARGETS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_FLOATS = ("F64", "F32", "BF16", "F16")
_COMPANIONS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm")
"""Config, tokenizer and chat template files: what goes along with weights. Never a pickle."""
_NOT_COMPANIONS = (
    *("adapter_config.json", "base_identity.json", "trainer_state.json"),
    *(INDEX, "manifest.json", "run.json"),
)
_BASE_PATTERNS = ["*.safetensors", *(f"*{suffix}" for suffix in _COMPANIONS)]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did."""

    folder: Path
    files: tuple[str, ...]
    merged: tuple[str, ...]
    """Parameters that the adapter changed, under the model's own names."""
    untied: bool
    """Whether input and output embeddings, tied in the base, now differ."""
    parameters: int
    dtype: str


def merge_adapter(
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | None = None,
    max_shard_size: int | str = "5GB",
    overwrite: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> MergeReport:
    """Write `base` with `adapter` merged in, its config and its tokenizer, to the folder `out`.

    `base` is a folder or a Hub id (at `revision`). Handled: LoRA on Linear, Conv1D and Embedding;
    rslora, rank and alpha patterns, DoRA, `modules_to_save`, trained and LoRA biases; tied
    embeddings, which are untied when the adapter changes one side. A tokenizer saved beside the
    adapter replaces the base's. `dtype` (float32, bfloat16, float16) casts all floating weights.

    An adapter of sequence classification on a base of another kind, as of a reward model, brings
    its score head: what is written is a sequence classification model, without the base's own head.

    `out` appears complete or not at all; one that exists is refused unless `overwrite`. Raises
    ModelError for what cannot be merged, RunFolderError for what cannot be written.
    """
    if dtype is not None and dtype not in _TARGETS:
        raise ModelError(f"dtype is {dtype!r}; expected one of {', '.join(_TARGETS)}.")
    lora = read_adapter(Path(adapter))
    source = _base_folder(base, revision, endpoint, token)
    plan = _Plan.make(source, lora, _TARGETS[dtype] if dtype else None)
    with atomic_dir(out, overwrite=overwrite) as folder:
        write_checkpoint(folder, list(plan.entries.values()), plan.blocks, max_shard_size)
        _copy_companions(source, lora.folder, folder)
        _write_config(source, folder, dtype, untied=plan.untied, classifier=plan.classifier)
    return MergeReport(
        folder=Path(out),
        files=tuple(sorted(path.name for path in Path(out).iterdir())),
        merged=tuple(sorted(lora.parameters())),
        untied=plan.untied,
        parameters=plan.parameters(),
        dtype=dtype or _config_dtype(source),
    )


def _base_folder(
    base: str | os.PathLike[str], revision: str | None, endpoint: str | None, token: str | None
) -> Path:
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                os.fspath(base),
                revision=revision,
                endpoint=endpoint,
                token=token,
                allow_patterns=_BASE_PATTERNS,
                # The same weights again, for other libraries.
                ignore_patterns=["consolidated*", "*/*"],
            )
        )
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        at = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"The base model {os.fspath(base)!r}{at} is neither a folder nor to be had from the "
            f"Hub: {error}"
        ) from error


@dataclass(frozen=True)
class _Plan:
    """Which tensor to write under which key, and where each comes from."""

    entries: Mapping[str, Entry]
    sources: Mapping[str, Stored]
    names: Mapping[str, str]
    """Key in the files -> parameter of the model, for parameters that the adapter changes."""
    transposed: Mapping[str, bool]
    lora: LoraAdapter
    untied: bool
    classifier: Classifier | None = None
    """What the model becomes, where the base is of another kind."""

    @classmethod
    def make(cls, source: Path, lora: LoraAdapter, dtype: str | None) -> "_Plan":
        stored = open_checkpoint(source)
        model = _skeleton(source)
        # Under ZeRO-3 transformers would build it with all processes, and only one is here.
        with whole_weights():
            classifier = Classifier.of(model, lora)
        if classifier is not None:
            stored = classifier.tensors(stored, _keys_by_parameter(model, stored))
            model = classifier.model
        keys = _keys_by_parameter(model, stored)
        changed = lora.parameters()
        _check_names(lora, model, changed)
        sources = dict(stored)
        untied = False
        for alias, original in getattr(model, "all_tied_weights_keys", {}).items():
            if original not in keys:
                continue
            if changed & {alias, original}:
                # The adapter was trained on the two apart: a LoRA sees only its own module.
                sources.setdefault(keys.setdefault(alias, alias), stored[keys[original]])
                untied = True
            elif alias in keys and _same(stored[keys[alias]], stored[keys[original]]):
                del sources[keys[alias]]
        if absent := sorted(name for name in changed if name not in keys):
            raise ModelError(
                f"{lora.folder} changes {', '.join(absent[:5])} ({len(absent)} in all), which "
                f"{source} has no tensor for, or keeps in another form (fused or split). Merge "
                "with peft's merge_and_unload, or publish the adapter alone."
            )
        names = {keys[name]: name for name in changed}
        _check_shapes(lora, {name: sources[keys[name]] for name in changed})
        entries = {
            key: Entry(key, dtype if dtype and at.dtype in _FLOATS else at.dtype, at.shape)
            for key, at in sources.items()
        }
        transposed = {name: _is_transposed(model, name) for name in changed}
        return cls(entries, sources, names, transposed, lora, untied, classifier)

    def blocks(self, key: str) -> "Iterator[Tensor]":
        """Yield what is to be written under `key`, in blocks of rows."""
        import torch

        source = self.sources[key]
        dtype = getattr(torch, DTYPES[self.entries[key].dtype])
        name = self.names.get(key)
        if name is None:
            yield from (block.to(dtype) for _, block in source.blocks())
            return
        for merged in self.lora.merged(name, source, transposed=self.transposed[name]):
            value = merged.to(dtype)
            if not value.isfinite().all():
                raise ModelError(
                    f"{name} merged into {value.dtype} holds NaN or infinity. If the base is "
                    'sound, the numbers do not fit in that dtype: merge with dtype="bfloat16".'
                )
            yield value

    def parameters(self) -> int:
        """Return how many numbers the merged model has."""
        return sum(math.prod(entry.shape) for entry in self.entries.values())


def _skeleton(source: Path) -> Any:
    """Build the base model's modules without weights."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{source} has no usable config.json: {error}") from error
    if getattr(config, "quantization_config", None) is not None:
        method = _field(config.quantization_config, "quant_method")
        raise ModelError(
            f"{source}/config.json has a quantization_config ({method}): LoRA cannot be merged "
            "into quantised weights without loss. Merge into the unquantised base that it was "
            "made from (base_model_name_or_path, or --publish.base_model)."
        )
    architectures = config.architectures or []
    model_class = getattr(transformers, architectures[0], None) if architectures else None
    if model_class is None:
        raise ModelError(
            f"{source}/config.json names the architecture {architectures}, which transformers "
            f"{transformers.__version__} does not have; models with their own code are merged "
            "with peft's merge_and_unload."
        )
    with torch.device("meta"):
        return model_class(config)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _keys_by_parameter(model: Any, stored: Mapping[str, Stored]) -> dict[str, str]:
    """Map each of the model's parameters to its key in the files.

    transformers renames while loading (an older prefix, another nesting); the same rules are
    asked here. Parameters that it assembles from several tensors, or changes, are left out.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    rules = get_model_conversion_mapping(model)
    parameters = set(model.state_dict())
    prefix = f"{model.base_model_prefix}."
    result: dict[str, str] = {}
    for key in stored:
        name = key
        converted = False
        for rule in rules:
            name, matched = rule.rename_source_key(name)
            converted |= matched is not None and isinstance(rule, WeightConverter)
        candidates = (name, prefix + name, name.removeprefix(prefix))
        name = next((candidate for candidate in candidates if candidate in parameters), name)
        if not converted and name in parameters:
            result[name] = key
    return result


def _check_names(lora: LoraAdapter, model: Any, changed: set[str]) -> None:
    parameters = set(model.state_dict())
    if unknown := sorted(changed - parameters):
        raise ModelError(
            f"{lora.folder}: {len(unknown)} of {len(changed)} tensors match nothing in "
            f"{type(model).__name__}: {', '.join(unknown[:5])}. The adapter was trained on another "
            f"base or class ({lora.config.get('base_model_name_or_path')}, "
            f"{lora.config.get('task_type')})."
        )


def _check_shapes(lora: LoraAdapter, base: Mapping[str, Stored]) -> None:
    for name, replacement in lora.replacements.items():
        if replacement.shape != base[name].shape:
            raise ModelError(
                f"{lora.folder}: {name} has shape {replacement.shape}, the base "
                f"{base[name].shape}. If the vocabulary was resized for training, save the base "
                "resized (model.resize_token_embeddings, save_pretrained) and name that as base."
            )


def _is_transposed(model: Any, name: str) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    module = model.get_submodule(name.rpartition(".")[0])
    return isinstance(module, (Conv1D, nn.Embedding))


def _same(stored: Stored, other: Stored) -> bool:
    if (stored.shape, stored.dtype) != (other.shape, other.dtype):
        return False
    pairs = zip(stored.blocks(), other.blocks(), strict=True)
    return all(left.equal(right) for (_, left), (_, right) in pairs)


def _copy_companions(source: Path, adapter: Path, folder: Path) -> None:
    """Copy config and tokenizer of the base; a tokenizer that training saved replaces the base's.

    One that has no `tokenizer_config.json` beside it is not a whole tokenizer and is left.
    """
    trained = (adapter / "tokenizer_config.json").exists()
    for path in _companions(source):
        if not (trained and _is_tokenizer_file(path)):
            _copy(path, source, folder)
    for path in _companions(adapter) if trained else ():
        if _is_tokenizer_file(path):
            _copy(path, adapter, folder)


def _companions(folder: Path) -> Iterator[Path]:
    for path in sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*")]):
        if path.is_file() and path.suffix in _COMPANIONS and path.name not in _NOT_COMPANIONS:
            yield path


def _is_tokenizer_file(path: Path) -> bool:
    return path.name not in ("config.json", "generation_config.json", "preprocessor_config.json")


def _copy(path: Path, root: Path, folder: Path) -> None:
    target = folder / path.relative_to(root)
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(path, target)


def _read_config(source: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))
    return config


def _config_dtype(source: Path) -> str:
    config = _read_config(source)
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _write_config(
    source: Path,
    folder: Path,
    dtype: str | None,
    *,
    untied: bool,
    classifier: Classifier | None,
) -> None:
    config = _read_config(source)
    if classifier is not None:
        classifier.describe(config, folder)
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    for part in parts:
        if dtype and ("dtype" in part or part is config):
            part.pop("torch_dtype", None)
            part["dtype"] = dtype
        if untied and (part.get("tie_word_embeddings") or part is config):
            part["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

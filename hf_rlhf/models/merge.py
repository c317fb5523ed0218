"""Merge a LoRA adapter into its base model without the whole model in memory.

Tensors are copied one at a time from the base's safetensors files; the arithmetic is float32 and
the result has the base's dtype. It equals peft's `merge_and_unload` within the rounding of that
dtype. Only the model's structure is built (on the meta device), since files do not tell which
weights are transposed or tied, and how names map to modules.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import ModelError
from hf_rlhf.models.adapter import CLASSIFIERS, LoraAdapter, check_head, read_adapter
from hf_rlhf.models.ends import list_end
from hf_rlhf.models.locate import download, read_json
from hf_rlhf.models.safetensors import INDEX, Computed, Stored, open_checkpoint, write_checkpoint
from hf_rlhf.storage.files import atomic_dir

if TYPE_CHECKING:
    import torch

_FLOATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Name of a dtype in safetensors -> in torch."""
_COMPANIONS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm")
"""Config, tokenizer and chat template files, which are copied. Never a pickle."""
_NOT_COMPANIONS = (
    *("adapter_config.json", "base_identity.json", "trainer_state.json"),
    *(INDEX, "manifest.json", "run.json"),
)
_BASE_PATTERNS = ["*.safetensors", *(f"*{suffix}" for suffix in _COMPANIONS)]


def merge_adapter(
    base: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    revision: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write `base` with `adapter` merged, its config and its tokenizer to the folder `out`.

    `base` is a folder or a Hub id (at `revision`). Supported: LoRA on Linear, Conv1D and Embedding;
    rslora, rank and alpha patterns, DoRA, `modules_to_save`, trained and LoRA biases; tied
    embeddings, which are untied if the adapter changes only one of the two. A tokenizer beside the
    adapter replaces the base's.

    A classification adapter, such as a reward model's, on a base of another kind yields a
    classification model: the adapter's score head replaces the base's head.

    `out` is written atomically; an existing folder is refused unless `overwrite`. Raises ModelError
    if the merge is impossible, RunFolderError if `out` cannot be written.
    """
    lora = read_adapter(Path(adapter))
    source = Path(base)
    if not source.is_dir():
        # Other folders of a repository have the same weights for other libraries.
        options = {"ignore_patterns": ["consolidated*", "*/*"]}
        source = download(os.fspath(base), revision, _BASE_PATTERNS, "the base model", **options)
    plan = _plan(source, lora)
    with atomic_dir(out, overwrite=overwrite) as folder:
        write_checkpoint(folder, plan.tensors)
        _copy_companions(source, lora.folder, folder)
        _write_config(source, folder, plan)
        list_end(folder)


@dataclass(frozen=True)
class _Plan:
    tensors: Mapping[str, Stored | Computed]
    """Tensors by key in the files."""
    untied: bool
    classifier: Any = None
    """The resulting classifier on the meta device, if the base is of another kind."""


def _plan(source: Path, lora: LoraAdapter) -> _Plan:
    stored = open_checkpoint(source)
    model = _skeleton(source)
    classifier, head = _classifier(model, lora)
    if classifier is not None:
        # Without the tensors that only the base has: its own head.
        parameters = set(classifier.state_dict())
        keys = _keys_by_parameter(model, stored)
        dropped = {key for name, key in keys.items() if name not in parameters}
        stored = {**{key: each for key, each in stored.items() if key not in dropped}, **head}
        model = classifier
    keys = _keys_by_parameter(model, stored)
    changed = lora.parameters()
    _check_names(lora, model, changed)
    sources = dict(stored)
    untied = False
    for alias, original in getattr(model, "all_tied_weights_keys", {}).items():
        if original not in keys:
            continue
        if changed & {alias, original}:
            # The adapter was trained on separate modules: a LoRA affects only its own module.
            sources.setdefault(keys.setdefault(alias, alias), stored[keys[original]])
            untied = True
        elif alias in keys:
            first, second = stored[keys[alias]], stored[keys[original]]
            alike = (first.shape, first.dtype) == (second.shape, second.dtype)
            if alike and first.load().equal(second.load()):
                del sources[keys[alias]]
    if absent := sorted(name for name in changed if name not in keys):
        raise ModelError(
            f"{lora.folder} changes {', '.join(absent[:5])} ({len(absent)} in all), which "
            f"{source} has no tensor for, or keeps in another form (fused or split). Merge "
            "with peft's merge_and_unload, or publish the adapter alone."
        )
    _check_shapes(lora, {name: sources[keys[name]] for name in changed})
    names = {keys[name]: name for name in changed}
    tensors = {
        key: _output(lora, model, names[key], each) if key in names else each
        for key, each in sources.items()
    }
    return _Plan(tensors, untied, classifier)


def _output(lora: LoraAdapter, model: Any, name: str, source: Stored) -> Computed:
    """Return the tensor to write for a parameter that the adapter changes."""
    import torch
    from transformers.pytorch_utils import Conv1D

    if source.dtype not in _FLOATS:
        what = f"{source.file}: {name} is {source.dtype}; LoRA is merged into floats only."
        raise ModelError(what)
    dtype: torch.dtype = getattr(torch, _FLOATS[source.dtype])
    module = model.get_submodule(name.rpartition(".")[0])
    transposed = isinstance(module, Conv1D | torch.nn.Embedding)
    load = partial(_merged, lora, name, source, dtype, transposed)
    return Computed(source.dtype, source.shape, math.prod(source.shape) * dtype.itemsize, load)


def _merged(
    lora: LoraAdapter, name: str, source: Stored, dtype: "torch.dtype", transposed: bool
) -> "torch.Tensor":
    value = lora.merged(name, source, transposed=transposed).to(dtype)
    if not value.isfinite().all():
        raise ModelError(
            f"{name} merged into {value.dtype} holds NaN or infinity. If the base is "
            'sound, the numbers do not fit in that dtype: merge with dtype="bfloat16".'
        )
    return value


def _classifier(base: Any, lora: LoraAdapter) -> tuple[Any, Mapping[str, Stored]]:
    """Return the classification model of `base` with `lora`, and its head in the adapter.

    None if it is a model of the base's own kind. Raises ModelError for an adapter without its head.
    """
    import torch
    import transformers

    head = check_head(lora)
    if not head or all(name in base.state_dict() for name in head):
        return None, {}
    weight = next(stored for name, stored in head.items() if name.endswith("weight"))
    config = deepcopy(base.config)
    config.num_labels = weight.shape[0]
    try:
        # Under ZeRO-3 transformers would build it with all processes, and only one is here.
        with whole_weights(), torch.device("meta"):
            auto_class = getattr(transformers, CLASSIFIERS[lora.config["task_type"]])
            return auto_class.from_config(config), head
    except ValueError as error:
        raise ModelError(
            f"{lora.folder} is of a classification model, which transformers does not have "
            f"for {type(base).__name__}: {error}"
        ) from error


def _skeleton(source: Path) -> Any:
    """Build the base model's modules without weights."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"{source} has no usable config.json: {error}") from error
    if getattr(config, "quantization_config", None) is not None:
        quantization = config.quantization_config
        quantization = quantization if isinstance(quantization, dict) else vars(quantization)
        method = quantization.get("quant_method")
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


def _keys_by_parameter(model: Any, stored: Mapping[str, Stored]) -> dict[str, str]:
    """Map each of the model's parameters to its key in the files.

    transformers renames while loading (an older prefix, another nesting); its rules are applied
    here. Parameters that it assembles or changes are omitted.
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


def _copy_companions(source: Path, adapter: Path, folder: Path) -> None:
    """Copy config and tokenizer of the base; a tokenizer saved by training replaces the base's.

    A tokenizer without `tokenizer_config.json` is incomplete and is ignored.
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


def _write_config(source: Path, folder: Path, plan: _Plan) -> None:
    config = read_json(source / "config.json")
    if plan.classifier is not None:
        _describe_classifier(config, plan.classifier, folder)
    for section in (config, *(each for each in config.values() if isinstance(each, dict))):
        if plan.untied and (section.get("tie_word_embeddings") or section is config):
            section["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _describe_classifier(config: dict[str, Any], model: Any, folder: Path) -> None:
    """Convert `config` for the classification model; `folder` has the tokenizer."""
    from transformers import AutoTokenizer

    config["architectures"] = [type(model).__name__]
    config["id2label"] = {str(index): name for index, name in model.config.id2label.items()}
    config["label2id"] = model.config.label2id
    pad = None
    if (folder / "tokenizer_config.json").exists():
        pad = AutoTokenizer.from_pretrained(folder).pad_token_id
    if pad is not None:
        # A text's score is the score of its last token before padding.
        config["pad_token_id"] = pad
    elif config.get("pad_token_id") is None:
        raise ModelError(
            f"{folder} would have no pad token, by which a classifier finds the last token of "
            "a text. Save the tokenizer, with a pad token, beside the adapter."
        )

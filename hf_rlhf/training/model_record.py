"""Record section on the model: base, continued adapter, parameters."""

import hashlib
import math
from pathlib import Path
from typing import Any

from hf_rlhf.config.packages import package_and_path
from hf_rlhf.errors import RunFolderError
from hf_rlhf.models.contents import commit_of
from hf_rlhf.models.fingerprint import identify
from hf_rlhf.models.lengths import model_config
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import load_record, run_of_merged
from hf_rlhf.storage.record_schema import ModelSection


def model_section(run: Run) -> ModelSection:
    """Return the section with the facts known before weights are loaded."""
    requested, asked = run.model.model_name_or_path, run.model.model_revision
    config = model_config(run)
    is_hub_id = package_and_path(requested) is None and not Path(requested).exists()
    card = _base_card(run, is_hub_id)
    parents = card.get("base_model") or []
    return ModelSection(
        base=requested,
        base_is_hub_id=is_hub_id,
        revision=commit_of(requested, asked) or asked if is_hub_id else None,
        class_name=_class(run, config),
        auto_class=run.auto_class,
        module=_module(config),
        auto_processor=None if run.reads_tokens else run.trainer_class.auto_processor,
        task=run.trainer_class.pipeline_tag or run.task,
        continues=continued(run),
        dtype=run.model.dtype,
        license=card.get("license"),
        license_name=card.get("license_name"),
        license_link=card.get("license_link"),
        lineage=[*([parents] if isinstance(parents, str) else parents), requested],
    )


def _module(config: Any) -> str | None:
    """Return the module of a package that registers its own model with transformers."""
    module = type(config).__module__
    # Code that comes with the weights has its own package.
    known = module.partition(".")[0] in ("transformers", "transformers_modules")
    return None if known else module


def _class(run: Run, config: Any) -> str | None:
    """Return the class of the trained model, possibly not the base's."""
    if run.has_score_head:
        from transformers.models.auto import modeling_auto

        kind = "TOKEN" if run.task == "token-classification" else "SEQUENCE"
        names = getattr(modeling_auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES")
        if name := names.get(config.model_type):
            return str(name)
    return str((config.architectures or [None])[0] or "") or None


def continued(run: Run) -> dict[str, Any] | None:
    """Return the continued adapter and the checksum of its weights."""
    if run.adapter is None:
        return None
    file = run.adapter / "adapter_model.safetensors"
    return {
        "adapter": run.spec.adapter,
        "revision": run.spec.adapter_revision,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }


def _base_card(run: Run, is_hub_id: bool) -> dict[str, Any]:
    """Return the metadata of the base model's card; for a run's merged weights, from its record."""
    from huggingface_hub import ModelCard
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled

    path = Path(run.model_path) / "README.md"
    if not is_hub_id and (folder := run_of_merged(run.model_path)) is not None:
        return licence_and_lineage(folder)
    try:
        if is_hub_id:
            return dict(ModelCard.load(run.model_path).data.to_dict())
        return dict(ModelCard.load(path).data.to_dict()) if path.exists() else {}
    except (EntryNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, OSError, ValueError):
        return {}  # the card then says that the base's licence is unknown


def licence_and_lineage(folder: Path) -> dict[str, Any]:
    """Return licence and lineage of a run's weights, as on its card."""
    try:
        record = load_record(folder)
    except RunFolderError:
        return {}
    author, model = record.author, record.model
    source = author if author.license else model
    licence = {key: getattr(source, key) for key in ("license", "license_name", "license_link")}
    lineage = list(model.lineage)
    if lineage and not model.base_is_hub_id and lineage[-1][0] not in "./~":
        # A folder must not be taken for a repository of the same name.
        lineage[-1] = lineage[-1] if "://" in lineage[-1] else f"./{lineage[-1]}"
    return {**licence, "base_model": lineage}


def add_weights(model_section: ModelSection, trainer: Any, run: Run) -> None:
    """Add the facts known once the weights are loaded."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    names, parameters = zip(*model.named_parameters(), strict=True)
    sizes = list(map(_size, parameters))
    adapters = getattr(model, "peft_config", {})
    # There may also be a frozen reference, or a separate value function.
    active = getattr(model, "active_adapter", None)
    adapter = adapters.get("default", adapters.get(active) if isinstance(active, str) else None)
    lora = adapter.to_dict() if adapter is not None else {}
    # The record has the base's own name; here it may be a local path.
    lora.pop("base_model_name_or_path", None)
    labels = getattr(model.config, "num_labels", None)
    model_section.identity = identify(
        run.model_path,
        name=run.model.model_name_or_path,
        revision=model_section.revision if model_section.base_is_hub_id else None,
    )
    model_section.num_labels = labels if run.has_score_head else None
    if not run.reads_tokens:
        model_section.class_name = type(model).__name__
    # Of the published model with the merged adapter.
    model_section.parameters = sum(
        size
        for name, size in zip(names, sizes, strict=True)
        if "lora_" not in name
        and "modules_to_save" not in name
        and not name.startswith(trainer.unpublished)
    )
    model_section.trainable_parameters = sum(
        size for weight, size in zip(parameters, sizes, strict=True) if weight.requires_grad
    )
    model_section.dtype = str(parameters[0].dtype).removeprefix("torch.")
    model_section.adapter = as_json(lora) or None


def _size(weight: Any) -> int:
    """Return the size of a parameter, which is empty under ZeRO-3."""
    if (quantised := getattr(weight, "quant_state", None)) is not None:
        return math.prod(quantised.shape)  # two 4-bit values are stored as one
    return int(getattr(weight, "ds_numel", weight.numel()))

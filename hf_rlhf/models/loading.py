"""The model that a trainer loads: the base, with a new or a continued LoRA."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import BrokenPlugin, ModelError
from hf_rlhf.models.adapter import (
    CONFIG,
    HEADS,
    WEIGHTS,
    check_head,
    read_adapter,
)
from hf_rlhf.models.fingerprint import IDENTITY, check_base
from hf_rlhf.models.lengths import model_config
from hf_rlhf.models.locate import check_exists, download, resolve_model_path

if TYPE_CHECKING:
    from peft import LoraConfig

    from hf_rlhf.runs.run import Run


INNER = "adapter"
"""The adapter's folder in a run folder, and in our repositories."""
PEFT_TASKS = {
    "text-generation": "CAUSAL_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
}
"""Task -> `lora_task_type`. The other tasks of peft are not checked."""
_LM_HEADS = frozenset({"lm_head", "embed_out"})
"""Output layers of language models, which a model with a score head does not have."""
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template.jinja")
_FILES = (CONFIG, WEIGHTS, IDENTITY, *_TOKENIZER)


def policy_arguments(run: "Run") -> dict[str, Any]:
    """Return `model`, `peft_config` and `quantization_config` for TRL's trainers.

    Without `adapter` in the run file, `model` is the path or id of the base, and `peft_config` the
    new LoRA (None for full fine-tuning); `run.training.model_init_kwargs` is set to the run's. With
    `adapter`, `model` is a loaded PeftModel with the trainable adapter on its base, and the others
    are None. If the task is classification, an adapter of a text generation model gets a new score
    head.

    Raises ModelError for an adapter of a different base.
    """
    quantization = quantization_config(run)
    if run.adapter is None:
        if hasattr(run.training, "model_init_kwargs"):
            run.training.model_init_kwargs = run.model_kwargs()
        return {
            "model": run.model_path,
            "peft_config": lora_config(run),
            "quantization_config": quantization,
        }
    model = _continued(run, run.adapter, quantization)
    if hasattr(run.training, "model_init_kwargs"):
        run.training.model_init_kwargs = None  # useless for a loaded model
    return {"model": model, "peft_config": None, "quantization_config": None}


def load_policy(run: "Run") -> dict[str, Any]:
    """Return a loaded `model` and `peft_config`, for trainers that cannot load the model.

    These are TRL's experimental trainers, without quantization. Otherwise like `policy_arguments`.
    """
    arguments = policy_arguments(run)
    quantization = arguments.pop("quantization_config")
    if run.adapter is None:
        arguments["model"] = _load_base(run, quantization)
        run.training.model_init_kwargs = None  # of no use to a model that is loaded
    return arguments


def check_continued(run: "Run", model: Any) -> None:
    """Raise BrokenPlugin if a trainer must continue an adapter, but started from another model.

    `model` is the trainer's unwrapped model before training. A model sharded by ZeRO-3 is not
    checked.
    """
    edits = read_adapter(run.adapter).edits if run.adapter is not None else {}
    if not edits:
        return
    import torch

    edit = next(iter(edits.values()))
    # In the model the adapter's name is before `.weight`, or at the end.
    pattern = re.compile(re.escape(edit.a.key.removesuffix(".weight")) + r"\.[^.]+(\.weight)?$")
    loaded = [value.detach() for name, value in model.named_parameters() if pattern.search(name)]
    if any(getattr(value, "ds_numel", None) is not None for value in loaded):
        return
    saved = edit.a.load()
    if not any(torch.equal(value.cpu(), saved.to(value.dtype)) for value in loaded):
        raise BrokenPlugin(
            f"trainer {run.spec.plugin!r} was to continue the adapter {run.spec.adapter}, and its "
            "model did not begin with it. Its from_run should load what "
            "hf_rlhf.models.policy_arguments(run) returns."
        )


def quantization_config(run: "Run") -> Any:
    """Return transformers' BitsAndBytesConfig for a run in 4 or 8 bits, or None."""
    from trl import get_quantization_config

    quantized = run.model.load_in_4bit or run.model.load_in_8bit
    return get_quantization_config(run.model) if quantized else None


def lora_config(run: "Run") -> "LoraConfig | None":
    """Return the configuration of the LoRA that the run trains, None for full fine-tuning.

    For classification it trains the score head too.
    """
    if not run.model.use_peft:
        return None
    if run.adapter is not None:
        from peft import LoraConfig

        config = LoraConfig.from_pretrained(str(run.adapter))
        config.inference_mode = False
    else:
        from trl import get_peft_config

        config = get_peft_config(run.model)
        config.init_lora_weights = run.spec.init_lora_weights
        target = config.target_modules
        # ModelConfig converts a one-item list to text, which peft matches with full names.
        if isinstance(target, str) and target != "all-linear" and re.fullmatch(r"[\w.-]+", target):
            config.target_modules = {target}
    if run.has_score_head:
        config.task_type = PEFT_TASKS[run.task]
        saved = {*(config.modules_to_save or ())} - _LM_HEADS
        if config.task_type == "SEQ_CLS":
            saved.add("score")
        else:
            # peft trains the head of a token classifier in full; `all-linear` would also adapt it.
            saved -= {*HEADS}
            config.exclude_modules = list(HEADS)
        config.modules_to_save = sorted(saved)
    return config


def find_adapter(name: str, revision: str | None = None) -> Path:
    """Return the folder of the adapter `name`, downloaded if it is on the Hub.

    `name` is a folder, package://PACKAGE/FOLDER or a Hub id, of an adapter or a run with an
    `adapter` folder. Raises ModelError if there is none.
    """
    folder = Path(resolve_model_path(name))
    if not folder.exists():
        check_exists(name)
        patterns = [f"{inner}{file}" for inner in ("", f"{INNER}/") for file in _FILES]
        folder = download(name, revision, patterns, "the adapter")
    for candidate in (folder, folder / INNER):
        if (candidate / CONFIG).exists():
            return candidate
    raise ModelError(f"{name} is not an adapter: it has no {CONFIG}, nor in a folder `{INNER}`.")


def model_class(run: "Run") -> Any:
    """Return the transformers class that loads the run's model."""
    import transformers

    return getattr(transformers, run.auto_class)


def skeleton(run: "Run", **options: Any) -> Any:
    """Build the base model on the meta device in the training dtype.

    Raises ValueError if its kind does not fit the trainer's task.
    """
    import torch

    trust = getattr(run.training, "trust_remote_code", False)
    config = model_config(run)
    if run.has_score_head:
        config.num_labels = run.num_labels
    with whole_weights(), torch.device("meta"):
        model = model_class(run).from_config(config, trust_remote_code=trust, **options)
    dtype = getattr(torch, str(run.model.dtype or "float32"), None)
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model


def trained_skeleton(run: "Run") -> Any:
    """Return the `skeleton` with the run's LoRA, if any."""
    model = skeleton(run)
    if run.model.use_peft:
        import torch
        from peft import get_peft_model

        with torch.device("meta"):
            model = get_peft_model(model, lora_config(run))
    return model


def _load_base(run: "Run", quantization: Any) -> Any:
    from accelerate.utils import set_seed

    kwargs = run.model_kwargs()
    if quantization is not None:
        kwargs["quantization_config"] = quantization
    if run.training.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        kwargs["device_map"] = None
    if run.has_score_head:
        kwargs["num_labels"] = run.num_labels
    set_seed(run.training.seed)  # a new head is random
    return model_class(run).from_pretrained(run.model_path, **kwargs)


def _continued(run: "Run", adapter: Path, quantization: Any) -> Any:
    from peft import PeftModel, get_peft_model

    base = _load_base(run, quantization)
    # Checked again: the base may have been downloaded only now.
    check_adapter_base(run, adapter)
    if run.has_score_head:
        base.config.get_text_config().pad_token_id = run.tokenizer.pad_token_id
    # Adapters in float32 beside a base in bfloat16 stop ZeRO-3 (huggingface/trl#6089).
    plugin = run.training.deepspeed_plugin
    cast = plugin is None or plugin.zero_stage != 3 or quantization is not None
    if run.has_score_head and not check_head(read_adapter(adapter)):
        model = get_peft_model(base, lora_config(run), autocast_adapter_dtype=cast)
        _load(model, adapter)
        return model
    return PeftModel.from_pretrained(
        base, str(adapter), is_trainable=True, autocast_adapter_dtype=cast
    )


def check_adapter_base(run: "Run", adapter: Path) -> None:
    """Raise ModelError if an adapter belongs to a base other than the run's."""
    name, revision = run.model.model_name_or_path, run.model.model_revision
    check_base(adapter, run.model_path, name=name, revision=revision)


def _load(model: Any, adapter: Path) -> None:
    """Load a language model's adapter into a model with a new head."""
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    # peft requires every module of modules_to_save: the head missing in the adapter is unchanged.
    weights = get_peft_model_state_dict(model)
    for name, value in load_peft_weights(str(adapter), device="cpu").items():
        if not _LM_HEADS.intersection(name.split(".")):
            weights[name] = value
    result = set_peft_model_state_dict(model, weights)
    if result.unexpected_keys:
        raise ModelError(
            f"{adapter} has weights of modules that this model lacks: {result.unexpected_keys[:3]}."
        )

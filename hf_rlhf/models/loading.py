"""What a trainer loads: the base model, with a new LoRA or with one that training continues."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import BrokenPlugin, ModelError, Problem
from hf_rlhf.models.adapter import LoraAdapter, check_head, check_patterns, read_adapter
from hf_rlhf.models.fingerprint import IDENTITY, check_base
from hf_rlhf.models.locate import check_there, resolve_model_path
from hf_rlhf.storage.bounded import WHOLE_NAME, pattern_problem

if TYPE_CHECKING:
    from peft import LoraConfig

    from hf_rlhf.runs.run import Run


CONFIG = "adapter_config.json"
INNER = "adapter"
"""Where a run folder, and a repository of ours, has its adapter."""
_PEFT_TASKS = {"text-generation": "CAUSAL_LM", "text-classification": "SEQ_CLS"}
"""What `lora_task_type` has to be, by task; peft knows more tasks, which are not checked."""
_LM_HEADS = frozenset({"lm_head", "embed_out"})
"""Output layers of language models, which a model with a score head does not have."""
_FILES = (CONFIG, "adapter_model.safetensors", IDENTITY)
_SETTINGS = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_modules_to_save": "modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
"""Setting of trl.ModelConfig -> key of adapter_config.json."""


def policy_arguments(run: "Run") -> dict[str, Any]:
    """Return `model`, `peft_config` and `quantization_config`, as TRL's trainers take them.

    Without `adapter` in the run file, `model` is the path or id of the base, and `peft_config` the
    new LoRA (None for full fine-tuning); `run.training.model_init_kwargs` is set to what the run
    asks for. With it, `model` is a PeftModel with that adapter, trainable, on its base, loaded
    here, and the others are None. An adapter of a text generation model is given a new score head
    where the trainer's task is classification.

    Raises ModelError for an adapter that was made for another base.
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
        run.training.model_init_kwargs = None  # of no use to a model that is loaded
    return {"model": model, "peft_config": None, "quantization_config": None}


def check_continued(run: "Run", model: Any) -> None:
    """Raise BrokenPlugin if a trainer was to continue an adapter, and began with another model.

    `model` is the trainer's, unwrapped, before it has trained. What ZeRO-3 has sharded is not
    looked at.
    """
    edits = read_adapter(run.adapter).edits if run.adapter is not None else {}
    if not edits:
        return
    import torch

    edit = next(iter(edits.values()))
    # In the model the adapter's name stands before `.weight`, or at the end.
    pattern = re.compile(re.escape(edit.a.key.removesuffix(".weight")) + r"\.[^.]+(\.weight)?$")
    there = [item.detach() for name, item in model.named_parameters() if pattern.search(name)]
    if any(getattr(item, "ds_numel", None) is not None for item in there):
        return
    wanted = edit.a.load()
    if not any(torch.equal(item.cpu(), wanted.to(item.dtype)) for item in there):
        raise BrokenPlugin(
            f"trainer {run.spec.plugin!r} was to continue the adapter {run.spec.adapter}, and its "
            "model did not begin with it. Its from_run should load what "
            "hf_rlhf.models.loading.policy_arguments(run) gives."
        )


def quantization_config(run: "Run") -> Any:
    """Return transformers' BitsAndBytesConfig, if the run asks for 4 or 8 bits, or None."""
    from trl import get_quantization_config

    requested = run.model.load_in_4bit or run.model.load_in_8bit
    return get_quantization_config(run.model) if requested else None


def lora_config(run: "Run") -> "LoraConfig | None":
    """Return the configuration of the LoRA that the run trains, None for full fine-tuning.

    For classification it is one of sequence classification, which trains the score head too.
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
        target = config.target_modules
        # ModelConfig makes text of a list of one, and peft a pattern for whole names of that.
        if isinstance(target, str) and target != "all-linear" and re.fullmatch(r"[\w.-]+", target):
            config.target_modules = {target}
    if run.has_score_head:
        config.task_type = "SEQ_CLS"
        saved = {*(config.modules_to_save or ())} - _LM_HEADS
        config.modules_to_save = sorted({*saved, "score"})
    return config


def find_adapter(name: str, revision: str | None = None) -> Path:
    """Return the folder with the adapter that `name` means, downloaded if it is on the Hub.

    `name` is a folder, package://PACKAGE/FOLDER or a Hub id, of an adapter or of a run that has
    one in its folder `adapter`. Raises ModelError when there is none.
    """
    folder = Path(resolve_model_path(name))
    if not folder.exists():
        check_there(name)
        folder = _downloaded(name, revision)
    for candidate in (folder, folder / INNER):
        if (candidate / CONFIG).exists():
            return candidate
    raise ModelError(f"{name} is not an adapter: it has no {CONFIG}, nor in a folder `{INNER}`.")


def adapter_problems(run: "Run") -> Iterator[Problem]:
    """Return what stands against the run's LoRA, new or continued, before any weights load."""
    yield from _task_type(run)
    if run.adapter is None:
        return
    if not run.model.use_peft:
        yield Problem(
            "adapter",
            "is given, and the run trains all weights.",
            "Write `use_peft: true`, or name the merged model as `model_name_or_path`.",
        )
        return
    try:
        adapter = read_adapter(run.adapter)
        check_head(adapter)
        check_base(
            run.adapter,
            run.model_path,
            name=run.model.model_name_or_path,
            revision=run.model.model_revision,
        )
        _check_shapes(run, adapter)
    except ModelError as error:
        yield Problem("adapter", str(error))
        return
    yield from _disagreements(run, adapter.config)
    if run.writes_text and adapter.config.get("task_type") == "SEQ_CLS":
        yield Problem(
            "adapter",
            "is one of a classification model: it has a score head, and this run generates text.",
            "Name an adapter of a text generation model.",
        )


def model_class(run: "Run") -> Any:
    """Return the class of transformers that loads what the run trains."""
    import transformers

    return getattr(transformers, run.auto_class)


def skeleton(run: "Run", **options: Any) -> Any:
    """Build the base model on the meta device, with the dtype that it trains in.

    Raises ValueError when it is not of a kind that the trainer's task has.
    """
    import torch
    from transformers import AutoConfig

    trust = getattr(run.training, "trust_remote_code", False)
    config = AutoConfig.from_pretrained(
        run.model_path, revision=run.model.model_revision, trust_remote_code=trust
    )
    if run.has_score_head:
        config.num_labels = 1
    with whole_weights(), torch.device("meta"):
        model = model_class(run).from_config(config, trust_remote_code=trust, **options)
    dtype = getattr(torch, str(run.model.dtype), None)
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model


def _continued(run: "Run", adapter: Path, quantization: Any) -> Any:
    from accelerate.utils import set_seed
    from peft import PeftModel, get_peft_model

    # The base may have been downloaded only now.
    check = {"name": run.model.model_name_or_path, "revision": run.model.model_revision}
    kwargs = run.model_kwargs()
    if quantization is not None:
        kwargs["quantization_config"] = quantization
    if run.training.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        kwargs["device_map"] = None
    if run.has_score_head:
        kwargs["num_labels"] = 1
    set_seed(run.training.seed)  # a head that is new is drawn at random
    base = model_class(run).from_pretrained(run.model_path, **kwargs)
    check_base(adapter, run.model_path, **check)
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


def _load(model: Any, adapter: Path) -> None:
    """Load an adapter of a language model into a model with a new head in place of that one's."""
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    # peft asks for every module of modules_to_save: the head that the adapter lacks stays as it is.
    weights = get_peft_model_state_dict(model)
    for name, value in load_peft_weights(str(adapter), device="cpu").items():
        if not _LM_HEADS.intersection(name.split(".")):
            weights[name] = value
    result = set_peft_model_state_dict(model, weights)
    if result.unexpected_keys:
        raise ModelError(
            f"{adapter} has weights that this model has no place for: {result.unexpected_keys[:3]}."
        )


def _check_shapes(run: "Run", adapter: LoraAdapter) -> None:
    """Raise ModelError for an adapter whose matrices fit no module of the base."""
    try:
        modules = dict(skeleton(run).named_modules())
    except ValueError:
        return  # a kind of model that only its trainer can build
    check_patterns(adapter.folder, adapter.config, list(modules))
    made_for = adapter.config.get("base_model_name_or_path")
    for name, edit in adapter.edits.items():
        weight = getattr(modules.get(name), "weight", None)
        if weight is None:
            raise ModelError(
                f"{adapter.folder} changes {name}, which {run.model.model_name_or_path} does not "
                f"have. It was made for {made_for}."
            )
        wanted = (edit.b.shape[0], edit.a.shape[1])
        if tuple(weight.shape) not in (wanted, wanted[::-1]):
            raise ModelError(
                f"{adapter.folder} was made for another base ({made_for}): its {name} is for a "
                f"weight of {wanted}, that of {run.model.model_name_or_path} is "
                f"{tuple(weight.shape)}."
            )


def _task_type(run: "Run") -> Iterator[Problem]:
    lora_task_type = run.spec.settings.get("lora_task_type")
    wanted = _PEFT_TASKS.get(run.task)
    if None not in (lora_task_type, wanted) and lora_task_type != wanted:
        yield Problem(
            "lora_task_type",
            f"is {lora_task_type!r}, and what {run.spec.plugin} trains is {run.task}.",
            f"Leave it out: it is {wanted}.",
        )


def _disagreements(run: "Run", config: Mapping[str, Any]) -> Iterator[Problem]:
    for setting, key in _SETTINGS.items():
        requested, there = run.spec.settings.get(setting), config.get(key)
        if (
            requested is None
            or _plain(requested) == _plain(there)
            or _plain(requested) == "all-linear"
        ):
            continue
        if key == "target_modules" and _modules(run, requested) == _modules(run, there):
            continue
        yield Problem(
            setting,
            f"is {requested!r}, and the adapter that is continued has {there!r}.",
            "Leave it out, or give what the adapter has: it keeps its own.",
        )


def _modules(run: "Run", names: Any) -> set[str]:
    """Return the base's modules that a LoRA on `names`, whole or only their ends, changes."""
    listed = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    try:
        modules = dict(skeleton(run).named_modules())
    except ValueError:
        return set(listed)  # a kind of model that only its trainer can build
    ends = tuple(f".{name}" for name in listed)
    return {module for module in modules if f".{module}".endswith(ends)}


def _plain(value: Any) -> Any:
    """Return a setting in a form to compare: modules in any order, one of one as itself."""
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else sorted(value)
    return value or None


def _downloaded(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = [f"{folder}{file}" for folder in ("", f"{INNER}/") for file in _FILES]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        at = f" at revision {revision}" if revision else ""
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"the adapter {name!r}{at} is neither a folder nor to be had from the Hub: {text}"
        ) from error


def lora_problems(run: "Run") -> Iterator[Problem]:
    """peft stops, with weights loaded, where no module is there, and else says nothing."""
    if run.adapter is not None or not run.model.use_peft:
        return  # a continued one has its own, and may be damaged, which is told elsewhere
    try:
        config, model = lora_config(run), skeleton(run)
    except ValueError:
        return  # a kind of model that only its trainer can build
    assert config is not None
    modules = [name for name, _ in model.named_modules() if name]
    targets = config.target_modules
    if isinstance(targets, str) and (problem := pattern_problem([(WHOLE_NAME, targets)], modules)):
        yield Problem("lora_target_modules", f"{targets!r} {problem}.", "Write names of modules.")
        return
    wrong = [
        *_missing("lora_target_modules", targets, modules),
        *_missing("lora_modules_to_save", config.modules_to_save, modules),
        *_head_problem(run, targets, model),
    ]
    yield from wrong
    if wrong:
        return
    from peft import get_peft_model

    try:
        get_peft_model(model, config, low_cpu_mem_usage=True)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        yield Problem("lora_target_modules", f"peft refuses this LoRA: {reason}")


def _missing(key: str, names: Any, modules: list[str]) -> Iterator[Problem]:
    if not names or names == "all-linear":
        return
    each = [names] if isinstance(names, str) else [{name} for name in sorted(names)]
    unmatched = [item for item in each if not any(_is_target(module, item) for module in modules)]
    if missing := [item if isinstance(item, str) else item.pop() for item in unmatched]:
        ends = sorted({name.rpartition(".")[2] for name in modules})
        known = ", ".join(end for end in ends if not end.isdigit())
        every = "`[all-linear]`, or some of: " if key == "lora_target_modules" else "some of: "
        what = f"names {', '.join(missing)}, which the model does not have."
        yield Problem(key, what, f"Write {every}{known}.")


def _head_problem(run: "Run", names: Any, model: Any) -> Iterator[Problem]:
    """TRL's trainers multiply by the output layer's weights themselves, past a LoRA on it."""
    trl = any(base.__module__.startswith("trl.") for base in run.trainer_class.__mro__)
    head = model.get_output_embeddings() if run.writes_text and trl else None
    if head is None or not names or names == "all-linear":
        return
    head_name = next(name for name, module in model.named_modules() if module is head)
    if _is_target(head_name, names):
        yield Problem(
            "lora_target_modules",
            f"names {head_name}, whose weights TRL uses directly: its LoRA would not be trained.",
            f"Remove it, or write `lora_modules_to_save: [{head_name}]` to train it whole.",
        )


def _is_target(module: str, targets: str | Collection[str]) -> bool:
    """Return whether peft finds a module: text is a pattern to it, items are ends of names."""
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(f".{module}".endswith(f".{target}") for target in targets)

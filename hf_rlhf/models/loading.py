"""The model that a trainer loads: the base, with a new LoRA or one that training continues."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import whole_weights
from hf_rlhf.errors import BrokenPlugin, ModelError, Problem
from hf_rlhf.models.adapter import (
    CLASSIFIERS,
    CONFIG,
    HEADS,
    WEIGHTS,
    LoraAdapter,
    check_head,
    check_patterns,
    is_target,
    read_adapter,
)
from hf_rlhf.models.fingerprint import IDENTITY, check_base
from hf_rlhf.models.lengths import model_config
from hf_rlhf.models.locate import check_exists, download, resolve_model_path
from hf_rlhf.storage.bounded import FULL_NAME, pattern_problem

if TYPE_CHECKING:
    from peft import LoraConfig

    from hf_rlhf.runs.run import Run


INNER = "adapter"
"""The folder of the adapter in a run folder, and in a repository of ours."""
_PEFT_TASKS = {
    "text-generation": "CAUSAL_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
}
"""Task -> `lora_task_type`. The other tasks of peft are not checked."""
_LM_HEADS = frozenset({"lm_head", "embed_out"})
"""Output layers of language models, which a model with a score head does not have."""
_FILES = (CONFIG, WEIGHTS, IDENTITY)
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
    new LoRA (None for full fine-tuning); `run.training.model_init_kwargs` is set to the run's. With
    it, `model` is a PeftModel with that adapter, trainable, on its base, loaded here, and the
    others are None. Where the trainer's task is classification, an adapter of a text generation
    model gets a new score head.

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


def load_policy(run: "Run") -> dict[str, Any]:
    """Return a loaded `model` and `peft_config`, for trainers that cannot load the model.

    TRL's experimental trainers are such: they take no quantization. Like `policy_arguments`
    otherwise.
    """
    arguments = policy_arguments(run)
    quantization = arguments.pop("quantization_config")
    if run.adapter is None:
        arguments["model"] = _load_base(run, quantization)
        run.training.model_init_kwargs = None  # of no use to a model that is loaded
    return arguments


def check_continued(run: "Run", model: Any) -> None:
    """Raise BrokenPlugin if a trainer was to continue an adapter, and began with another model.

    `model` is the trainer's, unwrapped, before it has trained. One that ZeRO-3 has sharded is not
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

    For classification it is one that trains the score head too.
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
        # ModelConfig makes text of a list of one, which peft matches with full names.
        if isinstance(target, str) and target != "all-linear" and re.fullmatch(r"[\w.-]+", target):
            config.target_modules = {target}
    if run.has_score_head:
        config.task_type = _PEFT_TASKS[run.task]
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

    `name` is a folder, package://PACKAGE/FOLDER or a Hub id, of an adapter or of a run that has
    one in its folder `adapter`. Raises ModelError when there is none.
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


def adapter_problems(run: "Run") -> Iterator[Problem]:
    """Yield the problems of the run's LoRA, new or continued, before any weights load."""
    task_type, expected = run.spec.settings.get("lora_task_type"), _PEFT_TASKS.get(run.task)
    if None not in (task_type, expected) and task_type != expected:
        what = f"is {task_type!r}, and what {run.spec.plugin} trains is {run.task}."
        yield Problem("lora_task_type", what, f"Leave it out: it is {expected}.")
    if run.adapter is None:
        return
    if not run.model.use_peft:
        fix = "Write `use_peft: true`, or name the merged model as `model_name_or_path`."
        yield Problem("adapter", "is set, and the run trains all weights.", fix)
        return
    try:
        adapter = read_adapter(run.adapter)
        check_head(adapter)
        _check_base(run, run.adapter)
        _check_shapes(run, adapter)
    except ModelError as error:
        yield Problem("adapter", str(error))
        return
    yield from _disagreements(run, adapter.config)
    if run.writes_text and adapter.config.get("task_type") in CLASSIFIERS:
        yield Problem(
            "adapter",
            "is one of a classification model: it has a score head, and this run generates text.",
            "Name an adapter of a text generation model.",
        )


def model_class(run: "Run") -> Any:
    """Return the class of transformers that loads the run's model."""
    import transformers

    return getattr(transformers, run.auto_class)


def skeleton(run: "Run", **options: Any) -> Any:
    """Build the base model on the meta device, with the dtype that it trains in.

    Raises ValueError when it is not of a kind that the trainer's task has.
    """
    import torch

    trust = getattr(run.training, "trust_remote_code", False)
    config = model_config(run)
    if run.has_score_head:
        config.num_labels = run.num_labels
    with whole_weights(), torch.device("meta"):
        model = model_class(run).from_config(config, trust_remote_code=trust, **options)
    dtype = getattr(torch, str(run.model.dtype), None)
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model


def _load_base(run: "Run", quantization: Any) -> Any:
    from accelerate.utils import set_seed

    kwargs = run.model_kwargs()
    if quantization is not None:
        kwargs["quantization_config"] = quantization
    if run.training.distributed_state.distributed_type in ("MULTI_GPU", "DEEPSPEED"):
        kwargs["device_map"] = None
    if run.has_score_head:
        kwargs["num_labels"] = run.num_labels
    set_seed(run.training.seed)  # a head that is new is drawn at random
    return model_class(run).from_pretrained(run.model_path, **kwargs)


def _continued(run: "Run", adapter: Path, quantization: Any) -> Any:
    from peft import PeftModel, get_peft_model

    base = _load_base(run, quantization)
    # Checked again: the base may have been downloaded only now.
    _check_base(run, adapter)
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


def _check_base(run: "Run", adapter: Path) -> None:
    name, revision = run.model.model_name_or_path, run.model.model_revision
    check_base(adapter, run.model_path, name=name, revision=revision)


def _load(model: Any, adapter: Path) -> None:
    """Load an adapter of a language model into a model whose head is new."""
    from peft import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    # peft wants every module of modules_to_save: the head that the adapter lacks stays as it is.
    weights = get_peft_model_state_dict(model)
    for name, value in load_peft_weights(str(adapter), device="cpu").items():
        if not _LM_HEADS.intersection(name.split(".")):
            weights[name] = value
    result = set_peft_model_state_dict(model, weights)
    if result.unexpected_keys:
        raise ModelError(
            f"{adapter} has weights of modules that this model lacks: {result.unexpected_keys[:3]}."
        )


def _check_shapes(run: "Run", adapter: LoraAdapter) -> None:
    """Raise ModelError for an adapter whose matrices fit no module of the base."""
    try:
        modules = dict(skeleton(run).named_modules())
    except ValueError:
        return  # a kind of model that only its trainer can build
    check_patterns(adapter.folder, adapter.config, list(modules))
    base_name = adapter.config.get("base_model_name_or_path")
    for name, edit in adapter.edits.items():
        weight = getattr(modules.get(name), "weight", None)
        if weight is None:
            raise ModelError(
                f"{adapter.folder} changes {name}, which {run.model.model_name_or_path} does not "
                f"have. It was made for {base_name}."
            )
        expected = (edit.b.shape[0], edit.a.shape[1])
        if tuple(weight.shape) not in (expected, expected[::-1]):
            raise ModelError(
                f"{adapter.folder} was made for another base ({base_name}): its {name} is for a "
                f"weight of {expected}, that of {run.model.model_name_or_path} is "
                f"{tuple(weight.shape)}."
            )


def _disagreements(run: "Run", config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the LoRA settings that are not those of the adapter that is continued."""
    for setting, key in _SETTINGS.items():
        value, saved = run.spec.settings.get(setting), config.get(key)
        if value is None or _plain(value) in (_plain(saved), "all-linear"):
            continue
        if key == "target_modules" and _modules(run, value) == _modules(run, saved):
            continue
        yield Problem(
            setting,
            f"is {value!r}, and the adapter that is continued has {saved!r}.",
            "Leave it out, or write the adapter's own value, which it keeps.",
        )


def _modules(run: "Run", names: Any) -> set[str]:
    """Return the base's modules that a LoRA on `names`, in full or their ends, changes."""
    listed = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    try:
        modules = [name for name, _ in skeleton(run).named_modules()]
    except ValueError:
        return set(listed)  # a kind of model that only its trainer can build
    return {module for module in modules if is_target(module, listed)}


def _plain(value: Any) -> Any:
    """Return a setting in a form to compare: modules in any order, a list of one as its item."""
    if isinstance(value, (list, tuple)):
        return value[0] if len(value) == 1 else sorted(value)
    return value or None


def lora_problems(run: "Run") -> Iterator[Problem]:
    """Yield the names in a new LoRA that no module has.

    peft stops only if none of them exists, with weights loaded, and ignores the others.
    """
    if run.adapter is not None or not run.model.use_peft:
        return
    try:
        config, model = lora_config(run), skeleton(run)
    except ValueError:
        return  # a kind of model that only its trainer can build
    assert config is not None
    modules = [name for name, _ in model.named_modules() if name]
    targets = config.target_modules
    if isinstance(targets, str) and (problem := pattern_problem([(FULL_NAME, targets)], modules)):
        yield Problem("lora_target_modules", f"{targets!r} {problem}.", "Write names of modules.")
        return
    problems = [
        *_missing("lora_target_modules", targets, modules),
        *_missing("lora_modules_to_save", config.modules_to_save, modules),
        *_head_problem(run, targets, model),
    ]
    yield from problems
    if problems:
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
    # Text is a pattern, and to be matched as one.
    targets = {names: names} if isinstance(names, str) else {name: [name] for name in sorted(names)}
    missing = [
        name for name, target in targets.items() if not any(is_target(m, target) for m in modules)
    ]
    if missing:
        ends = sorted({name.rpartition(".")[2] for name in modules})
        choices = ", ".join(end for end in ends if not end.isdigit())
        every = "`[all-linear]`, or some of: " if key == "lora_target_modules" else "some of: "
        what = f"names {', '.join(missing)}, which the model does not have."
        yield Problem(key, what, f"Write {every}{choices}.")


def _head_problem(run: "Run", names: Any, model: Any) -> Iterator[Problem]:
    """TRL's trainers multiply by the output layer's weights themselves, past a LoRA on it."""
    trl = any(base.__module__.startswith("trl.") for base in run.trainer_class.__mro__)
    head = model.get_output_embeddings() if run.writes_text and trl else None
    if head is None or not names or names == "all-linear":
        return
    head_name = next(name for name, module in model.named_modules() if module is head)
    if is_target(head_name, names):
        yield Problem(
            "lora_target_modules",
            f"names {head_name}, whose weights TRL uses directly: its LoRA would not be trained.",
            f"Remove it, or write `lora_modules_to_save: [{head_name}]` to train all of it.",
        )

"""Models whose memory is planned by name, without a run file: SFT with common settings."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import yaml

from hf_rlhf.contracts import HeldModel, StepShape, Trainer
from hf_rlhf.errors import HfRlhfError, did_you_mean, first_line
from hf_rlhf.runs.run import Run

USUAL = {
    "max_length": 2048,
    "per_device_train_batch_size": 1,
    "bf16": True,
    "activation_checkpointing": True,
    "lora_target_modules": "all-linear",
    "reference": None,
    "precompute_ref_log_probs": False,
}
"""Settings of a model without a run file on which memory depends: those of TRL's SFT, and with
`reference: model` those of its DPO."""
_COUNTS = ("max_length", "per_device_train_batch_size", "gradient_accumulation_steps", "lora_r")
_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")


def known_models() -> dict[str, dict[str, Any]]:
    """Return the configurations that ship: `source`, `parameters` as published, and `config`."""
    text = files("hf_rlhf.runs").joinpath("known_models.json").read_text()
    models: dict[str, dict[str, Any]] = json.loads(text)
    return models


class _Supervised(Trainer):
    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        training = run.training
        kept = training.reference == "model" and not training.precompute_ref_log_probs
        held = {"reference": HeldModel()} if kept and not run.model.use_peft else {}
        return StepShape(tokens=training.max_length, head="fused", held=held)


def run_of_model(name: str, options: Mapping[str, str]) -> Run:
    """Return a run that trains a model on rows of `max_length` tokens, to plan its memory.

    `name` is one of `known_models`, a folder or a Hub id; `options` are settings of the run file.

    Raises HfRlhfError for a model or setting that is not known, an encoder-decoder, and a
    configuration without sizes.
    """
    from transformers import TrainingArguments
    from trl import ModelConfig

    model = ModelConfig(model_name_or_path=name)
    training = SimpleNamespace(**_defaults(TrainingArguments), device=SimpleNamespace(type="cuda"))
    for key, text in {**USUAL, **options}.items():
        target = model if hasattr(model, key) else training
        if key not in USUAL and not hasattr(target, key):
            near = did_you_mean(key, [*vars(model), *vars(training)])
            raise HfRlhfError(
                f"--{key} is no setting that a model's memory depends on{near}. A run file has all "
                "settings of its trainer: `hf-rlhf memory FILE`."
            )
        value = _value(key, text) if isinstance(text, str) else text
        if isinstance(getattr(target, key, None), bool) and not isinstance(value, bool):
            raise HfRlhfError(f"--{key} {text}: expected true or false.")
        setattr(target, key, value)
    run = Run(
        spec=SimpleNamespace(evaluation=None, plugin="sft", init_lora_weights=True),  # type: ignore[arg-type]
        trainer_class=_Supervised,
        training=training,
        model=model,
        model_path=_folder_of(name),
        tokenizer=None,
        dataset={"train": SimpleNamespace(column_names=[])},
        report={},
        reward=None,
        judges={},
        folder=Path("runs") / "none",
    )
    check_sizes(run)
    return run


def _value(key: str, text: str) -> Any:
    """Return the value of a setting. Raises HfRlhfError for one that would be counted as another's.

    A run file's settings are checked where it is read.
    """
    import torch
    from transformers.training_args import OptimizerNames

    if key in _COUNTS:
        wanted, known = "a number above 0", text.isdecimal() and int(text) > 0
    elif key == "dtype":
        wanted, known = "such as bfloat16", isinstance(getattr(torch, text, None), torch.dtype)
    elif key == "optim":
        names = [str(each.value) for each in OptimizerNames]
        wanted, known = f"of {', '.join(names)}", text in names
    else:
        wanted, known = "of YAML, such as 1, true or text", _is_yaml(text)
    if not known:
        raise HfRlhfError(f"--{key} {text}: expected a value, {wanted}.")
    return yaml.safe_load(text)


def _is_yaml(text: str) -> bool:
    try:
        yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return True


def check_sizes(run: Run) -> None:
    """Raise HfRlhfError for an encoder-decoder, and for a configuration without sizes."""
    from hf_rlhf.models.lengths import model_config

    name = run.model.model_name_or_path
    try:
        config = model_config(run)
    except (OSError, ValueError) as error:
        near = did_you_mean(name, known_models())
        raise HfRlhfError(
            f"{name} is no run file, and no model whose config.json can be read{near}: "
            f"{first_line(error)} Write a run file, a folder, a Hub id, or one of "
            f"{', '.join(known_models())}."
        ) from error
    if config.is_encoder_decoder:
        raise HfRlhfError(
            f"{name} is an encoder-decoder ({config.model_type}), whose memory is not counted, as "
            "no trainer here trains one. Use a decoder, such as a Llama or Qwen."
        )
    if missing := [key for key in _SIZES if not getattr(config.get_text_config(), key, None)]:
        raise HfRlhfError(
            f"the configuration of {name} has no {', '.join(missing)}, so its size is not known. "
            "Add them to its config.json."
        )


_FOLDERS: list[TemporaryDirectory[str]] = []


def _folder_of(name: str) -> str:
    """Return a name for `from_pretrained`; the configuration of a known model goes to a folder."""
    if name not in known_models():
        return name
    _FOLDERS.append(TemporaryDirectory())
    folder = Path(_FOLDERS[-1].name)
    (folder / "config.json").write_text(json.dumps(known_models()[name]["config"]))
    return str(folder)


def _defaults(kind: Any) -> dict[str, Any]:
    return {item.name: item.default for item in fields(kind) if item.default is not MISSING}


def changed(run: Run, **settings: Any) -> Run:
    """Return a run with other settings of trainer and model, only to plan its memory."""
    from copy import copy

    training, model = copy(run.training), copy(run.model)
    for key, value in settings.items():
        setattr(model if hasattr(model, key) else training, key, value)
    return replace(run, training=training, model=model)

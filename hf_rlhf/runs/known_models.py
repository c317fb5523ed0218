"""Models whose memory is planned by name, without a run file: SFT with common settings."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from hf_rlhf.config import RunFile
from hf_rlhf.config.settings import value_problems
from hf_rlhf.config.validation import check_settings, setting_names
from hf_rlhf.contracts import HeldModel, StepShape, Trainer
from hf_rlhf.errors import ConfigError, HfRlhfError, Problem, did_you_mean, first_line
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
"""Settings of a model without a run file on which memory depends, as in TRL's SFT, or DPO with
`reference: model`."""
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


def run_of_model(name: str, options: Sequence[str] = ()) -> Run:
    """Return a run that trains a model on rows of `max_length` tokens, to plan its memory.

    `name` is in `known_models`, a folder or a Hub id; `options` are words `--KEY VALUE`.

    Raises HfRlhfError for an unknown model or setting, an encoder-decoder, and a configuration
    without sizes.
    """
    from trl import ModelConfig, SFTConfig

    values = _checked(options, (SFTConfig, ModelConfig))
    model = ModelConfig(model_name_or_path=name)
    defaults = {each.name: each.default for each in fields(SFTConfig)}
    defaults = {key: value for key, value in defaults.items() if value is not MISSING}
    training = SimpleNamespace(**defaults, device=SimpleNamespace(type="cuda"))
    for key, value in {**USUAL, **values}.items():
        setattr(model if hasattr(model, key) else training, key, value)
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


def _checked(options: Sequence[str], classes: Sequence[type]) -> dict[str, Any]:
    """Return the values of options, as a run file's are checked. Raises ConfigError."""
    file, names = RunFile.from_mapping({}).override(options), {*setting_names(classes), *USUAL}
    given = {key: value for key, value in file.values.items() if key != "schema"}
    problems = list(file.problems)
    for key in given.keys() - names:
        what = f"is no setting that a model's memory depends on{did_you_mean(key, names)}."
        fix = "A run file has all settings of its trainer: `hf-rlhf memory FILE`."
        problems.append(Problem(file.where_key(key), what, fix))
    fitted, wrong = check_settings(given, classes, where=file.where_key)
    for cls, settings in zip(classes, fitted, strict=True):
        wrong += value_problems(cls, settings, file.where_key)
    if problems + wrong:
        raise ConfigError([*problems, *wrong])
    return given | {key: value for settings in fitted for key, value in settings.items()}


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


def changed(run: Run, **settings: Any) -> Run:
    """Return a run with other settings of trainer and model, only to plan its memory."""
    from copy import copy

    training, model = copy(run.training), copy(run.model)
    for key, value in settings.items():
        setattr(model if hasattr(model, key) else training, key, value)
    return replace(run, training=training, model=model)

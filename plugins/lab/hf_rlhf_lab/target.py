"""Resolve the target and gold data of a validation as a run file without a trainer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hf_rlhf.errors import ConfigError, Problem, did_you_mean

DEFAULT_FILE = Path(__file__).parent / "runs" / "validate" / "tiny.yaml"
_READ = ("dataset", "rewards", "gates", "judges", "model_name_or_path")
"""The keys of a run file that a validation reads."""
_CLASSIC_DATA = ("preference", "prompts", "unpaired", "sft")
_FORM = ("format", "template", "response_template", "system_template", "system", "context")
"""Settings that decide the form of these datasets' rows."""


def run_file(
    target: str | None, data: str | None, overrides: Sequence[str] = (), label: str | None = None
) -> Any:
    """Return the run file of a target: its rewards and judges, and the dataset of gold data.

    Rewards of weight 0 are left out, apart from the reward with `label`.
    """
    from hf_rlhf.config import RunFile

    if target is None and data is None:
        target = str(DEFAULT_FILE)
    if target is None:
        fix = "Name a run file, the folder of a reward model, a reward, or FILE.py:NAME, first."
        raise ConfigError([Problem("rewards validate", "there is no TARGET.", fix)])
    if Path(target).suffix in (".yaml", ".yml"):
        values, overrides = _of_file(RunFile.read(target).override(overrides), label), ()
    elif _is_run(target):
        values = _of_run(Path(target))
    elif (Path(target) / "config.json").exists():
        values = {"rewards": [{"name": "reward_model", "model": target}]}
    else:
        values = {"rewards": [{"name": target}]}
    if data is not None:
        values["dataset"] = section_of(data, values.get("dataset"))
    if "dataset" not in values:
        fix = "Name it with --data FILE: preference pairs, or rows with a `grade`."
        raise ConfigError([Problem(target, "there is no gold data.", fix)])
    return RunFile.from_mapping(values, Path(target).name).override(overrides)


def _is_run(target: str | None) -> bool:
    return target is not None and (Path(target) / "run.json").exists()


def _of_file(file: Any, label: str | None) -> dict[str, Any]:
    """Return the part of a run file that a validation needs, with the active rewards.

    These include the rewards in its trainer's settings.
    """
    if file.problems:
        raise ConfigError(file.problems)
    values = type(file).parse(file.to_yaml(), file.name).values  # with full paths
    rewards = [each for each in values.get("rewards") or () if _counts(each, label)]
    if file.plugin is not None:
        rewards += file.trainer(file.plugin).learned_rewards(values)
    return {**{key: values[key] for key in _READ if key in values}, "rewards": rewards}


def _counts(entry: Any, label: str | None) -> bool:
    if not isinstance(entry, dict) or entry.get("weight") != 0:
        return True
    return label is not None and label == entry.get("label", entry.get("name"))


def _of_run(folder: Path) -> dict[str, Any]:
    """Return the saved reward model of a run folder and its training dataset."""
    from hf_rlhf.config import RunFile

    file = RunFile.read(folder / "config.yaml")
    values = file.values
    model = folder / "merged"
    if not model.is_dir():
        fix = "Finish the run, or name a run file with `rewards:`."
        raise ConfigError([Problem(str(folder), "the folder has no merged model.", fix)])
    reward: Mapping[str, Any] = {"name": "reward_model", "model": str(model)}
    if file.plugin is not None:
        trainer = file.trainer(file.plugin)
        reward = trainer.as_reward(values, str(model)) or reward
    return {"rewards": [{"label": reward["name"], **reward}], "dataset": values["dataset"]}


def section_of(data: str, trained_on: Any = None) -> dict[str, Any]:
    """Return the `dataset` section for a file: `graded` if its rows have a grade.

    Pairs get the form of the run's training rows.
    """
    from hf_rlhf.data import read_rows
    from hf_rlhf_lab.graded import has_lists

    rows = next(iter(read_rows(data).splits.values()))
    first = next(iter(rows), None)
    if first is not None and ("grade" in first.values or has_lists(first)):
        return {"name": "graded", "path": data}
    form = {}
    if isinstance(trained_on, dict) and trained_on.get("name") in _CLASSIC_DATA:
        form = {key: value for key, value in trained_on.items() if key in _FORM}
    return {**form, "name": "preference", "path": data, "test_rows": 0}


def gold_rows(scoring: Any, split: str | None, name: str) -> Any:
    """Return the graded responses of a split, by default `test` if there is one."""
    from hf_rlhf_lab.validation.gold import Gold

    dataset = scoring.dataset
    chosen = split or ("test" if "test" in dataset else "train")
    if chosen not in dataset:
        what = f"the dataset has no split {chosen!r}{did_you_mean(chosen, dataset)}."
        raise ConfigError([Problem("--split", what, f"It has: {', '.join(dataset)}.")])
    gold = Gold.of_rows(name, dataset[chosen], scoring.report.get("dropped"))
    return replace(gold, split=chosen)


def tokenizer_of(file: Any) -> Any:
    """Return the tokenizer whose chat template decides between texts and messages.

    It belongs to the policy if the file has one, else to the first reward model. Without either,
    rows are texts.
    """
    from hf_rlhf.models import load_tokenizer, resolve_model_path

    if isinstance(policy := file.values.get("model_name_or_path"), str):
        return load_tokenizer(resolve_model_path(policy), None)
    for entry in file.values.get("rewards") or ():
        if isinstance(model := entry.get("model"), str):
            # A reward model of sound has none.
            with suppress(OSError, ValueError):
                return load_tokenizer(resolve_model_path(model), None)
    return SimpleNamespace(chat_template=None)

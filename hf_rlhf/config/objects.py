"""Objects in a run that is started from Python, passed as in TRL.

Each gets a name that a run file can hold: `MODULE:NAME` for a top-level object of an installed
package, which every process can import; `python:NAME` for any other object, which exists in this
process only.
"""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from hf_rlhf.config.code_files import package_of
from hf_rlhf.config.components import PYTHON
from hf_rlhf.config.cures import TRL_ARGUMENTS
from hf_rlhf.errors import ConfigError, Problem

_LISTS = ("rewards", "gates", "callbacks", "tools")
_OF_TRL = {
    "reward_funcs": "Write `rewards=[...]`.",
    "train_dataset": "Write `dataset=`, a Dataset or a DatasetDict.",
    "eval_dataset": "Write `dataset=DatasetDict(train=..., test=...)` and `evaluation={}`.",
    "environment_factory": "Write `environment=`, the class.",
    "processing_class": "Write `tokenizer=`.",
    "args": "Write its fields as arguments: `learning_rate=1e-5, ...`.",
    **TRL_ARGUMENTS,
    "peft_config": "Write `use_peft=True, lora_r=16, lora_target_modules=['all-linear'], ...`.",
}
"""Argument of TRL's trainers -> how it is written here."""


def name_objects(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace objects in `values` by names; also return the objects by name.

    Raises ConfigError for arguments that only TRL's trainers take, and model objects.
    """
    names = _Names()
    problems = [
        Problem(f"python {key}", f"`{key}` is an argument of TRL's trainers.", cure)
        for key, cure in _OF_TRL.items()
        if key in values
    ]
    result = dict(values)
    for key in (key for key in _LISTS if result.get(key) is not None):
        entries = result[key] if isinstance(result[key], list | tuple) else [result[key]]
        result[key] = [names.entry(each, has_label=key in ("rewards", "gates")) for each in entries]
    if "dataset" in result:
        result["dataset"] = names.entry(_splits(result["dataset"], problems), has_label=False)
    if "environment" in result:
        result["environment"] = names.entry(result["environment"], has_label=False)
    if isinstance(result.get("judges"), Mapping):
        judges = result["judges"].items()
        result["judges"] = {label: names.entry(each, has_label=False) for label, each in judges}
    if hasattr(tokenizer := result.get("tokenizer"), "get_vocab"):
        result["tokenizer"] = names.name(tokenizer, "tokenizer")
    if hasattr(result.get("model_name_or_path"), "state_dict"):
        what = "is an object, and a run loads its model by name, to measure and resume it."
        cure = "Save it with its tokenizer (`save_pretrained('FOLDER')`); write `model='FOLDER'`."
        problems.append(Problem("python model", what, cure))
    if problems:
        raise ConfigError(problems)
    return result, names.objects


class _Names:
    """Names objects uniquely."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}

    def entry(self, value: Any, *, has_label: bool) -> Any:
        """Return the entry of a run file for a name, an object, or a mapping with its `name`."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and not is_rows(value):
            name = value.get("name")
            return value if isinstance(name, str | None) else {**value, "name": self.name(name)}
        if value is None:
            return None
        name = self.name(value)
        return {"name": name, "label": _own_name(value)} if has_label else {"name": name}

    def name(self, value: Any, own: str | None = None) -> str:
        """Return the name of an object: `own`, or by default the name of its definition."""
        own = own or ("dataset" if is_rows(value) else _own_name(value))
        module = str(getattr(value, "__module__", ""))
        if getattr(sys.modules.get(module), own, None) is value and package_of(module):
            return f"{module}:{own}"
        name, number = f"{PYTHON}{own}", 2
        while self.objects.get(name, value) is not value:
            name, number = f"{PYTHON}{own}-{number}", number + 1
        self.objects[name] = value
        return name


def _own_name(value: Any) -> str:
    value = value.func if isinstance(value, partial) else value
    return str(getattr(value, "__name__", type(value).__name__))


def is_rows(value: Any) -> bool:
    """Return whether a value is rows in memory, a `Dataset` or `DatasetDict`."""
    return any(base.__module__.startswith("datasets.") for base in type(value).__mro__)


def _splits(value: Any, problems: list[Problem]) -> Any:
    """Return rows in memory as a `DatasetDict`; any other value unchanged."""
    if not is_rows(value):
        return value
    from datasets import Dataset, DatasetDict

    if isinstance(value, Dataset):
        return DatasetDict(train=value)
    if not isinstance(value, DatasetDict):
        what = f"is an {type(value).__name__}, whose rows cannot be counted or checked."
        cure = "Load the rows that you need: `Dataset.from_list(list(rows.take(1000)))`."
        problems.append(Problem("python dataset", what, cure))
    elif "train" not in value:
        what = f"has the splits {', '.join(value)}, and `train` is missing."
        cure = "Write `DatasetDict(train=..., test=...)`."
        problems.append(Problem("python dataset", what, cure))
    return value

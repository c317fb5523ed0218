"""The phases of a run file; each starts from the weights of the previous phase.

A trainer with a `phase_trainer` reads a section `phases`: a list of partial run files, each with a
`name`. A phase is the whole file overridden by its own keys, run by that trainer or by its own
`plugin`.
"""

import operator
import re
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from hf_rlhf.config.options import merged
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.yaml import KeyPath
from hf_rlhf.errors import Problem

SECTION = "phases"
"""The section, and the subfolder of the run folder for the phases."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_COMMON = (
    *("schema", "phases", "output_dir", "pad_token", "eos_token", "stop_grace"),
    *("model_name_or_path", "model_revision", "adapter", "adapter_revision"),
    *("chat_template", "expect_world_size", "expect_distributed"),
)
"""Keys for all phases: a phase starts where the previous phase ended."""


@dataclass(frozen=True)
class PhaseFile:
    """A phase, as the run file of a run that starts from the base model."""

    name: str
    file: RunFile
    data: str
    """A short description of the phase's own data settings, or ""."""


def check_phases(file: RunFile) -> None:
    """Raise ConfigError for problems with the section `phases` itself."""
    if problems := list(_problems(file)):
        raise file.refusal([*file.problems, *problems])


def phase_files(file: RunFile, trainer: str, folder: Path) -> list[PhaseFile]:
    """Return the run file of each phase; `trainer` runs the phases that name no other.

    They write into `folder/phases/NUMBER-NAME`.
    """
    phases = [(at, phase) for at, phase in enumerate(file.values[SECTION]) if phase is not None]
    return [
        _phase_file(file, trainer, folder / SECTION / f"{number}-{phase['name']}", position, phase)
        for number, (position, phase) in enumerate(phases, start=1)
    ]


def apply_to_all(file: RunFile, python_keys: Collection[str] = ()) -> RunFile:
    """Drop the phases' own values for keys that an option sets for all phases.

    An option for a single phase stays. `python_keys`, top-level keys set from Python, are options.
    """
    values = deepcopy(dict(file.values))
    options = [*file.overrides, *((key,) for key in python_keys)]
    for option in [option for option in options if option[0] != SECTION]:
        value: Any = reduce(operator.getitem, option, values)  # type: ignore[arg-type]
        for path in _leaves(value, option):
            for index, phase in enumerate(values[SECTION]):
                here = (SECTION, index, *path)
                if not any(here[: len(other)] == other for other in file.overrides):
                    _remove(phase, path)
    return replace(file, values=values)


def _problems(file: RunFile) -> Iterator[Problem]:
    section = file.values.get(SECTION)
    if not isinstance(section, list) or not any(phase is not None for phase in section):
        what = "is missing." if section is None else "should be a list of at least one phase."
        yield Problem(file.where((SECTION,)), what, "Write `- {name: NAME, ...}` under it.")
        return
    names: set[str] = set()
    for index, phase in enumerate(section):
        here = file.where((SECTION, index))
        if phase is None:
            continue
        name = phase.get("name") if isinstance(phase, Mapping) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            fix = "Each phase is a mapping with a `name` of letters, digits, `_` and `-`."
            yield Problem(here, "is not a phase.", fix)
            continue
        if name in names:
            yield Problem(here, f"{name!r} is the name of two phases.", "Rename one.")
        names.add(name)
        for key in [key for key in _COMMON if key in phase]:
            at = file.where((SECTION, index, key))
            yield Problem(
                at, f"`{key}` cannot differ between phases.", "Write it at the top level."
            )


def _phase_file(
    file: RunFile, trainer: str, folder: Path, position: int, phase: Mapping[str, Any]
) -> PhaseFile:
    changes = {key: value for key, value in phase.items() if key != "name"}
    # Only the end is published, and under the title of the whole.
    base = {key: value for key, value in file.values.items() if key not in (SECTION, "publish")}
    if isinstance(base.get("card"), Mapping):
        base["card"] = {key: value for key, value in base["card"].items() if key != "title"}
    if isinstance(base.get("evaluation"), Mapping):  # nor are benchmarks measured in between
        own = {key: value for key, value in base["evaluation"].items() if key != "benchmarks"}
        base["evaluation"] = own
    values = merged({**base, "plugin": trainer}, changes) | {"output_dir": str(folder)}
    # An option that sets a whole phase sets each of its keys.
    options = {
        (SECTION, position, *leaf): file.overrides[above]
        for above in ((SECTION,), (SECTION, position))
        if above in file.overrides
        for leaf in _leaves(changes)
    }
    lines = _in_phase(file.lines, position)
    overrides = _in_phase({**options, **file.overrides}, position)
    inside = replace(file, values=values, lines=lines, overrides=overrides)
    return PhaseFile(phase["name"], inside, _data_summary(changes.get("dataset")))


def _in_phase(origins: Mapping[KeyPath, Any], position: int) -> dict[KeyPath, Any]:
    """Return the origins of a phase's keys: its own before the file's."""
    common = {path: at for path, at in origins.items() if path[:1] != (SECTION,)}
    inner = {path[2:]: at for path, at in origins.items() if path[:2] == (SECTION, position)}
    return {**common, **{path: at for path, at in inner.items() if path}}


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of the values within mappings; a list is a single value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path


def _remove(phase: Any, path: KeyPath) -> None:
    for key in path[:-1]:
        phase = phase.get(key) if isinstance(phase, dict) else None
    if isinstance(phase, dict):
        phase.pop(path[-1], None)


def _data_summary(dataset: Any) -> str:
    arguments = dataset if isinstance(dataset, Mapping) else {}
    return ", ".join(
        str(value) if key == "form" else f"{key} {value}" for key, value in arguments.items()
    )

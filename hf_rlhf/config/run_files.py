"""Run files that packages ship, and their changes for other data or another model.

The `card` section of a shipped run file (title, intended use, licence, ...) describes the shipped
run and is dropped for any other run: on the card it would pass for the user's own words. Settings
(lengths, rates, batch sizes) were chosen for the shipped model and data.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_rlhf.config import registry
from hf_rlhf.config.components import load_component
from hf_rlhf.config.objects import is_rows
from hf_rlhf.config.packages import package_and_path, package_folder
from hf_rlhf.config.run_file import SUBJECTS, RunFile
from hf_rlhf.config.yaml import refusal
from hf_rlhf.contracts import as_trainer
from hf_rlhf.errors import BrokenPlugin, suggest

_DEFAULT = "default_run"
"""The attribute of a trainer that names its run file."""


def run_files(trainer: str) -> dict[str, Path]:
    """Return the run files that the package offering `trainer` ships for it, by name.

    They are the YAML files under `runs/` of the trainer's package, including subfolders, whose
    `plugin` is that trainer. On equal names the file in a subfolder wins. The package is not
    imported. A trainer in a file has no run files.
    """
    if ":" in trainer:
        return {}
    point = registry.find("trainers", trainer)
    spec = find_spec(point.module.split(".")[0])
    roots = spec.submodule_search_locations if spec else None
    # A package may ship many files for other trainers; parsing a file takes 10 ms.
    named = re.compile(rf"\bplugin\b\W.*\b{re.escape(point.name)}\b")
    paths = [
        path
        for root in roots or ()
        for pattern in ("*.yaml", "*/*.yaml")
        for path in sorted(Path(root, "runs").glob(pattern))
        if named.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    return {path.stem: path for path in paths if read_shipped(path).plugin in (trainer, point.name)}


def read_shipped(path: Path) -> RunFile:
    """Return a shipped run file, cached for all trainers of its package."""
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, modified: int) -> RunFile:
    return RunFile.read(path)


def default_run(trainer: str) -> str | None:
    """Return the run file for `--plugin` without `--run`: the trainer's `default_run`."""
    if ":" not in trainer:
        with suppress(BrokenPlugin):  # an imported class is not in that source
            if name := registry.constant_in_source(registry.find("trainers", trainer), _DEFAULT):
                return str(name)
    if len(shipped := run_files(trainer)) == 1:
        return next(iter(shipped))
    return as_trainer(load_component("trainers", trainer), trainer).default_run


def configure(
    plugin: str | None,
    run: str | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    overrides: Sequence[str],
) -> tuple[RunFile, list[str]]:
    """Apply settings from Python and options to the chosen run file; return it with notes.

    Raises ConfigError like `choose_run_file` and `RunFile.from_mapping`.
    """
    own = settings.get("dataset")
    if isinstance(config, Mapping):
        file = RunFile.from_mapping(config)
    elif plugin and not run and not config and own is not None and is_rows(own):
        file = RunFile.from_mapping({"plugin": plugin})
    else:
        file = choose_run_file(plugin, run, os.fspath(config) if config else None)
    file = file.with_settings(settings) if settings else file
    file = file.override(overrides)
    file, left_out = without_shipped_card(file, own=settings.get("card") or ())
    return file, [left_out] if left_out else []


def choose_run_file(trainer: str | None, run: str | None, config: str | None) -> RunFile:
    """Return the run file for `--plugin`, `--run` and `--config`.

    Raises ConfigError if all are missing, they disagree, or the run file does not exist.
    """
    if config is not None and run is not None:
        raise refusal("command line", "both --run and --config are given.", "Pick one.")
    if config is not None:
        file = RunFile.read(_path_of(config))
        if trainer and file.plugin and file.plugin != trainer:
            what = f"is {file.plugin!r}, but --plugin says {trainer!r}."
            raise refusal(file.where_key("plugin"), what, "Make them agree, or leave one out.")
        return file
    if trainer is None:
        what = "neither --plugin NAME nor --config FILE is given."
        raise refusal("command line", what, "`hf-rlhf list trainers` lists the names.")
    name = run or default_run(trainer)
    shipped = run_files(trainer)
    if name is None or name not in shipped:
        close = suggest(name or "", shipped)
        fix = f"Did you mean `{close}`? " if close else ""
        fix += f"It ships: {', '.join(sorted(shipped)) or 'none'}."
        raise refusal(f"--run {name}", f"{trainer} ships no such run file.", fix)
    file = read_shipped(shipped[name])
    return replace(file, shipped=file.values)


def _path_of(config: str) -> Path:
    """Return the path of a run file or of package://PACKAGE/FILE."""
    named = package_and_path(config)
    if named is None:
        return Path(config)
    package, inner = named
    folder = package_folder(package)
    if folder is None:
        raise refusal("--config", f"package {package!r} is not installed.", "Correct the name.")
    return folder / inner


def without_shipped_card(
    file: RunFile, own: Collection[str] = (), varied: Collection[str] = ()
) -> tuple[RunFile, str]:
    """Drop `card` from a shipped `file` if data or model differ, or a reward was removed.

    Args:
        file: a run file with overrides applied.
        own: keys of `card` that the user set by other means than an override.
        varied: top-level keys that will be changed later.

    Returns:
        The file, with only the user's keys in `card` if the run differs; and a note on dropped keys
        and the reason, empty if there are none. Another number of rows, data seed or weight, or an
        added reward, is no difference.
    """
    changed = _changed(file, varied)
    kept = _rewards(file.values)
    if any(name not in kept for name in _rewards(file.shipped or {})):
        changed.append("rewards")
    card = file.values.get("card")
    if not changed or not isinstance(card, Mapping) or ("card",) in file.overrides:
        return file, ""
    options = {path[1] for path in file.overrides if path[0] == "card" and len(path) > 1}
    if not (left_out := [key for key in card if key not in {*own, *options}]):
        return file, ""
    rest = {key: value for key, value in card.items() if key not in left_out}
    return replace(file, values={**file.values, "card": rest}), (
        f"{_differ(changed)} from {file.name}, so its `card` section is left out "
        f"({', '.join(left_out)}). "
        "For your own: --card '{title: ..., intended_use: ..., license: ...}'"
    )


def _changed(file: RunFile, varied: Collection[str] = ()) -> list[str]:
    """Return the keys of a shipped file's data or model that were changed."""
    if file.shipped is None:
        return []
    return [
        key
        for key in SUBJECTS
        if key in varied or _identity(file.values.get(key)) != _identity(file.shipped.get(key))
    ]


def _rewards(values: Mapping[str, Any]) -> list[Any]:
    rewards = values.get("rewards")
    return [
        each.get("name") if isinstance(each, Mapping) else each
        for each in (rewards if isinstance(rewards, list) else ())
    ]


def _identity(value: Any) -> Any:
    """Drop the numbers of a section: another number of rows is still the same data."""
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if type(each) not in (int, float)}


def _differ(keys: list[str]) -> str:
    return f"{', '.join(f'`{key}`' for key in keys)} {'differs' if len(keys) == 1 else 'differ'}"

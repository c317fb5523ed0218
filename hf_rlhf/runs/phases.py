"""A chain: runs one after another, each beginning with the weights that the one before has made.

A trainer that names a `phase_trainer` is one. Its run file has a section `phases`, a list of parts
of a run file, each with a `name`; a phase is the whole file with its own keys over it, run by that
trainer, or by the `plugin` that the phase names.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config import registry
from hf_rlhf.config.overrides import merged
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import default_folder
from hf_rlhf.config.schema import RunSpec
from hf_rlhf.config.values import KeyPath, dotted
from hf_rlhf.contracts import as_trainer
from hf_rlhf.errors import ConfigError, PluginError, Problem

SECTION = "phases"
FOLDER = "phases"
"""Where in the chain's folder the phases have theirs."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_OF_THE_CHAIN = (
    *("schema", "phases", "output_dir", "pad_token", "stop_grace"),
    *("model_name_or_path", "model_revision", "adapter", "adapter_revision"),
    *("expect_world_size", "expect_distributed"),
)
"""Keys that hold for the chain as a whole: a phase begins where the one before has ended."""


@dataclass(frozen=True)
class Phase:
    """One phase, as the run file of a run of its own that begins with the chain's base."""

    number: int
    """From 1."""
    name: str
    file: RunFile
    own: Mapping[str, Any]
    """What the phase itself says."""

    @property
    def folder(self) -> Path:
        """The folder of its run."""
        return Path(self.file.values["output_dir"])


@dataclass(frozen=True)
class Chain:
    """A run file with phases, each resolved."""

    plugin: str
    file: RunFile
    """As it is recorded: what an option says of all phases stands in none of them."""
    links: tuple[Phase, ...]
    folder: Path

    def spec(self) -> RunSpec:
        """Return what the chain's own record says it was asked for, beside its last phase.

        Raises ConfigError for what is wrong with the sections that are the chain's own.
        """
        last = self.links[-1].file
        own = {key: self.file.values[key] for key in ("publish", "card") if key in self.file.values}
        values = {
            key: value for key, value in last.values.items() if key not in ("publish", "card")
        }
        file = replace(last, values={**values, **own, "plugin": self.plugin})
        spec, problems = file.spec(known_settings={}, plugin=self.plugin)
        if spec is not None and spec.publish.checkpoints:
            fix = "A phase can be published by itself: hf-rlhf publish FOLDER/phases/1-NAME."
            where = self.file.where(("publish", "checkpoints"))
            problems.append(Problem(where, "is not for runs with phases.", fix))
        if spec is None or problems:
            raise ConfigError(list(dict.fromkeys(problems)))
        plain = {**self.file.values, "plugin": self.plugin}
        digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        return replace(spec, plain=plain, sha256=digest)


def chain_of(file: RunFile, plugin: str | None, given: Collection[str] = ()) -> Chain | None:
    """Return the chain that a run file is, or None where its trainer is no chain.

    Args:
        file: the run file with its options applied.
        plugin: the trainer, where the file does not name it.
        given: top-level keys that were set from Python: like an option, they hold for all phases.

    Raises:
        ConfigError: what is wrong with the section `phases`.
    """
    name = plugin or file.plugin
    if name is None:
        return None
    try:
        of = as_trainer(registry.load("trainers", name), name).phase_trainer
    except PluginError:
        return None  # which is reported with the rest of the run file
    return None if of is None else resolved(file, name, of, given)


def resolved(file: RunFile, name: str, of: str, given: Collection[str] = ()) -> Chain:
    """Return the chain that a run file is: of the trainer `name`, with phases of the trainer `of`.

    `given` and what is raised are as for `chain_of`.
    """
    problems = list(_problems(file))
    if problems:
        raise ConfigError([*file.problems, *problems])
    file = _for_all(file, given)
    folder = Path(file.values.get("output_dir") or default_folder(name, file.name))
    items = [(i, item) for i, item in enumerate(file.values[SECTION]) if item is not None]
    links = (
        _link(file, of, folder, number, position, item)
        for number, (position, item) in enumerate(items, start=1)
    )
    return Chain(name, file, tuple(links), folder)


def _problems(file: RunFile) -> Iterator[Problem]:
    """Yield what is wrong with the section itself."""
    section = file.values.get(SECTION)
    where = file.where((SECTION,))
    if not isinstance(section, list) or not any(item is not None for item in section):
        what = "is missing." if section is None else "should be a list of at least one phase."
        yield Problem(where, what, "Write `- {name: NAME, ...}` under it.")
        return
    visited: set[str] = set()
    for index, item in enumerate(section):
        here = file.where((SECTION, index))
        if item is None:
            continue
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(item, Mapping) or not isinstance(name, str) or not _NAME.fullmatch(name):
            fix = "Each phase is a mapping with a `name` of letters, digits, `_` and `-`."
            yield Problem(here, "is no phase.", fix)
            continue
        if name in visited:
            yield Problem(here, f"{name!r} is the name of two phases.", "Give each its own.")
        visited.add(name)
        for key in [key for key in _OF_THE_CHAIN if key in item]:
            at = file.where((SECTION, index, key))
            yield Problem(at, f"`{key}` is one for all phases.", "Write it at the top level.")


def _for_all(file: RunFile, given: Collection[str]) -> RunFile:
    """Return the file without what its phases say of a key that an option sets for all of them.

    An option for one phase stands.
    """
    values = deepcopy(dict(file.values))
    paths = [path for path in file.overrides if path[0] != SECTION]
    paths += [(key,) for key in given if key != SECTION]
    for path in [leaf for top in paths for leaf in _leaves(values, top)]:
        for index, item in enumerate(values[SECTION]):
            own = (SECTION, index, *path)
            if any(own[: len(override)] == override for override in file.overrides):
                continue
            _remove(item, path)
    return replace(file, values=values)


def _leaves(values: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of single values at and below a path."""
    node = values
    for key in path:
        if not isinstance(node, Mapping | list) or (isinstance(node, Mapping) and key not in node):
            return
        node = node[key]  # type: ignore[index]
    if isinstance(node, Mapping) and node:
        for key in node:
            yield from _leaves(values, (*path, key))
    else:
        yield path


def _remove(item: Any, path: KeyPath) -> None:
    for key in path[:-1]:
        item = item.get(key) if isinstance(item, dict) else None
    if isinstance(item, dict):
        item.pop(path[-1], None)


def _link(
    file: RunFile, of: str, folder: Path, number: int, position: int, item: Mapping[str, Any]
) -> Phase:
    own = {key: value for key, value in item.items() if key != "name"}
    base = {key: value for key, value in file.values.items() if key not in (SECTION, "publish")}
    base["plugin"] = of
    if isinstance(base.get("card"), Mapping):
        # It is the chain's: a phase has a name of its own.
        base["card"] = {key: value for key, value in base["card"].items() if key != "title"}
    values = merged(base, own)
    values["output_dir"] = str(folder / FOLDER / f"{number}-{item['name']}")
    inside = replace(
        file,
        values=values,
        lines=_places(file.lines, position),
        overrides=_places(_told(file, position, own), position),
    )
    return Phase(number, item["name"], inside, own)


def _told(file: RunFile, position: int, own: Mapping[str, Any]) -> dict[KeyPath, str]:
    """Return the options of a file, one that gives a whole phase as one of each of its keys."""
    whole = [item for item in ((SECTION,), (SECTION, position)) if item in file.overrides]
    keys = {
        (SECTION, position, *leaf): file.overrides[item]
        for item in whole
        for leaf in _leaves(own, ())
    }
    return {**keys, **file.overrides}


def _places(known: Mapping[KeyPath, Any], position: int) -> dict[KeyPath, Any]:
    """Return where the keys of a phase were written: those of its own before those of the file."""
    top = {path: at for path, at in known.items() if path[:1] != (SECTION,)}
    own = {path[2:]: at for path, at in known.items() if path[:2] == (SECTION, position)}
    return {**top, **{path: at for path, at in own.items() if path}}


def problems_by_phase(links: Sequence[Phase], found: Sequence[Sequence[Problem]]) -> list[Problem]:
    """Return the problems of all phases: once what all of them have, else with the phase's name."""
    common = set(found[0]).intersection(*map(set, found)) if len(found) > 1 else set()
    result = [problem for problem in dict.fromkeys(found[0]) if problem in common]
    for link, problems in zip(links, found, strict=True):
        for item in dict.fromkeys(problems):
            if item not in common:
                result.append(replace(item, where=f"phase {link.name}: {item.where}"))
    return result


def data_summary(own: Mapping[str, Any]) -> str:
    """Return in a few words what a phase says of its data, empty if nothing."""
    data = own.get("dataset")
    if not isinstance(data, Mapping):
        return ""
    return ", ".join(
        str(value) if key == "form" else f"{dotted((key,))} {value}" for key, value in data.items()
    )

"""Run files: YAML with the line of every key, overridden by options and validated as a whole.

A run file is flat YAML like TRL's: a few sections (`dataset`, `rewards`, ...) and, at the top
level, the settings of the trainer and the model (docs/reference/run-files.md). Nothing here knows a
plugin or imports the training stack.
"""

import copy
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hf_rlhf.config import yaml
from hf_rlhf.config.components import Component, Kind, absolute_name, label_of, look_up
from hf_rlhf.config.cures import KNOWN_CURES
from hf_rlhf.config.objects import name_objects
from hf_rlhf.config.options import assign, merged, read_options, value_of
from hf_rlhf.config.schema import (
    SCHEMA,
    ComponentSpec,
    DatasetSpec,
    JudgeSpec,
    Limits,
    MonitorSpec,
    RunSpec,
    SourceSpec,
    TopLevel,
    keys_of,
)
from hf_rlhf.config.validation import bind, unknown_setting
from hf_rlhf.config.yaml import KeyPath, dotted
from hf_rlhf.contracts import Trainer, as_trainer
from hf_rlhf.errors import ConfigError, Problem, suggest
from hf_rlhf.storage.secrets import SECRET_HINT, misplaced_secrets

SUBJECTS = ("dataset", "model_name_or_path", "adapter")
"""Keys of a run file that decide the subject of its `card` section."""
_HINTS = get_type_hints(RunSpec)
_PARTS: dict[str, type] = {
    key: cls
    for key, hint in _HINTS.items()
    for cls in (*get_args(hint), hint)
    if is_dataclass(cls) and isinstance(cls, type) and cls is not Limits
}
"""Key of a section, or of entries that name components -> its class."""
_TOP = ("schema", "plugin", *_PARTS, *keys_of(TopLevel), *keys_of(Limits))


@dataclass(frozen=True)
class RunFile:
    """A run file and its overrides: plain values, and the line or option of each."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)
    """Key -> the option that set it."""
    problems: tuple[Problem, ...] = ()
    shipped: Mapping[str, Any] | None = None
    """For a shipped file: its values before any override."""
    folder: Path = field(default=Path(), compare=False)
    """The folder of the file, to which its file names are relative."""
    python_keys: Collection[str] = ()
    """Top-level keys set from Python, where (as in options) files are relative to the working
    directory."""
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Objects from Python, by their names in `values`."""

    @classmethod
    def read(cls, path: str | Path) -> "RunFile":
        """Read a run file. Raises ConfigError if it is unreadable or no YAML mapping."""
        path = Path(path)
        return replace(cls.parse(yaml.read_text(path), path.name), folder=path.parent)

    @classmethod
    def parse(cls, text: str, name: str) -> "RunFile":
        """Parse `text`, which messages call `name`. Raises ConfigError like `read`."""
        document = yaml.load_yaml(text, name)
        if not isinstance(document.value, dict):
            what = "is empty." if document.value is None else "is not a mapping of keys to values."
            fix = "A run file begins with `schema: 1` and `plugin: NAME`."
            raise ConfigError([Problem(name, what, fix), *document.problems])
        return cls(name, document.value, document.lines, problems=tuple(document.problems))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], name: str = "python") -> "RunFile":
        """Build a run file from Python values, with objects instead of component names.

        Raises ConfigError for other values that a run file cannot hold.
        """
        named, objects = name_objects(values)
        plain, problems = yaml.from_python(named, name)
        if problems:
            raise ConfigError(problems)
        return cls(name, {"schema": SCHEMA, **plain}, objects=objects)

    def with_settings(self, settings: Mapping[str, Any]) -> "RunFile":
        """Return this file with top-level settings from Python merged into it.

        Raises ConfigError like `from_mapping`.
        """
        own = type(self).from_mapping(settings, self.name)
        shipped = {
            key: value
            for key, value in (self.shipped or {}).items()
            if key not in settings or key in SUBJECTS or isinstance(value, Mapping)
        }
        return replace(
            self,
            values=merged(self.values, {key: own.values[key] for key in settings}),
            lines={path: n for path, n in self.lines.items() if {*path[:1]} - settings.keys()},
            shipped=None if self.shipped is None else shipped,
            python_keys=tuple(settings),
            objects={**self.objects, **own.objects},
        )

    @property
    def plugin(self) -> str | None:
        """The trainer in the file, if any."""
        plugin = self.values.get("plugin")
        return plugin if isinstance(plugin, str) else None

    def where(self, path: Sequence[str | int]) -> str:
        """Return the origin of `path` or its nearest parent: `tiny.yaml:14 rewards.0`."""
        path = tuple(path)
        if path and path not in self.lines and "." in str(path[-1]):  # a value within an argument
            inner = str(path[-1]).split(".")
            path = (*path[:-1], *(int(key) if key.isdecimal() else key for key in inner))
        for length in range(len(path), -1, -1):
            above = path[:length]
            if option := self.overrides.get(above):
                rest = f" {dotted(path)}" if above != path else ""
                return f"{option} (command line){rest}"
            if line := self.lines.get(above):
                return f"{self.name}:{line} {dotted(path)}".rstrip()
        return f"{self.name} {dotted(path)}".rstrip()

    def where_key(self, key: str) -> str:
        """Return the origin of a top-level key."""
        return self.where((key,))

    def override(self, argv: Sequence[str]) -> "RunFile":
        """Return this file with `--key value`, `--key=value` and `--key` (true) applied.

        Keys are dotted and exact. List items are addressed by index or label, and the index after
        the last appends: `--rewards.0.weight 0.3`, `--rewards.refiner.weight 0.3`. Values are
        parsed by `value_of`. The last of equal keys wins. Errors are added to `problems`.
        """
        values, lines, overrides = dict(self.values), dict(self.lines), dict(self.overrides)
        problems = list(self.problems)
        for token, option, text in read_options(argv):
            try:
                if not option.startswith("--") or option == "--":
                    raise ValueError("is not an option. Options are written `--key value`.")
                value = True if text is None else value_of(text)
                changed = copy.deepcopy(values)  # a path that leads nowhere leaves `values` alone
                new_containers, path = assign(changed, option[2:].split("."), value)
            except ValueError as error:
                problems.append(Problem(f"{token} (command line)", str(error)))
                continue
            values = changed
            for places in (lines, overrides):
                for replaced in [key for key in places if key[: len(path)] == path]:
                    del places[replaced]
            overrides |= dict.fromkeys((*new_containers, path), option)
        return replace(
            self, values=values, lines=lines, overrides=overrides, problems=tuple(problems)
        )

    def component(self, kind: Kind, name: str, path: KeyPath) -> Component:
        """Return the component at `path`. Raises PluginError."""
        return look_up(kind, self._located(name, path), self.objects)

    def trainer(self, name: str) -> type[Trainer]:
        """Return the trainer `name`, by default the file's. Raises PluginError."""
        return as_trainer(self.component("trainers", name, ("plugin",)).target, name)

    def to_yaml(self) -> str:
        """Return the file with its overrides as YAML that can be read from any folder."""
        return yaml.dump_yaml(self._located(dict(self.values), ()))

    def _located(self, value: Any, path: KeyPath) -> Any:
        """Return names of file components with absolute paths."""
        if isinstance(value, Mapping):
            return {key: self._located(each, (*path, key)) for key, each in value.items()}
        if isinstance(value, list):
            return [self._located(each, (*path, index)) for index, each in enumerate(value)]
        if not isinstance(value, str):
            return value
        is_option = any(path[:length] in self.overrides for length in range(len(path) + 1))
        is_option |= bool(path) and path[0] in self.python_keys
        return absolute_name(value, Path() if is_option else self.folder)

    def spec(
        self, *, allowed_settings: Collection[str], plugin: str | None = None
    ) -> tuple[RunSpec | None, list[Problem]]:
        """Validate the file's own sections and the names of its settings.

        Args:
            allowed_settings: fields of the trainer's Config and of ModelConfig. If empty (the
                trainer could not be loaded), setting names are not checked.
            plugin: the trainer, if it comes from the command line.

        Returns:
            A spec of the readable parts, for further checks, or None without a usable plugin or
            dataset; and every problem. Run the spec only if there are no problems.
        """
        reader = _Reader(self, allowed_settings)
        spec = reader.spec(plugin or self.plugin)
        return spec, [*self.problems, *reader.problems]

    def sources(
        self, path: KeyPath, entries: Sequence[Any]
    ) -> tuple[tuple[SourceSpec, ...], list[Problem]]:
        """Return the usable entries of a list of datasets at `path`, and all problems."""
        reader = _Reader(self, ())
        sources = reader.entries(SourceSpec, path, enumerate(entries))
        reader.check_labels(sources)
        return sources, reader.problems

    def refusal(self, problems: Sequence[Problem]) -> ConfigError:
        """Return the error for `problems`, with a hint if the file is shipped."""
        of_file = any(problem.where.startswith(f"{self.name}:") for problem in problems)
        hint = f"{self.name} is the run file that {self.plugin!r} ships. An option replaces a "
        hint += "value of it: --KEY VALUE."
        return ConfigError(problems, hint if self.shipped is not None and of_file else "")


def default_folder(trainer: str, file: str) -> Path:
    """Return the default run folder of a run file."""
    return Path(f"runs/{re.sub('[/:]', '-', trainer)}-{Path(file).stem}")


class _Reader:
    """Reads the values of a run file into its sections, and collects the problems."""

    def __init__(self, file: RunFile, allowed_settings: Collection[str]) -> None:
        self.file = file
        self.allowed_settings = allowed_settings
        self.problems: list[Problem] = []

    def spec(self, plugin: str | None) -> RunSpec | None:
        """Return the valid part; None without a plugin or dataset, or with a secret in the file."""
        values = self.file.values
        self._check_schema(values.get("schema"))
        secrets = misplaced_secrets(yaml.leaves(values))
        for path, what in secrets:
            self._report(path, what, SECRET_HINT)
        if secrets:
            return None  # other messages could repeat one
        if plugin is None:
            self._report(("plugin",), "is missing or not text.", "Name a trainer: `plugin: NAME`.")
        settings = self._settings()
        parts = {key: self._part(key, cls) for key, cls in _PARTS.items()}
        self.check_labels((*parts["rewards"], *parts["gates"]))
        top, limits = self._top_level(TopLevel), self._top_level(Limits)
        if parts["publish"].checkpoints and parts["publish"].repo_id is None:
            what = "is set, but `publish.repo_id` is not."
            self._report(("publish", "checkpoints"), what, "Write `repo_id: ID`.")
        if plugin is None or parts["dataset"] is None:
            return None
        plain = {**values, "plugin": plugin}
        return RunSpec(
            plugin=plugin,
            **parts,
            **top,
            limits=Limits(**limits),
            settings=settings,
            default_folder=default_folder(plugin, self.file.name),
            plain=plain,
            name=self.file.name,
            sha256=hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest(),
        )

    def _check_schema(self, version: Any) -> None:
        if version is None:
            self._report(("schema",), "is missing.", f"Write `schema: {SCHEMA}`.")
        elif version != SCHEMA or isinstance(version, bool):
            fix = f"This hf_rlhf reads schema {SCHEMA}."
            if isinstance(version, int) and version > SCHEMA:
                fix += " Upgrade with `pip install --upgrade hf-rlhf`."
            self._report(("schema",), f"is {version!r}.", fix)

    def _settings(self) -> dict[str, Any]:
        """Return the settings of trainer and model, without unknown ones."""
        settings = {key: value for key, value in self.file.values.items() if key not in _TOP}
        unknown = [key for key in settings if key not in (self.allowed_settings or settings)]
        self.problems += [self._unknown_setting(key) for key in unknown]
        return {key: value for key, value in settings.items() if key not in unknown}

    def _unknown_setting(self, key: str) -> Problem:
        where, owner = self.file.where((key,)), "the trainer or model"
        fix = None if key in KNOWN_CURES else self._home(key)
        if key.startswith("no_") and key[3:] in self.allowed_settings:
            fix = f"Write `{key[3:]}: false` (`--{key[3:]} false`)."
        if fix:
            return Problem(where, f"`{key}` is not a setting of {owner}.", fix)
        return unknown_setting(where, key, [*_TOP, *self.allowed_settings], owner)

    def _home(self, key: str) -> str | None:
        """Return a hint on the right section for a misplaced key."""
        if key in self.allowed_settings or key in _TOP:
            return "It belongs at the top level."
        sections = (name for name, cls in _PARTS.items() if not issubclass(cls, ComponentSpec))
        section = next((name for name in sections if key in keys_of(_PARTS[name])), None)
        return f"It belongs under `{section}:`." if section else None

    def _part(self, key: str, cls: type) -> Any:
        """Read a section, or the component entries under a key."""
        value = self.file.values.get(key)
        if cls is JudgeSpec:
            judges = self._container(key, dict, "LABEL: {name: ...}")
            return self.entries(cls, (key,), judges.items())
        if get_origin(_HINTS[key]) is tuple:
            return self.entries(cls, (key,), enumerate(self._container(key, list, "- name: ...")))
        if cls is MonitorSpec and isinstance(value, bool):
            return cls() if value else None
        if value is None and key != "dataset":
            return None if type(None) in get_args(_HINTS[key]) else cls()
        if issubclass(cls, ComponentSpec):
            return self._entry(cls, value, (key,))
        values = self._container(key, dict, "KEY: VALUE")
        for name in [name for name in values if name not in keys_of(cls)]:
            if home := self._home(name):
                del values[name]
                self._report((key, name), f"`{name}` is not a setting of `{key}`.", home)
        return cls(**self._bound(cls, values, (key,), key))

    def entries(self, cls: Any, path: KeyPath, items: Iterable[tuple[Any, Any]]) -> tuple[Any, ...]:
        """Read component entries, skipping unusable entries."""
        found = [self._entry(cls, value, (*path, at)) for at, value in items]
        return tuple(each for each in found if each is not None)

    def check_labels(self, parts: Sequence[Any]) -> None:
        """Report duplicate labels."""
        first: dict[str, Any] = {}
        for part in parts:
            if first.setdefault(part.label, part) is not part:
                what = f"{part.label!r} is already the label of {first[part.label].where}."
                self._report((*part.path, "label"), what, "Give each its own `label:`.")

    def _top_level(self, cls: type) -> dict[str, Any]:
        """Validate the top-level keys that are fields of `cls`; null means the default."""
        values = {key: self.file.values.get(key) for key in keys_of(cls)}
        present = {key: value for key, value in values.items() if value is not None}
        return self._bound(cls, present, (), "the run")

    def _entry(self, cls: Any, value: Any, path: KeyPath) -> Any:
        """Read a component entry; report a missing name and return None."""
        if isinstance(value, str) and cls not in (DatasetSpec, JudgeSpec):
            value = {"name": value}
        if value is None or value == {}:
            what = "is missing." if value is None else "is empty."
            self._report(path, what, "Write `name: NAME`.")
            return None
        if not isinstance(value, dict):
            example = value if isinstance(value, str) else "NAME"
            self._report(path, "should be a mapping.", f"Write `name: {example}` under it.")
            return None
        name, keys = value.get("name"), keys_of(cls)
        if not isinstance(name, str) or not name:
            close = suggest("name", value.keys() - {"name"})
            fix = f"Is `{close}` meant?" if close else "Write `name: NAME`."
            self._report((*path, "name"), "is missing or not text.", fix)
            return None
        own = {key: each for key, each in value.items() if key in keys}
        if "label" in keys:
            own = {"label": path[-1] if cls is JudgeSpec else label_of(name), **own}
        valid = self._bound(cls, own, path, str(path[0]))
        if "label" in keys:
            valid = {"label": "_".join(map(str, path)), **valid}
        arguments = {key: each for key, each in value.items() if key not in keys}
        return cls(**valid, arguments=arguments, where=self.file.where(path), path=path)

    def _bound(
        self, cls: type, values: Mapping[str, Any], path: KeyPath, title: str
    ) -> dict[str, Any]:
        where = self.file.where
        valid, problems = bind(cls, values, where=lambda key: where((*path, key)), title=title)
        self.problems += problems
        return valid

    def _container(self, key: str, kind: type, example: str) -> Any:
        """Return a copy of a list or mapping; report any other value and return an empty one."""
        value = self.file.values.get(key)
        if value is not None and not isinstance(value, kind):
            word = "a list" if kind is list else "a mapping"
            self._report((key,), f"should be {word}.", f"Write `{example}` under it.")
            value = None
        return kind(value or ())

    def _report(self, path: KeyPath, what: str, fix: str) -> None:
        self.problems.append(Problem(self.file.where(path), what, fix))

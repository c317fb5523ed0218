"""Run files: YAML with the place of every key, overridden by options and checked all at once.

A run file is YAML, flat like TRL's: a few sections that are ours (`dataset`, `rewards`, ...) and
beside them, at the top level, the settings of the trainer and the model. The format:
docs/reference/run-files.md. Nothing here knows a plugin or imports the training stack.
"""

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config import yaml
from hf_rlhf.config.components import Component, Kind, absolute_name, label_of, look_up
from hf_rlhf.config.objects import name_objects
from hf_rlhf.config.schema import SCHEMA, RunSpec
from hf_rlhf.config.spec_reader import SpecReader
from hf_rlhf.config.yaml import KeyPath, dotted
from hf_rlhf.contracts import Trainer, as_trainer
from hf_rlhf.errors import ConfigError, Problem, suggest
from hf_rlhf.storage.secrets import REDACTED, redact_secrets

_INDEX = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class RunFile:
    """A run file and its overrides: plain values, and where each was written."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)
    """The option that set a key."""
    problems: tuple[Problem, ...] = ()
    shipped: Mapping[str, Any] | None = None
    """For a file that a package ships: its values before any override."""
    folder: Path = field(default=Path(), compare=False)
    """The folder of the file, to which the names of files in it are relative."""
    python_keys: Collection[str] = ()
    """Top-level keys set from Python: files there, as in options, are of the working directory."""
    objects: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Objects from Python, by the names that stand for them in `values`."""

    @classmethod
    def read(cls, path: str | Path) -> "RunFile":
        """Read a file. Raises ConfigError if it cannot be read or is not a YAML mapping."""
        path = Path(path)
        return replace(cls.parse(yaml.read_text(path), path.name), folder=path.parent)

    @classmethod
    def parse(cls, text: str, name: str) -> "RunFile":
        """Read `text`; `name` stands for it in messages. Raises ConfigError as `read` does."""
        document = yaml.load_yaml(text, name)
        if not isinstance(document.value, dict):
            what = "is empty." if document.value is None else "is not a mapping of keys to values."
            fix = "A run file begins with `schema: 1` and `plugin: NAME`."
            raise ConfigError([Problem(name, what, fix), *document.problems])
        return cls(name, document.value, document.lines, problems=tuple(document.problems))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], name: str = "python") -> "RunFile":
        """Take a run from Python, with objects where a run file has names of components.

        Raises ConfigError for other values that a run file cannot hold.
        """
        named, objects = name_objects(values)
        plain, problems = yaml.from_python(named, name)
        if problems:
            raise ConfigError(problems)
        return cls(name, {"schema": SCHEMA, **plain}, objects=objects)

    @property
    def plugin(self) -> str | None:
        """The trainer that the file names, if it names one."""
        plugin = self.values.get("plugin")
        return plugin if isinstance(plugin, str) else None

    def where(self, path: Sequence[str | int]) -> str:
        """Say where `path` was written, or the nearest key above it: `tiny.yaml:14 rewards.0`."""
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
        """Say where a top-level key was written."""
        return self.where((key,))

    def override(self, argv: Sequence[str]) -> "RunFile":
        """Return this file with `--key value`, `--key=value` and `--key` (true) applied.

        Keys are dotted and exact; an item of a list is named by its index or its label, and the
        index after the last appends: `--rewards.0.weight 0.3`, `--rewards.refiner.weight 0.3`. The
        value is read as by `value_of`. Of equal keys the last one wins. What is wrong is added to
        `problems`.
        """
        values, lines, overrides = dict(self.values), dict(self.lines), dict(self.overrides)
        problems = list(self.problems)
        for token, option, text in _options(argv):
            try:
                if not option.startswith("--") or option == "--":
                    raise ValueError("is not an option. Options are written `--key value`.")
                value = True if text is None else value_of(text)
                changed = copy.deepcopy(values)  # a path that leads nowhere leaves `values` alone
                new_containers, path = _assign(changed, option[2:].split("."), value)
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
        """Return the component that is named at `path`. Raises PluginError."""
        return look_up(kind, self._located(name, path), self.objects)

    def trainer(self, name: str) -> type[Trainer]:
        """Return the trainer `name`, by default the one of the file. Raises PluginError."""
        return as_trainer(self.component("trainers", name, ("plugin",)).target, name)

    def to_yaml(self) -> str:
        """Return the file with its overrides applied as YAML, to be read from any folder."""
        return yaml.dump_yaml(self._located(dict(self.values), ()))

    def _located(self, value: Any, path: KeyPath) -> Any:
        """Return names in files with their whole paths."""
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
        """Check the file's own sections and the names of its settings.

        Args:
            allowed_settings: names of the fields of the trainer's Config and of ModelConfig. With
                none the settings' names are not checked: the trainer could not be loaded.
            plugin: the trainer, where the command line and not the file names it.

        Returns:
            A spec of all that could be read, so that more problems can be found in it, or None
            when there is no plugin or dataset to speak of; and every problem. The spec may be run
            only if there are none.
        """
        reader = SpecReader(self.values, self.where, allowed_settings, list(self.problems))
        return reader.spec(self.name, plugin or self.plugin), reader.problems


def value_of(text: str) -> Any:
    """Return the value that an option's text stands for. Raises ValueError.

    Text that begins with a bracket, a brace or a quote is YAML; any other is one plain scalar, so
    that `a: b # c` needs no quotes. Empty text is empty text, not null.
    """
    if not text:
        return ""
    if text[0] not in "[{\"'":
        return yaml.scalar(text)
    try:
        document = yaml.load_yaml(text, "value")
    except ConfigError as error:
        problem = error.problems[0]
        fix = "Text that begins with a bracket or quote needs quotes of its own: '\"[draft] x\"'."
        raise ValueError(f"{problem.what} {fix}") from error
    if document.problems:
        raise ValueError(str(document.problems[0]))
    return document.value


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return a command line without the secrets that `redact_secrets` finds in its YAML."""
    clean: list[str] = []
    for word in argv:
        option, equals, text = word.partition("=") if word.startswith("--") else ("", "", word)
        if text[:1] in ("[", "{"):
            try:
                value = value_of(text)
                text = text if redact_secrets(value) == value else json.dumps(redact_secrets(value))
            except ValueError:
                text = REDACTED  # what cannot be read cannot be cleaned
        clean.append(f"{option}{equals}{text}")
    return clean


def merged(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's values with top-level settings from Python put in.

    A section is merged key by key, unless it names another component, whose arguments differ; a
    list is replaced.
    """
    result = {**values, **settings}
    for key, value in settings.items():
        old = values.get(key)
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            continue
        if value.get("name", old.get("name")) == old.get("name"):
            result[key] = {**old, **value}
    return result


def _options(argv: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield each word that should be an option, the option and its text; None if it has none."""
    words = list(argv)
    while words:
        word = words.pop(0)
        option, equals, text = word.partition("=")
        follows = option.startswith("--") and words and not words[0].startswith("--")
        if equals or not follows or option == "--":
            yield word, option, text if equals else None
        else:
            yield word, option, words.pop(0)


def _assign(
    root: dict[str, Any], segments: Sequence[str], value: Any
) -> tuple[list[KeyPath], KeyPath]:
    """Set one key in place. Return the paths of new containers, and the key's path."""
    if not all(segments):
        raise ValueError("has an empty part between its dots.")
    containers: list[KeyPath] = []
    node: Any = root
    path: KeyPath = ()
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if not isinstance(node, dict | list):
            raise ValueError(f"`{dotted(path)}` is a single value: it has no `{segment}`.")
        key: Any = segment if isinstance(node, dict) else _index(node, segment, path)
        path = (*path, key)
        exists = key in node if isinstance(node, dict) else key < len(node)
        inner = node[key] if exists else None
        if following is None:
            inner = value
        elif inner is None:
            inner = [] if _INDEX.fullmatch(following) else {}
            containers.append(path)
        if exists or isinstance(node, dict):
            node[key] = inner
        else:
            node.append(inner)
        node = inner
    return containers, path


def _index(items: list[Any], segment: str, path: KeyPath) -> int:
    """Return the position in a list that an index, or the label of an item, names."""
    if _INDEX.fullmatch(segment):
        if int(segment) <= len(items):
            return int(segment)
        raise ValueError(f"`{dotted(path)}` has {len(items)} items; {len(items)} would add one.")
    labels = [
        str(each.get("label") or each.get("name")) if isinstance(each, dict) else str(each)
        for each in items
    ]
    for names in (labels, [label_of(label) for label in labels]):
        if segment in names:
            return names.index(segment)
    guess = suggest(segment, labels)
    fix = f"Did you mean `{guess}`?" if guess else f"Labels: {', '.join(labels) or 'none'}."
    raise ValueError(f"`{dotted(path)}` has no item labelled `{segment}`. {fix}")

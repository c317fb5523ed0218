"""Run files: what a user asks for, read with the place of every key, checked all at once.

A run file is YAML, flat like TRL's: a few sections that are ours (`dataset`, `rewards`, ...) and
beside them, at the top level, the settings of the trainer and the model. The format:
docs/reference/run-files.md. Nothing here knows a plugin or imports the training stack.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.config.overrides import apply
from hf_rlhf.config.schema import (
    CardSpec,
    DatasetSpec,
    EvaluationSpec,
    GateSpec,
    JudgeSpec,
    Limits,
    PublishSpec,
    RewardSpec,
    RunSpec,
    keys_of,
)
from hf_rlhf.config.settings import FORMER
from hf_rlhf.config.urls import forbidden_url
from hf_rlhf.config.validation import Unfit, bind, fit, near, unknown
from hf_rlhf.config.yaml import KeyPath, dotted
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.storage.secrets import SECRET_PLACE, misplaced_secret

__all__ = [
    "RESERVED_LABELS",
    "SCHEMA",
    "CardSpec",
    "DatasetSpec",
    "EvaluationSpec",
    "GateSpec",
    "JudgeSpec",
    "PublishSpec",
    "RewardSpec",
    "RunFile",
    "RunSpec",
    "keys_of",
]

SCHEMA = 1
RESERVED_LABELS = frozenset({"total", "completion_tokens", "truncated"})
"""Names under which a run measures other things than its rewards."""

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LABEL_RULE = "Use letters, digits, `_` and `-`, and begin with a letter."

_SECTIONS: dict[str, type] = {
    "evaluation": EvaluationSpec,
    "publish": PublishSpec,
    "card": CardSpec,
}
_TOP = (
    *("schema", "plugin", "dataset", "judges", "rewards", "gates", "pad_token", *_SECTIONS),
    *("adapter", "adapter_revision", "expect_world_size", "expect_distributed"),
    *(item.name for item in fields(Limits)),
)
_ONLY_REWARDS = ("weight", "on_none", "clip")


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

    @classmethod
    def read(cls, path: str | Path) -> "RunFile":
        """Read a file. Raises ConfigError if it cannot be read or is not a YAML mapping."""
        path = Path(path)
        return cls.parse(plain_yaml.read(path), path.name)

    @classmethod
    def parse(cls, text: str, name: str) -> "RunFile":
        """Read `text`; `name` stands for it in messages. Raises ConfigError as `read` does."""
        document = plain_yaml.load(text, name)
        if not isinstance(document.value, dict):
            what = "is empty." if document.value is None else "is not a mapping of keys to values."
            fix = "A run file begins with `schema: 1` and `plugin: NAME`."
            raise ConfigError([Problem(name, what, fix), *document.problems])
        return cls(name, document.value, document.lines, problems=tuple(document.problems))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], name: str = "python") -> "RunFile":
        """Take a run from Python. Raises ConfigError for values that a run file cannot hold."""
        document = plain_yaml.from_python(values, name)
        if document.problems:
            raise ConfigError(document.problems)
        return cls(name, {"schema": SCHEMA, **document.value})

    @property
    def plugin(self) -> str | None:
        """The trainer that the file names, if it names one."""
        plugin = self.values.get("plugin")
        return plugin if isinstance(plugin, str) else None

    def where(self, path: Sequence[str | int]) -> str:
        """Say where `path` was written, or the nearest key above it: `tiny.yaml:14 rewards.0`."""
        path = tuple(path)
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
        index after the last appends. A value that begins with a bracket, brace or quote is YAML,
        any other is one plain scalar. What is wrong is added to `problems`.
        """
        result = apply(argv, self.values, self.lines, self.overrides)
        return replace(
            self,
            values=result.values,
            lines=result.lines,
            overrides=result.origins,
            problems=(*self.problems, *result.problems),
        )

    def to_yaml(self) -> str:
        """Return the file with its overrides applied as YAML that `parse` reads back."""
        return plain_yaml.dump(dict(self.values))

    def spec(
        self, *, known_settings: Mapping[str, Any], plugin: str | None = None
    ) -> tuple[RunSpec | None, list[Problem]]:
        """Check the file's own sections and the names of its settings.

        Args:
            known_settings: fields of the trainer's Config and of ModelConfig, by name. When it is
                empty the settings' names are not checked: the trainer could not be loaded.
            plugin: the trainer, where the command line and not the file names it.

        Returns:
            A spec of all that could be read, so that more problems can be found in it, or None
            when there is no plugin or dataset to speak of; and every problem. The spec may be run
            only if there are none.
        """
        return _Checking(self, known_settings, plugin).spec()


class _Checking:
    """One pass over a run file, collecting problems."""

    def __init__(self, file: RunFile, known: Mapping[str, Any], plugin: str | None) -> None:
        self.file = file
        self.known = known
        self.plugin = plugin or file.plugin
        self.problems = list(file.problems)

    def spec(self) -> tuple[RunSpec | None, list[Problem]]:
        file = self.file
        self._schema()
        if self._refused(misplaced_secret, SECRET_PLACE):
            return None, self.problems  # the others could repeat one
        self._refused(forbidden_url, "Use the server's own name or address.")
        if self.plugin is None:
            self._report(("plugin",), "is missing or not text.", "Name a trainer: `plugin: NAME`.")
        settings = {key: value for key, value in file.values.items() if key not in _TOP}
        for key in [key for key in settings if self.known and key not in self.known]:
            del settings[key]
            self.problems.append(self._unknown_setting(key))
        judges, rewards, gates = self._judges(), self._rewards(), self._gates()
        self._labels((*rewards, *gates))
        dataset = self._dataset()
        sections = {key: self._section(key, cls) for key, cls in _SECTIONS.items()}
        world = self._value("expect_world_size", int)
        distributed = self._value("expect_distributed", str)
        asked = {k: v for k, v in file.values.items() if k in _names(Limits) and v is not None}
        limits = Limits(**self._bound(Limits, asked, (), "the run"))
        if self.plugin is None or dataset is None:
            return None, self.problems
        plain = {**file.values, "plugin": self.plugin}
        found = RunSpec(
            plugin=self.plugin,
            dataset=dataset,
            judges=judges,
            rewards=rewards,
            gates=gates,
            evaluation=sections["evaluation"],
            publish=self._published(sections["publish"] or PublishSpec()),
            card=sections["card"] or CardSpec(),
            expect_world_size=world,
            expect_distributed=distributed,
            limits=limits,
            settings=settings,
            plain=plain,
            name=file.name,
            sha256=hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest(),
            adapter=self._value("adapter", str),
            adapter_revision=self._value("adapter_revision", str),
            pad_token=self._value("pad_token", str),
        )
        return found, self.problems

    def _published(self, spec: PublishSpec) -> PublishSpec:
        if spec.checkpoints and spec.repo_id is None:
            where = ("publish", "checkpoints")
            self._report(where, "is set, but `publish.repo_id` is not.", "Write `repo_id: ID`.")
        return spec

    def _schema(self) -> None:
        version = self.file.values.get("schema")
        if version is None:
            self._report(("schema",), "is missing.", f"Write `schema: {SCHEMA}`.")
        elif version != SCHEMA or isinstance(version, bool):
            fix = f"This hf_rlhf reads schema {SCHEMA}."
            if isinstance(version, int) and version > SCHEMA:
                fix += " Upgrade with `pip install --upgrade hf-rlhf`."
            self._report(("schema",), f"is {version!r}.", fix)

    def _refused(self, reason: Callable[[KeyPath, Any], str | None], fix: str) -> bool:
        """Report each value at any depth for which `reason` returns a problem."""
        leaves = plain_yaml.leaves(self.file.values)
        found = [(path, what) for path, value in leaves if (what := reason(path, value))]
        for path, what in found:
            self._report(path, what, fix)
        return bool(found)

    def _unknown_setting(self, key: str) -> Problem:
        where = self.file.where((key,))
        if key.startswith("no_") and key[3:] in self.known:
            fix = f"Write `{key[3:]}: false` (`--{key[3:]} false`)."
            return Problem(where, f"`{key}` is not a setting.", fix)
        if home := FORMER.get(key) or self._home(key):
            return Problem(where, f"`{key}` is not a setting of the trainer or model.", home)
        return unknown(where, key, [*_TOP, *self.known], "of the trainer or model")

    def _dataset(self) -> DatasetSpec | None:
        entry = self._entry(self.file.values.get("dataset"), ("dataset",))
        if entry is None:
            return None
        name, arguments = entry
        return DatasetSpec(name, arguments, self.file.where(("dataset",)), ("dataset",))

    def _judges(self) -> tuple[JudgeSpec, ...]:
        found = []
        for label, value in self._container("judges", dict, "LABEL: {name: ...}").items():
            path = ("judges", label)
            if not _LABEL.fullmatch(label):
                self._report(path, f"{label!r} is not a label.", _LABEL_RULE)
            elif (entry := self._entry(value, path)) is not None:
                found.append(JudgeSpec(entry[0], label, entry[1], self.file.where(path), path))
        return tuple(found)

    def _rewards(self) -> tuple[RewardSpec, ...]:
        return tuple(self._scored("rewards", RewardSpec))

    def _gates(self) -> tuple[GateSpec, ...]:
        return tuple(self._scored("gates", GateSpec))

    def _scored(self, section: str, cls: type) -> list[Any]:
        """Read a list of rewards or gates; the keys that are not ours are the component's own."""
        own = keys_of(cls)
        found = []
        for index, value in enumerate(self._container(section, list, "- name: ...")):
            path: KeyPath = (section, index)
            entry = self._entry(value, path)
            if entry is None:
                continue
            name, rest = entry
            ours = {"name": name, "label": name.rpartition("/")[2]}
            ours |= {key: rest[key] for key in rest if key in own}
            arguments = {key: rest[key] for key in rest if key not in own}
            if cls is GateSpec:
                for key in [key for key in _ONLY_REWARDS if key in arguments]:
                    del arguments[key]
                    what = "is for rewards: a gate only passes or fails."
                    self._report((*path, key), what, "Remove it, or set `threshold`.")
            good = self._bound(cls, ours, path, section)
            self._score_values(good, path)
            known = {"name": name, "label": f"{section}_{index}", **good}
            where = self.file.where(path)
            found.append(cls(**known, arguments=arguments, where=where, path=path))
        return found

    def _score_values(self, good: Mapping[str, Any], path: KeyPath) -> None:
        clip = good.get("clip")
        if clip is not None and clip[0] >= clip[1]:
            self._report((*path, "clip"), f"is {list(clip)}.", "Write `[low, high]`.")

    def _labels(self, parts: Sequence[RewardSpec | GateSpec]) -> None:
        first: dict[str, RewardSpec | GateSpec] = {}
        for part in parts:
            path = (*part.path, "label")
            if not _LABEL.fullmatch(part.label):
                what = f"{part.label!r} is not a label."
                self._report(path, what, _LABEL_RULE)
            elif part.label in RESERVED_LABELS:
                self._report(path, f"{part.label!r} is measured by every run.", "Pick another.")
            elif part.label in first:
                other = first[part.label].where
                what = f"{part.label!r} is already the label of {other}."
                self._report(path, what, "Give each its own `label:`.")
            else:
                first[part.label] = part

    def _section(self, key: str, cls: type) -> Any:
        value = self.file.values.get(key)
        if value is None:
            return None
        given = self._container(key, dict, "KEY: VALUE")
        for name in [name for name in given if name not in _names(cls)]:
            if home := self._home(name):
                del given[name]
                self._report((key, name), f"`{name}` is not a setting of `{key}`.", home)
        return cls(**self._bound(cls, given, (key,), key))

    def _home(self, key: str) -> str | None:
        """Say where a key belongs that was written elsewhere."""
        if key in self.known or key in _TOP:
            return "It belongs at the top level."
        section = next((name for name, cls in _SECTIONS.items() if key in _names(cls)), None)
        return f"It belongs under `{section}:`." if section else None

    def _bound(
        self, cls: type, given: Mapping[str, Any], path: KeyPath, title: str
    ) -> dict[str, Any]:
        where = partial(self._inside, path)
        good, problems = bind(cls, given, where=where, title=title)
        self.problems += problems
        return good

    def _container(self, key: str, kind: type, example: str) -> Any:
        value = self.file.values.get(key)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            word = "a list" if kind is list else "a mapping"
            self._report((key,), f"should be {word}.", f"Write `{example}` under it.")
            return kind()
        return kind(value)

    def _entry(self, value: Any, path: KeyPath) -> tuple[str, dict[str, Any]] | None:
        """Return name and other keys of a component's entry; None, reported, if it has no name."""
        if value is None or value == {}:
            self._report(
                path, "is missing." if value is None else "is empty.", "Write `name: NAME`."
            )
            return None
        if not isinstance(value, dict):
            shown = value if isinstance(value, str) else "NAME"
            self._report(path, "should be a mapping.", f"Write `name: {shown}` under it.")
            return None
        rest = dict(value)
        name = rest.pop("name", None)
        if not isinstance(name, str) or not name:
            guess = near("name", [key for key in rest if isinstance(key, str)])
            fix = f"Is `{guess}` meant?" if guess else "Write `name: NAME`."
            self._report((*path, "name"), "is missing or not text.", fix)
            return None
        return name, rest

    def _value(self, key: str, annotation: Any) -> Any:
        value = self.file.values.get(key)
        if value is None:
            return None
        try:
            return fit(value, annotation)
        except Unfit as error:
            self._report((key,), str(error), "")
            return None

    def _inside(self, path: KeyPath, key: str) -> str:
        return self.file.where((*path, key))

    def _report(self, path: KeyPath, what: str, fix: str) -> None:
        self.problems.append(Problem(self.file.where(path), what, fix))


def _names(cls: type) -> frozenset[str]:
    return frozenset(item.name for item in fields(cls))

"""Run files: YAML with the place of every key, overridden by options and checked all at once.

A run file is YAML, flat like TRL's: a few sections that are ours (`dataset`, `rewards`, ...) and
beside them, at the top level, the settings of the trainer and the model. The format:
docs/reference/run-files.md. Nothing here knows a plugin or imports the training stack.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hf_rlhf.config import yaml
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
    TopLevel,
    keys_of,
)
from hf_rlhf.config.settings import FORMER
from hf_rlhf.config.urls import forbidden_url
from hf_rlhf.config.validation import (
    TRAINER_OR_MODEL,
    InvalidValue,
    bind,
    unknown_setting,
    validate,
)
from hf_rlhf.config.values import KeyPath, dotted, from_python, leaves
from hf_rlhf.errors import ConfigError, Problem, suggest
from hf_rlhf.storage.secrets import SECRET_HINT, misplaced_secret

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
_COMPONENTS = ("dataset", "judges", "rewards", "gates")
_TOP = ("schema", "plugin", *_COMPONENTS, *_SECTIONS, *keys_of(TopLevel), *keys_of(Limits))
_ONLY_REWARDS = ("weight", "on_none", "clip")

T = TypeVar("T")


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
        return cls.parse(yaml.read(path), path.name)

    @classmethod
    def parse(cls, text: str, name: str) -> "RunFile":
        """Read `text`; `name` stands for it in messages. Raises ConfigError as `read` does."""
        document = yaml.load(text, name)
        if not isinstance(document.value, dict):
            what = "is empty." if document.value is None else "is not a mapping of keys to values."
            fix = "A run file begins with `schema: 1` and `plugin: NAME`."
            raise ConfigError([Problem(name, what, fix), *document.problems])
        return cls(name, document.value, document.lines, problems=tuple(document.problems))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], name: str = "python") -> "RunFile":
        """Take a run from Python. Raises ConfigError for values that a run file cannot hold."""
        plain, problems = from_python(values, name)
        if problems:
            raise ConfigError(problems)
        return cls(name, {"schema": SCHEMA, **plain})

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
        return yaml.dump(dict(self.values))

    def typed(self, cls: type[T]) -> T:
        """Return the content of a file of another format as `cls`, a dataclass or pydantic model.

        A model decides itself whether it takes unknown keys (`extra`); a dataclass never does. For
        what one value cannot show, `cls` raises ValueError (`__post_init__`, a validator).

        Raises ConfigError with every problem in the file, each with its line and, of an unknown
        key, the nearest that there is.
        """
        problems = list(self.problems)
        try:
            result: T = validate(self.values, cls)
        except InvalidValue as error:
            problems += [Problem(self.where(path), message) for path, message in error.errors]
        if problems:
            raise ConfigError(problems)
        return result

    def spec(
        self, *, known_settings: Collection[str], plugin: str | None = None
    ) -> tuple[RunSpec | None, list[Problem]]:
        """Check the file's own sections and the names of its settings.

        Args:
            known_settings: names of the fields of the trainer's Config and of ModelConfig. With
                none the settings' names are not checked: the trainer could not be loaded.
            plugin: the trainer, where the command line and not the file names it.

        Returns:
            A spec of all that could be read, so that more problems can be found in it, or None
            when there is no plugin or dataset to speak of; and every problem. The spec may be run
            only if there are none.
        """
        return _Checker(self, known_settings, plugin).spec()


class _Checker:
    """One pass over a run file, collecting problems."""

    def __init__(self, file: RunFile, known: Collection[str], plugin: str | None) -> None:
        self.file = file
        self.known = known
        self.plugin = plugin or file.plugin
        self.problems = list(file.problems)
        self.leaves = list(leaves(file.values))

    def spec(self) -> tuple[RunSpec | None, list[Problem]]:
        self._check_schema()
        if self._report_leaves(misplaced_secret, SECRET_HINT):
            return None, self.problems  # the others could repeat one
        self._report_leaves(forbidden_url, "Use the server's own name or address.")
        if self.plugin is None:
            self._report(("plugin",), "is missing or not text.", "Name a trainer: `plugin: NAME`.")
        settings = self._settings()
        judges, rewards = self._judges(), self._scored("rewards", RewardSpec)
        gates = self._scored("gates", GateSpec)
        self._check_labels((*rewards, *gates))
        dataset = self._dataset()
        sections = {key: self._section(key, cls) for key, cls in _SECTIONS.items()}
        top, limits = self._top_level(TopLevel), self._top_level(Limits)
        if self.plugin is None or dataset is None:
            return None, self.problems
        plain = {**self.file.values, "plugin": self.plugin}
        spec = RunSpec(
            plugin=self.plugin,
            dataset=dataset,
            judges=judges,
            rewards=rewards,
            gates=gates,
            evaluation=sections["evaluation"],
            publish=self._checked_publish(sections["publish"] or PublishSpec()),
            card=sections["card"] or CardSpec(),
            limits=Limits(**limits),
            settings=settings,
            plain=plain,
            name=self.file.name,
            sha256=hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest(),
            **top,
        )
        return spec, self.problems

    def _check_schema(self) -> None:
        version = self.file.values.get("schema")
        if version is None:
            self._report(("schema",), "is missing.", f"Write `schema: {SCHEMA}`.")
        elif version != SCHEMA or isinstance(version, bool):
            fix = f"This hf_rlhf reads schema {SCHEMA}."
            if isinstance(version, int) and version > SCHEMA:
                fix += " Upgrade with `pip install --upgrade hf-rlhf`."
            self._report(("schema",), f"is {version!r}.", fix)

    def _report_leaves(self, reason: Callable[[KeyPath, Any], str | None], fix: str) -> bool:
        """Report each value at any depth for which `reason` returns a problem."""
        reasons = [(path, reason(path, value)) for path, value in self.leaves]
        problems = [(path, what) for path, what in reasons if what]
        for path, what in problems:
            self._report(path, what, fix)
        return bool(problems)

    def _settings(self) -> dict[str, Any]:
        settings = {key: value for key, value in self.file.values.items() if key not in _TOP}
        unknown = [key for key in settings if self.known and key not in self.known]
        self.problems += [self._unknown_setting(key) for key in unknown]
        return {key: value for key, value in settings.items() if key not in unknown}

    def _unknown_setting(self, key: str) -> Problem:
        where = self.file.where_key(key)
        if key.startswith("no_") and key[3:] in self.known:
            fix = f"Write `{key[3:]}: false` (`--{key[3:]} false`)."
            return Problem(where, f"`{key}` is not a setting.", fix)
        if fix := FORMER.get(key) or self._home(key) or "":
            return Problem(where, f"`{key}` is not a setting of {TRAINER_OR_MODEL}.", fix)
        return unknown_setting(where, key, [*_TOP, *self.known], TRAINER_OR_MODEL)

    def _home(self, key: str) -> str | None:
        """Say where a key belongs that was written elsewhere."""
        if key in self.known or key in _TOP:
            return "It belongs at the top level."
        section = next((name for name, cls in _SECTIONS.items() if key in keys_of(cls)), None)
        return f"It belongs under `{section}:`." if section else None

    def _dataset(self) -> DatasetSpec | None:
        path: KeyPath = ("dataset",)
        entry = self._entry(self.file.values.get("dataset"), path)
        return entry and DatasetSpec(*entry, self.file.where(path), path)

    def _judges(self) -> tuple[JudgeSpec, ...]:
        judges = []
        for label, value in self._container("judges", dict, "LABEL: {name: ...}").items():
            path: KeyPath = ("judges", label)
            if not _LABEL.fullmatch(label):
                self._report(path, f"{label!r} is not a label.", _LABEL_RULE)
            elif entry := self._entry(value, path):
                judges.append(JudgeSpec(entry[0], label, entry[1], self.file.where(path), path))
        return tuple(judges)

    def _scored(self, section: str, cls: Any) -> tuple[Any, ...]:
        """Read a list of rewards or gates; the keys that are not ours are the component's own."""
        own = keys_of(cls)
        parts = []
        for index, value in enumerate(self._container(section, list, "- name: ...")):
            path: KeyPath = (section, index)
            if not (entry := self._entry(value, path)):
                continue
            name, rest = entry
            if cls is GateSpec:
                for key in [key for key in _ONLY_REWARDS if key in rest]:
                    del rest[key]
                    what = "is for rewards: a gate only passes or fails."
                    self._report((*path, key), what, "Remove it, or set `threshold`.")
            ours = {"name": name, "label": name.rpartition("/")[2]}
            ours |= {key: rest[key] for key in rest if key in own}
            valid = {"label": f"{section}_{index}", **self._bound(cls, ours, path, section)}
            clip = valid.get("clip")
            if clip is not None and clip[0] >= clip[1]:
                self._report((*path, "clip"), f"is {list(clip)}.", "Write `[low, high]`.")
            arguments = {key: rest[key] for key in rest if key not in own}
            where = self.file.where(path)
            parts.append(cls(**valid, arguments=arguments, where=where, path=path))
        return tuple(parts)

    def _check_labels(self, parts: Sequence[RewardSpec | GateSpec]) -> None:
        first: dict[str, RewardSpec | GateSpec] = {}
        for part in parts:
            path = (*part.path, "label")
            if not _LABEL.fullmatch(part.label):
                self._report(path, f"{part.label!r} is not a label.", _LABEL_RULE)
            elif part.label in RESERVED_LABELS:
                self._report(path, f"{part.label!r} is measured by every run.", "Pick another.")
            elif first.setdefault(part.label, part) is not part:
                what = f"{part.label!r} is already the label of {first[part.label].where}."
                self._report(path, what, "Give each its own `label:`.")

    def _section(self, key: str, cls: type) -> Any:
        if self.file.values.get(key) is None:
            return None
        values = self._container(key, dict, "KEY: VALUE")
        own = keys_of(cls)
        for name in [name for name in values if name not in own]:
            if home := self._home(name):
                del values[name]
                self._report((key, name), f"`{name}` is not a setting of `{key}`.", home)
        return cls(**self._bound(cls, values, (key,), key))

    def _checked_publish(self, spec: PublishSpec) -> PublishSpec:
        if spec.checkpoints and spec.repo_id is None:
            where = ("publish", "checkpoints")
            self._report(where, "is set, but `publish.repo_id` is not.", "Write `repo_id: ID`.")
        return spec

    def _top_level(self, cls: type) -> dict[str, Any]:
        """Check the top-level keys that are fields of `cls`; null stands for the default."""
        values = self.file.values
        own = keys_of(cls)
        present = {key: value for key, value in values.items() if key in own}
        return self._bound(cls, {k: v for k, v in present.items() if v is not None}, (), "the run")

    def _bound(
        self, cls: type, values: Mapping[str, Any], path: KeyPath, title: str
    ) -> dict[str, Any]:
        valid, problems = bind(
            cls, values, where=lambda key: self.file.where((*path, key)), title=title
        )
        self.problems += problems
        return valid

    def _container(self, key: str, kind: type, example: str) -> Any:
        value = self.file.values.get(key)
        if value is not None and not isinstance(value, kind):
            word = "a list" if kind is list else "a mapping"
            self._report((key,), f"should be {word}.", f"Write `{example}` under it.")
            value = None
        return kind(value or ())

    def _entry(self, value: Any, path: KeyPath) -> tuple[str, dict[str, Any]] | None:
        """Return name and other keys of a component's entry; None, reported, if it has no name."""
        if value is None or value == {}:
            what = "is missing." if value is None else "is empty."
            self._report(path, what, "Write `name: NAME`.")
            return None
        if not isinstance(value, dict):
            displayed = value if isinstance(value, str) else "NAME"
            self._report(path, "should be a mapping.", f"Write `name: {displayed}` under it.")
            return None
        name = value.get("name")
        rest = {key: item for key, item in value.items() if key != "name"}
        if not isinstance(name, str) or not name:
            close = suggest("name", rest)
            fix = f"Is `{close}` meant?" if close else "Write `name: NAME`."
            self._report((*path, "name"), "is missing or not text.", fix)
            return None
        return name, rest

    def _report(self, path: KeyPath, what: str, fix: str) -> None:
        self.problems.append(Problem(self.file.where(path), what, fix))

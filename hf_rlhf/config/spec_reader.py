"""Reads the values of a run file as its sections, and collects what is wrong with them."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hf_rlhf.config.components import label_of
from hf_rlhf.config.cures import KNOWN_CURES
from hf_rlhf.config.evaluation_schema import (
    EarlyStoppingSpec,
    EvaluationSpec,
    RewardValidationSpec,
    ValidationSpec,
)
from hf_rlhf.config.schema import (
    RESERVED_LABELS,
    SCHEMA,
    CallbackSpec,
    CardSpec,
    ComponentSpec,
    DatasetSpec,
    GateSpec,
    JudgeSpec,
    Limits,
    MonitorSpec,
    PublishSpec,
    RewardSpec,
    RunSpec,
    SourceSpec,
    TopLevel,
    Transform,
    keys_of,
)
from hf_rlhf.config.validation import bind, unknown_setting
from hf_rlhf.config.yaml import KeyPath, leaves
from hf_rlhf.errors import Problem, suggest
from hf_rlhf.storage.secrets import SECRET_HINT, misplaced_secrets

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LABEL_RULE = "Use letters, digits, `_` and `-`, and begin with a letter."
_SECTIONS: dict[str, type] = dict(
    evaluation=EvaluationSpec,
    validation=ValidationSpec,
    early_stopping=EarlyStoppingSpec,
    reward_validation=RewardValidationSpec,
    monitor=MonitorSpec,
    publish=PublishSpec,
    card=CardSpec,
)
_COMPONENTS = ("dataset", "judges", "rewards", "gates", "callbacks", "environment", "tools")
_TOP = ("schema", "plugin", *_COMPONENTS, *_SECTIONS, *keys_of(TopLevel), *keys_of(Limits))


class SpecReader:
    """Reads the values of a run file and collects problems."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: Callable[[Sequence[str | int]], str],
        allowed_settings: Collection[str],
        problems: list[Problem],
    ) -> None:
        self.values = values
        self.where = where
        self.allowed_settings = allowed_settings
        self.problems = problems

    def spec(self, name: str, plugin: str | None) -> RunSpec | None:
        """Return the valid part; None without a plugin or dataset, or with a secret in the file."""
        self._check_schema()
        each = leaves(self.values)
        for path, what in (secrets := misplaced_secrets(each)):
            self._report(path, what, SECRET_HINT)
        if secrets:
            return None  # other messages could repeat one
        if plugin is None:
            self._report(("plugin",), "is missing or not text.", "Name a trainer: `plugin: NAME`.")
        settings = self._settings()
        judges, rewards = self._judges(), self._listed("rewards", RewardSpec)
        gates = self._listed("gates", GateSpec)
        self._check_labels((*rewards, *gates))
        dataset = self._component(DatasetSpec, self.values.get("dataset"), ("dataset",))
        if (environment := self.values.get("environment")) is not None:
            environment = self._component(ComponentSpec, environment, ("environment",))
        sections = {key: self._section(key, cls) for key, cls in _SECTIONS.items()}
        top, limits = self._top_level(TopLevel), self._top_level(Limits)
        publish = sections["publish"] or PublishSpec()
        if publish.checkpoints and publish.repo_id is None:
            what = "is set, but `publish.repo_id` is not."
            self._report(("publish", "checkpoints"), what, "Write `repo_id: ID`.")
        if plugin is None or dataset is None:
            return None
        plain = {**self.values, "plugin": plugin}
        return RunSpec(
            plugin=plugin,
            dataset=dataset,
            judges=judges,
            rewards=rewards,
            gates=gates,
            callbacks=self._listed("callbacks", CallbackSpec),
            environment=environment,
            tools=self._listed("tools", CallbackSpec),
            evaluation=sections["evaluation"],
            validation=sections["validation"],
            early_stopping=sections["early_stopping"],
            reward_validation=sections["reward_validation"],
            monitor=sections["monitor"],
            publish=publish,
            card=sections["card"] or CardSpec(),
            limits=Limits(**limits),
            settings=settings,
            plain=plain,
            name=name,
            sha256=hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest(),
            **top,
        )

    def sources(self, path: KeyPath, entries: Sequence[Any]) -> tuple[SourceSpec, ...]:
        """Return the entries of a list of datasets at `path`, without those that are unusable."""
        specs = [self._component(SourceSpec, each, (*path, n)) for n, each in enumerate(entries)]
        sources = tuple(spec for spec in specs if spec is not None)
        self._check_labels(sources)
        return sources

    def _check_schema(self) -> None:
        version = self.values.get("schema")
        if version is None:
            self._report(("schema",), "is missing.", f"Write `schema: {SCHEMA}`.")
        elif version != SCHEMA or isinstance(version, bool):
            fix = f"This hf_rlhf reads schema {SCHEMA}."
            if isinstance(version, int) and version > SCHEMA:
                fix += " Upgrade with `pip install --upgrade hf-rlhf`."
            self._report(("schema",), f"is {version!r}.", fix)

    def _settings(self) -> dict[str, Any]:
        """Return the settings of trainer and model, without unknown ones."""
        settings = {key: value for key, value in self.values.items() if key not in _TOP}
        for key in [
            key for key in settings if self.allowed_settings and key not in self.allowed_settings
        ]:
            del settings[key]
            self.problems.append(self._unknown_setting(key))
        return settings

    def _unknown_setting(self, key: str) -> Problem:
        where, owner = self.where((key,)), "the trainer or model"
        fix = None if key in KNOWN_CURES else self._home(key)
        if key.startswith("no_") and key[3:] in self.allowed_settings:
            fix = f"Write `{key[3:]}: false` (`--{key[3:]} false`)."
        if fix:
            return Problem(where, f"`{key}` is not a setting of {owner}.", fix)
        return unknown_setting(where, key, [*_TOP, *self.allowed_settings], owner)

    def _home(self, key: str) -> str | None:
        """Return a hint on the section in which a misplaced key belongs."""
        if key in self.allowed_settings or key in _TOP:
            return "It belongs at the top level."
        section = next((name for name, cls in _SECTIONS.items() if key in keys_of(cls)), None)
        return f"It belongs under `{section}:`." if section else None

    def _judges(self) -> tuple[JudgeSpec, ...]:
        judges = []
        for label, value in self._container("judges", dict, "LABEL: {name: ...}").items():
            path = ("judges", label)
            if not _LABEL.fullmatch(label):
                self._report(path, f"{label!r} is not a label.", _LABEL_RULE)
            elif judge := self._component(JudgeSpec, value, path, label=label):
                judges.append(judge)
        return tuple(judges)

    def _listed(self, section: str, cls: type) -> tuple[Any, ...]:
        """Read a list of rewards, gates, callbacks or tools; text alone is a name."""
        entries = enumerate(self._container(section, list, "- name: ..."))
        parts = [self._component(cls, value, (section, index)) for index, value in entries]
        return tuple(part for part in parts if part is not None)

    def _check_labels(self, parts: Sequence[RewardSpec | GateSpec | SourceSpec]) -> None:
        first: dict[str, RewardSpec | GateSpec | SourceSpec] = {}
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
        if self.values.get(key) is None:
            return None
        if cls is MonitorSpec and isinstance(switch := self.values[key], bool):
            return MonitorSpec() if switch else None
        values = self._container(key, dict, "KEY: VALUE")
        for name in [name for name in values if name not in keys_of(cls)]:
            if home := self._home(name):
                del values[name]
                self._report((key, name), f"`{name}` is not a setting of `{key}`.", home)
        return cls(**self._bound(cls, values, (key,), key))

    def _top_level(self, cls: type) -> dict[str, Any]:
        """Check the top-level keys that are fields of `cls`; null stands for the default."""
        values = {key: self.values.get(key) for key in keys_of(cls)}
        present = {key: value for key, value in values.items() if value is not None}
        return self._bound(cls, present, (), "the run")

    def _component(self, cls: Any, value: Any, path: KeyPath, **label: str) -> Any:
        """Read the entry of a component; None, reported, if it has no name."""
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
        name, where = value.get("name"), self.where(path)
        rest = {key: each for key, each in value.items() if key != "name"}
        if not isinstance(name, str) or not name:
            close = suggest("name", rest)
            fix = f"Is `{close}` meant?" if close else "Write `name: NAME`."
            self._report((*path, "name"), "is missing or not text.", fix)
            return None
        if cls in (ComponentSpec, DatasetSpec, JudgeSpec):
            return cls(name=name, **label, arguments=rest, where=where, path=path)
        ours = {"name": name, "label": label_of(name)}
        ours |= {key: each for key, each in rest.items() if key in keys_of(cls)}
        valid = {"label": "_".join(map(str, path)), **self._bound(cls, ours, path, str(path[0]))}
        clip = valid.get("clip")
        if clip is not None and clip[0] >= clip[1]:
            self._report((*path, "clip"), f"is {list(clip)}.", "Write `[low, high]`.")
        if valid.get("transform") == Transform():
            fix = "Write `sigmoid`, `{sigmoid: TEMPERATURE}` or `{zscore: [MEAN, STD]}`."
            self._report((*path, "transform"), "is empty.", fix)
        arguments = {key: each for key, each in rest.items() if key not in keys_of(cls)}
        return cls(**valid, arguments=arguments, where=where, path=path)

    def _bound(
        self, cls: type, values: Mapping[str, Any], path: KeyPath, title: str
    ) -> dict[str, Any]:
        valid, problems = bind(cls, values, where=lambda key: self.where((*path, key)), title=title)
        self.problems += problems
        return valid

    def _container(self, key: str, kind: type, example: str) -> Any:
        """Return a copy of a list or mapping; an empty one, reported, for another value."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            word = "a list" if kind is list else "a mapping"
            self._report((key,), f"should be {word}.", f"Write `{example}` under it.")
            value = None
        return kind(value or ())

    def _report(self, path: KeyPath, what: str, fix: str) -> None:
        self.problems.append(Problem(self.where(path), what, fix))

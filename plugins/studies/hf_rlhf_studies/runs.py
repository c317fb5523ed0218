"""The tasks of a study: the run of each cell, its measurement, and what is prepared for them."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, Problem
from hf_rlhf.config import RunFile, choose_run_file, value_of
from hf_rlhf.steps import Task, differences, file_digest, train_words
from hf_rlhf.storage import atomic_write_text, redact_secrets
from hf_rlhf_studies.study import GIVEN, PLACEHOLDER, AdapterOf, Cell, Condition, Study

REFERENCE = re.compile(r"\{(weights|folder|prepared):(\{\w+\}|[\w.=+-]+)\}")
"""A placeholder that names a condition or preparation; the name may be a placeholder itself."""
NOT_COMPARED = ("publish", "card", "output_dir", "seed")
"""Keys of a run file that change nothing of what is trained and measured."""
Commands = Sequence[Sequence[str]]
Paths = Mapping[str, Path]
"""By placeholder, beside those of every cell."""
NO_PATHS: Paths = {}


@dataclass(frozen=True, kw_only=True)
class CellTask(Task):
    """A run, a measurement, or a preparation."""

    cell: Cell
    """Of a preparation, one of those that read it."""


@dataclass
class Runs:
    """A study's cells as run files, folders and commands below `out`."""

    study: Study
    out: Path
    launch: Sequence[str] = (sys.executable,)
    base: RunFile = None  # type: ignore[assignment]
    """What all conditions change; None: what the study file names."""

    def __post_init__(self) -> None:
        self.out = self.out.resolve()
        self.base = shared_by_all(self.base or base_run_file(self.study))

    def condition(self, cell: Cell) -> Condition:
        """Return the condition of a cell."""
        return self.study.file.conditions[cell.condition]

    def folder(self, cell: Cell) -> Path:
        """Return the run folder of a cell."""
        return self.out / cell.folder

    def beside(self, cell: Cell, ending: str) -> Path:
        """Return a file beside a cell's run folder: its run file, log or measurements."""
        folder = self.folder(cell)
        return folder.with_name(f"{folder.name}{ending}")

    def start(self, cell: Cell) -> str | None:
        """Return the model that a cell begins with; None: the model of its run file."""
        start = self.condition(cell).start
        if isinstance(self.condition(cell).begins, AdapterOf):
            other = replace(cell, condition=start or "")
            return self.start(other) if start in self.study.file.conditions else None
        if start in self.study.file.conditions:
            return self.weights(replace(cell, condition=start))
        return None if start is None else str(self.fill(start, cell))

    def adapter(self, cell: Cell) -> Path | None:
        """Return the adapter that a cell goes on with."""
        condition = self.condition(cell)
        if not isinstance(condition.begins, AdapterOf):
            return None
        if condition.begins.adapter in self.study.file.conditions:
            return self.folder(replace(cell, condition=condition.begins.adapter)) / "adapter"
        return Path(self.fill(condition.begins.adapter, cell))

    def weights(self, cell: Cell) -> str:
        """Return the model that a cell ends with."""
        if self.condition(cell).trained:
            return str(self.folder(cell) / "merged")
        return str(self.start(cell))

    def run_file(self, cell: Cell, *, skip_missing: bool = False) -> RunFile:
        """Return the run file of a cell.

        With `skip_missing`, weights and settings that another task has yet to write are left out.
        Raises ConfigError when a setting cannot be applied or its settings file cannot be read.
        """
        condition = self.condition(cell)
        settings = {**self.study.file.settings, **condition.settings}
        if condition.settings_file is not None:
            path = Path(self.fill(condition.settings_file, cell))
            if path.exists() or not skip_missing:
                settings |= _read_settings(path)
        if given := [key for key in GIVEN if key in settings]:
            where, what = f"{self.study.source.name} {cell.condition}", "is set by the study."
            raise ConfigError([Problem(f"{where} {key}", what, GIVEN[key]) for key in given])
        base, start, adapter = self.base, self.start(cell), self.adapter(cell)
        if adapter is not None and not (skip_missing and not adapter.exists()):
            settings["adapter"] = str(adapter)
        missing = start is not None and Path(start).is_absolute() and not Path(start).exists()
        if start is not None and not (missing and skip_missing):
            settings["model_name_or_path"] = start
            # The revision is of the run file's own model.
            values = {k: v for k, v in base.values.items() if k != "model_revision"}
            base = replace(base, values=values)
        # A component comes before settings within it.
        ordered = sorted(settings.items(), key=lambda pair: pair[0].count("."))
        if condition.placeholders:
            ordered = [(key, self.fill(value, cell, typed=True)) for key, value in ordered]
        options = [f"--{key}={as_option(value)}" for key, value in ordered]
        file = base.override([*options, f"--seed={cell.seed}", f"--output_dir={self.folder(cell)}"])
        if problems := file.problems[len(base.problems) :]:
            raise ConfigError([replace(p, where=f"{cell.folder}: {p.where}") for p in problems])
        return file

    def read_by_settings(self, task: CellTask) -> set[str]:
        """Return the steps that a run's settings name; its start is not among them."""
        settings = [self.study.file.settings, self.condition(task.cell).settings]
        prepared = {step for step in task.after if step.startswith("prepared/")}
        return prepared.union(self._steps_read(settings, task.cell))

    def run_command(self, cell: Cell) -> list[str]:
        """Return the command line of a cell's run."""
        return train_words(self.launch, self.beside(cell, ".yaml"))

    def tasks(self, cells: Sequence[Cell] = ()) -> list[CellTask]:
        """Return the tasks of some cells, or of all, each after its inputs.

        Raises ConfigError when a task reads what no task of the study writes.
        """
        by_step: dict[str, CellTask] = {}
        for cell in self.study.cells():
            preparations = (self._preparation(name, cell) for name in self.study.file.prepare)
            by_step |= {task.step: task for task in (*preparations, *self._cell_tasks(cell))}
        if problems := [
            Problem(
                str(self.study.source),
                f"{task.step} reads {step}, which is not in the study.",
                "Compare the `blocks` and `seeds` of the two conditions.",
            )
            for task in by_step.values()
            for step in task.after
            if step not in by_step
        ]:
            raise ConfigError(problems)
        ordered: dict[str, CellTask] = {}

        def add(task: CellTask) -> None:
            if task.step not in ordered:
                for step in task.after:
                    add(by_step[step])
                ordered[task.step] = task

        for cell in cells or self.study.cells():
            for task in self._cell_tasks(cell):
                add(task)
        return list(ordered.values())

    def _cell_tasks(self, cell: Cell) -> Iterator[CellTask]:
        condition = self.condition(cell)
        if condition.trained:
            settings = [condition.settings, condition.settings_file, self.study.file.settings]
            yield CellTask(
                step=cell.folder,
                trains=True,
                cell=cell,
                title=f"{self.study.title(cell)}, seed {cell.seed}",
                log=self.beside(cell, ".log"),
                after=self._steps_read(settings, cell, condition.start),
                inputs=lambda: {"run": compared(self.run_file(cell).values)},
                command=lambda: self._written_run(cell),
                output=self.folder(cell),
            )
        if (commands := self.study.file.measure) is not None:
            model = None if condition.trained else condition.start
            after = [cell.folder] if condition.trained else []
            after += self._steps_read(commands, cell, model)
            out = self.beside(cell, ".measured.json")
            yield CellTask(
                step=f"{cell.folder}/measured",
                cheap=True,
                cell=cell,
                title=f"{self.study.title(cell)}, seed {cell.seed}, measured",
                log=self.beside(cell, ".measured.log"),
                after=tuple(dict.fromkeys(after)),
                inputs=partial(self._command_inputs, commands, cell),
                command=lambda: self._shell(commands, cell, {"out": out}),
                output=out,
            )

    def _preparation(self, name: str, cell: Cell) -> CellTask:
        preparation = self.study.file.prepare[name]
        folder = self.prepared(name, cell)
        after = [
            self._preparation(step, cell).step
            if step in self.study.file.prepare
            else replace(cell, condition=step).folder
            for step in preparation.after
        ]
        return CellTask(
            step=folder.relative_to(self.out).as_posix(),
            cell=cell,
            log=folder.with_name(f"{folder.name}.log"),
            after=tuple(dict.fromkeys([*after, *self._steps_read(preparation.commands, cell)])),
            inputs=partial(self._command_inputs, preparation.commands, cell),
            command=lambda: self._fresh_shell(preparation.commands, cell, folder),
            output=folder,
        )

    def prepared(self, name: str, cell: Cell) -> Path:
        """Return the folder of a preparation, as a cell reads it."""
        per = self.study.file.prepare[name].per
        parts = [cell.block] if per == "block" and cell.block else []
        parts += [] if per == "study" else [f"seed-{cell.seed}"]
        return self.out.joinpath("prepared", name, *parts)

    def fill(self, value: Any, cell: Cell, *, typed: bool = False, paths: Paths = NO_PATHS) -> Any:
        """Return a value with its placeholders filled in, also from `paths`.

        With `typed`, text that had any is read again: `{seed}000` is a number. Raises ConfigError
        for a placeholder that does not exist.
        """
        fill = partial(self.fill, cell=cell, typed=typed, paths=paths)
        if isinstance(value, Mapping):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if not isinstance(value, str) or not PLACEHOLDER.search(value):
            return value
        if alone := PLACEHOLDER.fullmatch(value):
            lookup = self._lookup(alone[1], cell, paths)
            return fill(lookup) if lookup != value else lookup
        text = PLACEHOLDER.sub(lambda match: str(self._lookup(match[1], cell, paths)), value)
        if PLACEHOLDER.search(text):
            return fill(text)
        return value_of(text) if typed else text

    def _lookup(self, name: str, cell: Cell, paths: Paths) -> Any:
        kind, _, other = name.partition(":")
        if kind == "prepared" and other in self.study.file.prepare:
            return str(self.prepared(other, cell))
        if kind in ("weights", "folder") and (not other or other in self.study.file.conditions):
            of = replace(cell, condition=other or cell.condition)
            return self.weights(of) if kind == "weights" else str(self.folder(of))
        if name == "start":
            return self.start(cell)
        values: dict[str, Any] = {
            "block": cell.block,
            "condition": cell.condition,
            "seed": cell.seed,
            "here": self.study.source.parent.resolve(),
            "python": sys.executable,
            **self._values(cell),
            **paths,
        }
        if name not in values:
            what = f"`{{{name}}}` is not a placeholder of {cell.condition}."
            fix = f"Choose from {', '.join(values)}, weights, folder, start, weights:CONDITION."
            raise ConfigError([Problem(str(self.study.source), what, fix)])
        return str(values[name]) if isinstance(values[name], Path) else values[name]

    def _values(self, cell: Cell) -> dict[str, Any]:
        return {**self.study.file.blocks[cell.block], **self.condition(cell).values}

    def _steps_read(self, values: Any, cell: Cell, start: str | None = None) -> tuple[str, ...]:
        """Return the steps that a start and the placeholders within values name."""
        conditions = self.study.file.conditions
        names = [start] if start in conditions else []
        steps: list[str] = []
        for kind, word in REFERENCE.findall(json.dumps([values, start])):
            name = str(self.fill(word, cell))
            if kind == "prepared" and name in self.study.file.prepare:
                steps.append(self._preparation(name, cell).step)
            elif name in conditions:
                names.append(name)
        for name in names:
            other = replace(cell, condition=name)
            if not conditions[name].trained:
                steps += self._steps_read([], other, conditions[name].start)
            elif other != cell:
                steps.append(other.folder)
        return tuple(dict.fromkeys(steps))

    def _written_run(self, cell: Cell) -> list[str]:
        atomic_write_text(self.beside(cell, ".yaml"), self.run_file(cell).to_yaml())
        return self.run_command(cell)

    def _command_inputs(self, commands: Commands, cell: Cell) -> dict[str, Any]:
        """Return what decides the result of commands: their words, and scripts by digest."""
        here = self.study.source.parent
        words = (word for command in commands for word in command if word.startswith("{here}/"))
        # Each by its own path, which may lead out of the study's folder.
        paths = [word.removeprefix("{here}/") for word in words]
        scripts = {path: file_digest(here / path) for path in paths if (here / path).is_file()}
        return {"commands": commands, "values": self._values(cell), "scripts": scripts}

    def _fresh_shell(self, commands: Commands, cell: Cell, folder: Path) -> list[str]:
        """Return the command line of a preparation, in an empty folder."""
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that failed
        folder.mkdir(parents=True)
        return self._shell(commands, cell, {"prepared": folder})

    def _shell(self, commands: Commands, cell: Cell, paths: Paths) -> list[str]:
        """Return a command line that runs commands in turn, up to the first that fails."""
        lines = [
            shlex.join(str(self.fill(word, cell, paths=paths)) for word in command)
            for command in commands
        ]
        return ["sh", "-ec", "\n".join(lines)]


def base_run_file(study: Study) -> RunFile:
    """Return the run file that a study names. Raises ConfigError when there is none."""
    run = study.file.run
    if isinstance(run, Mapping):
        return RunFile.from_mapping(run, study.source.name)
    if run.endswith((".yaml", ".yml")):
        return RunFile.read(study.source.parent / run)
    file = choose_run_file(run, None, None)
    return replace(file, values={**file.values, "plugin": file.plugin or run})


def shared_by_all(file: RunFile) -> RunFile:
    """Return a run file without its folder and repository: all runs would go to the same ones.

    Raises ConfigError for a secret in it, which must not be written.
    """
    values = {key: value for key, value in file.values.items() if key != "output_dir"}
    if (values.get("publish") or {}).get("repo_id") is not None:
        values["publish"] = {**values["publish"], "repo_id": None}
    if secrets := differences(redact_secrets(values), values):
        fix = "Take it from an environment variable: a study writes down what its runs read."
        keys = [line.partition(":")[0] for line in secrets]
        raise ConfigError([Problem(f"{file.name} {key}", "holds a secret.", fix) for key in keys])
    return replace(file, values=values)


def compared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's content without the keys that change no result."""
    return {key: value for key, value in values.items() if key not in NOT_COMPARED}


def as_option(value: Any) -> str:
    """Return a value as the command line writes it: `value_of` reads it back."""
    if isinstance(value, str):
        try:
            if value_of(value) == value:
                return value
        except ValueError:
            pass
    # JSON is YAML, and every number of it is a number here.
    return json.dumps(value)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        fix = "The commands of a preparation write it: see its log."
        problem = Problem(str(path), f"is not a JSON object of settings ({error}).", fix)
        raise ConfigError([problem]) from error

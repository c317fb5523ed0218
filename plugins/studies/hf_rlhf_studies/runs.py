"""The tasks of a study: the run of each cell, its measurement, and what is prepared for them."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, Problem
from hf_rlhf.config import RunFile, choose_run_file, value_of
from hf_rlhf.steps import differences, file_digest
from hf_rlhf.storage import atomic_write_text, load_record, redact_secrets
from hf_rlhf_studies.study import PLACEHOLDER, Cell, Study

REFERENCE = re.compile(r"\{(weights|folder|prepared):(\{\w+\}|[\w.=+-]+)\}")
"""A placeholder that names a condition or preparation; the name may be a placeholder itself."""
Names = Mapping[str, str]
NONE: Names = {}
NOT_COMPARED = ("publish", "card", "output_dir", "seed")
"""Keys of a run file that change nothing of what is trained and measured."""


@dataclass(frozen=True)
class Task:
    """One command line of a study, recorded as a step when it has ended well."""

    step: str
    kind: str
    """`run`, `measure` or `prepare`."""
    cell: Cell | None
    log: Path
    after: tuple[str, ...]
    inputs: Callable[[], Mapping[str, Any]]
    command: Callable[[], list[str]]
    output: Path
    """What it writes: a run's folder, a file of measurements, or a folder."""


@dataclass
class Runs:
    """A study's cells as run files, folders and commands below `out`."""

    study: Study
    out: Path
    launch: Sequence[str] = (sys.executable,)
    base: RunFile = None  # type: ignore[assignment]
    """What all conditions change; None: what the study file names."""
    absent_starts: bool = True
    """Whether a run file may begin with weights that are still to be made."""

    def __post_init__(self) -> None:
        self.out = self.out.resolve()
        self.base = shared_by_all(self.base or base_run_file(self.study))

    def folder(self, cell: Cell) -> Path:
        """Return the run folder of a cell."""
        return self.out / cell.folder

    def beside(self, cell: Cell, ending: str) -> Path:
        """Return a file beside a cell's run folder: its run file, log or measurements."""
        folder = self.folder(cell)
        return folder.with_name(f"{folder.name}{ending}")

    def start(self, cell: Cell) -> str | None:
        """Return the model that a cell begins with; None: what its run file names."""
        start = self.study.file.conditions[cell.condition].start
        if start in self.study.file.conditions:
            return str(self.weights(replace(cell, condition=start)))
        return None if start is None else str(self.fill(start, cell))

    def weights(self, cell: Cell) -> str:
        """Return the model that a cell ends with."""
        if self.study.file.conditions[cell.condition].trained:
            return str(self.folder(cell) / "merged")
        return str(self.start(cell))

    def run_file(self, cell: Cell) -> RunFile:
        """Return the run file of a cell.

        Raises ConfigError when a setting cannot be applied or its settings file cannot be read.
        """
        condition = self.study.file.conditions[cell.condition]
        settings = {**self.study.file.settings, **condition.settings}
        if condition.settings_file is not None:
            path = Path(self.fill(condition.settings_file, cell))
            settings |= _read_settings(path) if self.absent_starts or path.exists() else {}
        base, start = self.base, self.start(cell)
        if start is not None and (self.absent_starts or _is_there(start)):
            settings["model_name_or_path"] = start
            # It is of the run file's own model.
            own_values = {
                key: value for key, value in base.values.items() if key != "model_revision"
            }
            base = replace(base, values=own_values)
        # A component that is replaced whole comes before settings within it.
        ordered = sorted(settings.items(), key=lambda item: item[0].count("."))
        if condition.placeholders:
            ordered = [(key, self.fill(value, cell, typed=True)) for key, value in ordered]
        options = [f"--{key}={written(value)}" for key, value in ordered]
        options += [f"--seed={cell.seed}", f"--output_dir={self.folder(cell)}"]
        file = base.override(options)
        if problems := file.problems[len(base.problems) :]:
            result = [
                replace(problem, where=f"{cell.folder}: {problem.where}") for problem in problems
            ]
            raise ConfigError(result)
        return file

    def run_command(self, cell: Cell) -> list[str]:
        """Return the command line of a cell's run."""
        return [*self.launch, "-m", "hf_rlhf.train", "--config", str(self.beside(cell, ".yaml"))]

    def tasks(self, cells: Sequence[Cell]) -> list[Task]:
        """Return the tasks of cells, each after those that it reads."""
        known: dict[str, Task] = {}
        for cell in self.study.cells():
            preparations = [self._preparation(name, cell) for name in self.study.file.prepare]
            known |= {task.step: task for task in (*preparations, *self._cell_tasks(cell))}
        result: dict[str, Task] = {}

        def add(task: Task) -> None:
            if task.step not in result:
                for step in task.after:
                    add(known[step])
                result[task.step] = task

        for cell in cells:
            for task in self._cell_tasks(cell):
                add(known[task.step])
        return list(result.values())

    def _cell_tasks(self, cell: Cell) -> Iterator[Task]:
        condition = self.study.file.conditions[cell.condition]
        if condition.trained:
            read = [condition.settings, condition.settings_file, self.study.file.settings]
            yield Task(
                step=cell.folder,
                kind="run",
                cell=cell,
                log=self.beside(cell, ".log"),
                after=self._references(read, cell, condition.start),
                inputs=lambda: {"run": compared(self.run_file(cell).values)},
                command=lambda: self._written_run(cell),
                output=self.folder(cell),
            )
        if (commands := self.study.file.measure) is not None:
            own = (cell.folder,) if condition.trained else ()
            start = None if condition.trained else condition.start
            out = self.beside(cell, ".measured.json")
            yield Task(
                step=f"{cell.folder}/measured",
                kind="measure",
                cell=cell,
                log=self.beside(cell, ".measured.log"),
                after=tuple(dict.fromkeys((*own, *self._references(commands, cell, start)))),
                inputs=lambda: self._command_inputs(commands, cell),
                command=lambda: self._shell(commands, cell, {"out": str(out)}),
                output=out,
            )

    def _preparation(self, name: str, cell: Cell) -> Task:
        preparation = self.study.file.prepare[name]
        folder = self.prepared(name, cell)
        after = tuple(
            self._preparation(item, cell).step
            if item in self.study.file.prepare
            else replace(cell, condition=item).folder
            for item in preparation.after
        )
        return Task(
            step=folder.relative_to(self.out).as_posix(),
            kind="prepare",
            cell=None,
            log=folder.with_name(f"{folder.name}.log"),
            after=tuple(
                dict.fromkeys((*after, *self._references(preparation.commands, cell))),
            ),
            inputs=lambda: self._command_inputs(preparation.commands, cell),
            command=lambda: self._fresh_shell(preparation.commands, cell, folder),
            output=folder,
        )

    def prepared(self, name: str, cell: Cell) -> Path:
        """Return the folder of a preparation, as a cell reads it."""
        per = self.study.file.prepare[name].per
        parts = [cell.block] if per == "block" and cell.block else []
        parts += [] if per == "study" else [f"seed-{cell.seed}"]
        return self.out.joinpath("prepared", name, *parts)

    def fill(self, value: Any, cell: Cell, *, typed: bool = False, more: Names = NONE) -> Any:
        """Return a value with its placeholders filled in.

        With `typed`, text that had any is read again: `{seed}000` is a number. Raises ConfigError
        for a placeholder that does not exist.
        """
        if isinstance(value, Mapping):
            return {
                key: self.fill(item, cell, typed=typed, more=more) for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.fill(item, cell, typed=typed, more=more) for item in value]
        if not isinstance(value, str) or not PLACEHOLDER.search(value):
            return value
        if whole := PLACEHOLDER.fullmatch(value):
            lookup = self._lookup(whole[1], cell, more)
            return self.fill(lookup, cell, typed=typed, more=more) if lookup != value else lookup
        text = PLACEHOLDER.sub(lambda item: str(self._lookup(item[1], cell, more)), value)
        if PLACEHOLDER.search(text):
            return self.fill(text, cell, typed=typed, more=more)
        return value_of(text) if typed else text

    def _lookup(self, name: str, cell: Cell, more: Names) -> Any:
        kind, _, other = name.partition(":")
        conditions = self.study.file.conditions
        if kind in ("weights", "folder") and other in conditions:
            of = replace(cell, condition=other)
            return self.weights(of) if kind == "weights" else str(self.folder(of))
        if kind == "prepared" and other in self.study.file.prepare:
            return str(self.prepared(other, cell))
        condition = conditions[cell.condition]
        known: dict[str, Any] = {
            "block": cell.block,
            "condition": cell.condition,
            "seed": cell.seed,
            "here": str(self.study.source.parent.resolve()),
            "python": sys.executable,
            **self.study.file.blocks[cell.block],
            **condition.values,
            **more,
        }
        if name in ("weights", "folder", "start"):
            return {"weights": self.weights, "folder": self.folder, "start": self.start}[name](cell)
        if name not in known:
            what = f"`{{{name}}}` is not a placeholder of {cell.condition}."
            fix = f"There are {', '.join(known)}, weights, folder, start, and weights:CONDITION."
            raise ConfigError([Problem(str(self.study.source), what, fix)])
        return known[name]

    def _references(self, values: Any, cell: Cell, start: str | None = None) -> tuple[str, ...]:
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
            if conditions[name].trained:
                steps += [other.folder] if other != cell else []
            else:
                steps += self._references([], other, conditions[name].start)
        return tuple(dict.fromkeys(steps))

    def _written_run(self, cell: Cell) -> list[str]:
        atomic_write_text(self.beside(cell, ".yaml"), self.run_file(cell).to_yaml())
        return self.run_command(cell)

    def _command_inputs(self, commands: Sequence[Sequence[str]], cell: Cell) -> dict[str, Any]:
        """Return what decides the result of commands: their words, and scripts by digest."""
        words = [word for command in commands for word in command]
        here = self.study.source.parent
        scripts = [word.removeprefix("{here}/") for word in words if word.startswith("{here}/")]
        # Each by its own path, which may lead out of the study's folder.
        result = {name: file_digest(here / name) for name in scripts if (here / name).is_file()}
        values = {
            **self.study.file.blocks[cell.block],
            **self.study.file.conditions[cell.condition].values,
        }
        return {"commands": commands, "values": values, "scripts": result}

    def _fresh_shell(
        self, commands: Sequence[Sequence[str]], cell: Cell, folder: Path
    ) -> list[str]:
        """Return the command line of a preparation, in an empty folder."""
        if folder.exists():
            shutil.rmtree(folder)  # of an attempt that failed
        folder.mkdir(parents=True)
        return self._shell(commands, cell, {"prepared": str(folder)})

    def _shell(self, commands: Sequence[Sequence[str]], cell: Cell, more: Names) -> list[str]:
        """Return one command line that runs commands in turn, up to the first that fails."""
        lines = [
            shlex.join(str(self.fill(word, cell, more=more)) for word in command)
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
    """Return a run file's content without what changes no result."""
    return {key: value for key, value in values.items() if key not in NOT_COMPARED}


def written(value: Any) -> str:
    """Return a value as the command line writes it: `overrides.value_of` reads it back."""
    if isinstance(value, str):
        try:
            same = value_of(value) == value
        except ValueError:
            same = False
        return value if same else json.dumps(value)
    # JSON is YAML, and every number of it is a number here.
    return json.dumps(value)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        fix = "It is written by the commands of a preparation: see its log."
        problem = Problem(str(path), f"is not a JSON object of settings ({error}).", fix)
        raise ConfigError([problem]) from error


def _is_there(model: str) -> bool:
    """Return whether a model can be looked at now: it is no folder that is still to be made."""
    return not Path(model).is_absolute() or Path(model).exists()


def record_of(folder: Path) -> dict[str, Any]:
    """Return the record of a run as JSON has it. Raises RunFolderError as `load_record` does."""
    return load_record(folder).to_json()

"""A sweep's folder: what it holds, what is still to be run, and what is written of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.config import RunFile
from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.errors import ConfigError, RunFolderError
from hf_rlhf.storage.disk import taken_bytes
from hf_rlhf.storage.files import atomic_write_json, atomic_write_text
from hf_rlhf.storage.record import RECORD_NAME, load_record
from hf_rlhf.storage.secrets import scrub
from hf_rlhf.sweep_grid import BASE_NAME, Cell, numeric
from hf_rlhf.sweep_report import (
    METHOD,
    Line,
    Measured,
    lines_of,
    metrics_of,
    packages_of,
    read_finished,
    shown_metrics,
    values_of,
)
from hf_rlhf.sweep_runs import Done, Job
from hf_rlhf.sweep_table import markdown, plot

SCHEMA = 1
STATE_NAME = "sweep.json"


@dataclass
class CellState:
    """What is known of one cell, beside what lies in its runs' folders."""

    cell: Cell
    seeds: list[int] = field(default_factory=list)
    held_out: str | None = None
    """Tells the held-out rows from others."""
    steps: int | None = None
    bytes: float = 0.0
    """About what one run takes on disk."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Wall time by seed, over all its attempts."""
    said: dict[int, str] = field(default_factory=dict)
    """By seed, why its last attempt failed."""


class Sweep:
    """`sweep.json`, `base.yaml`, and a run folder for each cell and seed."""

    def __init__(self, out: Path, base: Mapping[str, Any]) -> None:
        self.out = out
        self.base = RunFile.from_mapping(base, BASE_NAME)
        self.name = ""
        """Of the run file."""
        self.command: list[str] = []
        self.launch: list[str] = []
        self.cells: list[CellState] = []

    @classmethod
    def load(cls, out: Path) -> "Sweep":
        """Read a sweep's folder. Raises RunFolderError when it is none."""
        path = out / STATE_NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"schema {content['schema']}, this hf_rlhf reads {SCHEMA}")
            sweep = cls(out, content["base"])
            sweep.name = content["name"]
            sweep.command, sweep.launch = content["command"], content["launch"]
            sweep.cells = [_cell_from(item) for item in content["cells"]]
        except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
            raise RunFolderError(
                f"{out} is not a sweep's folder: {path} cannot be read ({error!r}). Name the "
                "`--out` of a sweep, or another folder for a new one."
            ) from error
        return sweep

    def add(self, cell: Cell, seeds: Sequence[int]) -> None:
        """Put a cell and seeds beside those that the sweep has."""
        found = next((state for state in self.cells if state.cell.name == cell.name), None)
        if found is None:
            found = CellState(cell)
            self.cells.append(found)
        found.seeds = list(dict.fromkeys([*found.seeds, *seeds]))

    def state(self, cell: Cell) -> CellState:
        """Return what is known of a cell of this sweep."""
        return next(state for state in self.cells if state.cell.name == cell.name)

    def status(self, cell: Cell, seed: int) -> str:
        """Return how far one run got: finished, failed, interrupted, unfinished or not run."""
        folder = cell.folder(self.out, seed)
        status = "not run"
        if (folder / RECORD_NAME).exists():
            status = str(load_record(folder).status)
        if status != "finished" and seed in self.state(cell).said:
            return "failed"
        return "unfinished" if status == "running" else status

    def has_finished(self, cell: Cell) -> bool:
        """Return whether some run of a cell is finished."""
        return any(self.status(cell, seed) == "finished" for seed in self.state(cell).seeds)

    def unfinished(self, cells: Sequence[Cell], seeds: Sequence[int]) -> list[tuple[Cell, int]]:
        """Return the runs of `cells` and `seeds` that are not finished, seed by seed.

        All cells of the first seed come first: a sweep that is stopped has compared something.
        """
        return [
            (cell, seed)
            for seed in seeds
            for cell in cells
            if self.status(cell, seed) != "finished"
        ]

    def space_needed(self, runs: Sequence[tuple[Cell, int]]) -> float:
        """Return about how many bytes `runs` will write beside what they have written already."""
        return sum(
            max(self.state(cell).bytes - taken_bytes(cell.folder(self.out, seed)), 0)
            for cell, seed in runs
        )

    def command_of(self, cell: Cell, seed: int) -> list[str]:
        """Return the command line of one run."""
        return [*self.launch, "-m", "hf_rlhf.train", *cell.arguments(self.out, seed)]

    def job(self, cell: Cell, seed: int) -> Job:
        """Return one run as a job."""
        folder = cell.folder(self.out, seed)
        command = tuple(self.command_of(cell, seed))
        return Job(f"{cell.said}, seed {seed}", command, folder.with_name(f"{folder.name}.log"))

    def ended(self, cell: Cell, seed: int, done: Done) -> str:
        """Note how one run ended; return its status."""
        state = self.state(cell)
        state.seconds[seed] = state.seconds.get(seed, 0.0) + done.seconds
        state.said.pop(seed, None)
        if self.status(cell, seed) != "finished" and not done.stopped:
            state.said[seed] = done.said
        self.write()
        return self.status(cell, seed)

    def begin(self) -> None:
        """Write what the runs read."""
        self.write()
        atomic_write_text(self.out / BASE_NAME, plain_yaml.dump(dict(self.base.values)))

    def report(self, asked: Sequence[str]) -> tuple[list[Line], dict[str, Any]]:
        """Write table and plot of what is finished; return the lines and `sweep.json`'s content.

        `asked` names the table's metrics. Raises RunFolderError for one that no run measured.
        """
        measured = [self._measured(state) for state in self.cells]
        names = shown_metrics(measured, asked)
        lines = [line for name in names for line in lines_of(measured, name)]
        keys = list(dict.fromkeys(key for state in self.cells for key in state.cell.settings))
        drawn = len(keys) == 1 and numeric(state.cell.settings[keys[0]] for state in self.cells)
        drawn = drawn and bool(lines)
        (self.out / "sweep.png").unlink(missing_ok=True)
        if drawn:
            plot(lines, keys[0], self.out / "sweep.png")
        content = self.write(measured)
        atomic_write_text(self.out / "sweep.md", markdown(content, lines, drawn))
        return lines, content

    def _measured(self, state: CellState) -> Measured:
        runs = []
        for seed in state.seeds:
            if self.status(state.cell, seed) == "finished":
                folder = state.cell.folder(self.out, seed)
                seconds = state.seconds.get(seed)
                run = read_finished(folder, seed, load_record(folder), seconds)
                runs += [run] if run is not None else []
        return Measured(state.cell, values_of(self.base, state.cell), state.held_out, runs)

    def write(self, measured: Sequence[Measured] = ()) -> dict[str, Any]:
        """Write `sweep.json`, with results of what was `measured`, and return its content."""
        results: dict[str, dict[str, Any]] = {}
        for name in metrics_of(measured):
            for line in lines_of(measured, name):
                results.setdefault(line.cell.name, {})[name] = line.as_json()
        packages, mixed = packages_of(measured)
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "name": self.name,
            "command": self.command,
            "launch": self.launch,
            "base": dict(self.base.values),
            "cells": [self._cell_as_json(one, results.get(one.cell.name)) for one in self.cells],
            "method": METHOD,
            "packages": packages,
            "packages_that_differ": mixed,
        }
        content = scrub(content)
        atomic_write_json(self.out / STATE_NAME, content)
        return content

    def _cell_as_json(self, state: CellState, results: Any) -> dict[str, Any]:
        return {
            "name": state.cell.name,
            "said": state.cell.said,
            "settings": dict(state.cell.settings),
            "held_out_sha256": state.held_out,
            "steps": state.steps,
            "bytes": state.bytes,
            "runs": [
                {
                    "seed": seed,
                    "status": self.status(state.cell, seed),
                    "seconds": state.seconds.get(seed),
                    "said": state.said.get(seed),
                    "command": self.command_of(state.cell, seed),
                }
                for seed in state.seeds
            ],
            "results": results or {},
        }


def _cell_from(item: Mapping[str, Any]) -> CellState:
    runs = item["runs"]
    return CellState(
        Cell(item["settings"]),
        [run["seed"] for run in runs],
        item["held_out_sha256"],
        item["steps"],
        item["bytes"],
        {run["seed"]: run["seconds"] for run in runs if run["seconds"] is not None},
        {run["seed"]: run["said"] for run in runs if run["said"] is not None},
    )

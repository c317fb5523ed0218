"""``hf-rlhf sweep``: one run file, some of its values varied, several seeds, one table.

Each run is an ordinary one, in a folder and a process of its own. The same command goes on where
it was stopped; with more values or seeds it runs what is new. This process never imports torch.
"""

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hf_rlhf.cards.markdown import duration, number
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.config.shipped import own_card
from hf_rlhf.config.validation import near
from hf_rlhf.errors import ConfigError, HfRlhfError, Problem, RunFolderError
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.disk import Space, human
from hf_rlhf.storage.record import LOCK_NAME, load_record
from hf_rlhf.sweep_folder import STATE_NAME, Sweep
from hf_rlhf.sweep_grid import Cell, base_of, cells_of, differences, parse_axes, parse_seeds
from hf_rlhf.sweep_report import labels_of
from hf_rlhf.sweep_runs import Done, Job, run_jobs
from hf_rlhf.sweep_table import notes, terminal_table

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
"""Exit statuses: some run failed; stopped by Ctrl-C; stopped by SIGTERM."""
ORPHAN_SECONDS = 60.0
"""How long runs of a sweep that was killed may go on: `stop_grace`, and to close their record."""


def sweep_main(argv: Sequence[str]) -> int:
    """Run a sweep, go on with one, or report on one; return the exit status."""
    # Not a positional of argparse, which would take the value of an override for it.
    own = argv[0] if argv and not argv[0].startswith("-") else None
    options, overrides = _parser().parse_known_args(argv[1:] if own else argv)
    if options.report:
        if own or overrides or options.out is None:
            fix = "Write `hf-rlhf sweep --out DIR --report`."
            raise ConfigError([Problem("--report", "takes `--out DIR` and `--metric` only.", fix)])
        return _report(Sweep.load(options.out), options.metric)
    if own is None:
        fix = "Write `hf-rlhf sweep RUN --vary KEY=VALUE,VALUE`; `--help` tells more."
        raise ConfigError([Problem("command line", "names no run.", fix)])
    asked = _Asked(own, options, overrides)
    if options.dry_run:
        return _dry_run(asked, argv)
    with _claimed(asked.out):
        sweep = asked.sweep(argv)
        todo = sweep.unfinished(asked.cells, asked.seeds)
        _plan(asked, sweep, todo)
        stopped = _go(sweep, todo, options.jobs)
        status = _report(sweep, options.metric)
    if stopped is not None:
        again = shlex.join(["hf-rlhf", "sweep", *argv])
        print(f"stopped; the same command goes on: {again}", file=sys.stderr)
        return INTERRUPTED if stopped == signal.SIGINT else TERMINATED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-rlhf sweep",
        usage="hf-rlhf sweep RUN --vary KEY=VALUE,VALUE [--vary ...] [--seeds N] [--KEY VALUE ...]",
        description=f"{__doc__}\nRUN is a run file, or a trainer's name for its default one. Any "
        "key of it is an option too, and holds in every cell.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Values are read as a YAML list is: `--vary "
        "'lora_target_modules=[q_proj],[q_proj,v_proj]'`. docs/sweeps.md tells more.",
    )
    add = parser.add_argument
    add("--run", help="another run file that the trainer's package ships")
    add("--vary", action="append", default=[], metavar="KEY=VALUE,VALUE", help="repeat for a grid")
    add("--seeds", default="1", help="how many, or which: 1,2,3 (default: one)")
    add("--out", type=Path, help="the sweep's folder (default: sweeps/PLUGIN-RUN)")
    add("--metric", action="append", default=[], help="for the table; repeatable (default: total)")
    add(
        "--launch",
        default=shlex.quote(sys.executable),
        help="what starts a run, before `-m hf_rlhf.train`, such as 'accelerate launch "
        "--num_processes 8' (default: this Python); {job} is 0 to jobs - 1",
    )
    add("--jobs", type=int, default=1, help="how many runs at once (default: 1)")
    add("--dry_run", action="store_true", help="check all, show cells and commands, run nothing")
    add("--report", action="store_true", help="make the table of --out again, run nothing")
    return parser


class _Asked:
    """What the command line asks for, resolved as far as that goes without the training stack."""

    def __init__(self, own: str, options: argparse.Namespace, overrides: Sequence[str]) -> None:
        is_file = own.endswith((".yaml", ".yml")) or Path(own).is_file()
        self.plugin = None if is_file else own
        self.config = own if is_file else None
        self.run, self.overrides = options.run, list(overrides)
        file = choose_run_file(self.plugin, self.run, self.config)
        self.file = file.override(overrides)
        axes, problems = parse_axes(options.vary, self.file)
        if self.config is None:
            self.file, _ = own_card(
                self.file, file.values, varied=[str(one.path[0]) for one in axes]
            )
        self.launch, wrong = _launch(options.launch)
        self.seeds, not_seeds = parse_seeds(options.seeds, self.file)
        problems += [*wrong, *not_seeds, *self._wrong(options)]
        if problems := [*self.file.problems, *problems]:
            raise ConfigError(problems)
        self.cells, self.metrics = cells_of(axes), options.metric
        stem = f"{(self.plugin or file.plugin or '').replace('/', '-')}-{Path(file.name).stem}"
        self.out = options.out or Path("sweeps") / stem

    def _wrong(self, options: argparse.Namespace) -> Iterator[Problem]:
        if not options.vary:
            yield Problem("command line", "varies nothing.", "Write `--vary KEY=VALUE,VALUE`.")
        if options.jobs < 1:
            yield Problem("--jobs (command line)", "should be 1 or more.")
        if any(path[0] == "output_dir" for path in self.file.overrides):
            yield Problem("--output_dir (command line)", "is made of `--out DIR`.")

    def sweep(self, argv: Sequence[str]) -> Sweep:
        """Return the sweep in the folder, with the cells that are asked for added to it."""
        base = base_of(self.file, self.plugin)
        if (self.out / STATE_NAME).exists():
            old = Sweep.load(self.out)
            if changed := differences(old.base.values, base):
                shown = "".join(f"\n  - {line}" for line in changed)
                raise RunFolderError(
                    f"{self.out} holds a sweep of another run. What differs (there -> here):"
                    f"{shown}\nGive this sweep another `--out`, or delete that folder."
                )
        elif self.out.exists() and (not self.out.is_dir() or any(self.out.glob("[!.]*"))):
            raise RunFolderError(f"{self.out} is not a sweep's folder. Choose another `--out`.")
        else:
            old = None
        sweep = Sweep(self.out, base)
        sweep.cells = old.cells if old else []
        sweep.name, sweep.command, sweep.launch = self.file.name, list(argv), self.launch
        for cell in self.cells:
            sweep.add(cell, self.seeds)
        return sweep

    def check_metrics(self, plans: Sequence[dict[str, Any]]) -> None:
        """Raise ConfigError for a metric that no cell measures: now, not after the last run."""
        if any(plan["own"] is None for plan in plans):
            return  # their names are only the trainer's to know
        own = [name for plan in plans for name in plan["own"]]
        known = [TOTAL, *labels_of(self.file.values), "completion_tokens", "truncated", *own]
        problems = []
        for name in [name for name in self.metrics if name not in known]:
            guess = near(name, known)
            measured = ", ".join(dict.fromkeys(known))
            fix = f"Did you mean `{guess}`?" if guess else f"Measured: {measured}."
            problems.append(Problem("--metric (command line)", f"`{name}` is not measured.", fix))
        if problems:
            raise ConfigError(problems)

    def checked(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Resolve each cell's run file as its run would; return their plans.

        Raises ConfigError with all that is wrong with any of them.
        """
        print(f"checking {len(cells)} cells", flush=True)
        request = {
            "plugin": self.plugin,
            "run": self.run,
            "config": self.config,
            "overrides": self.overrides,
            # With the first seed and a folder, as it will be run.
            "cells": [cell.arguments(self.out, self.seeds[0])[2:] for cell in cells],
        }
        with tempfile.TemporaryDirectory() as folder:
            asks, answers = Path(folder, "request.json"), Path(folder, "answer.json")
            asks.write_text(json.dumps(request), encoding="utf-8")
            launch = [word.replace("{job}", "0") for word in self.launch]
            done = subprocess.run(
                [*launch, "-m", "hf_rlhf.sweep_check", str(asks), str(answers)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode or not answers.exists():
                words = "\n".join(done.stderr.strip().splitlines()[-15:])
                raise HfRlhfError(f"The cells could not be checked:\n{words}")
            plans: list[dict[str, Any]] = json.loads(answers.read_text(encoding="utf-8"))
        if problems := _by_cell(cells, [plan["problems"] for plan in plans]):
            raise ConfigError(problems)
        return plans


def _launch(text: str) -> tuple[list[str], list[Problem]]:
    """Return the words that start a run, and what is wrong with them."""
    where = "--launch (command line)"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return [], [Problem(where, f"`{text}` is no command: {error}.")]
    if not words or shutil.which(words[0]) is None:
        return [], [Problem(where, f"`{text}` does not begin with a program that is installed.")]
    return words, []


def _by_cell(cells: Sequence[Cell], found: Sequence[Sequence[Sequence[str]]]) -> list[Problem]:
    """Return each problem once, with the cells that have it unless all do."""
    cells_with: dict[tuple[str, ...], list[str]] = {}
    for cell, problems in zip(cells, found, strict=True):
        for problem in problems:
            cells_with.setdefault(tuple(problem), []).append(cell.said)
    return [
        Problem(where, what, fix)
        if len(said) == len(cells)
        else Problem(f"{'; '.join(said)}: {where}", what, fix)
        for (where, what, fix), said in cells_with.items()
    ]


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Hold a sweep's folder; a crash gives it back, since the lock is the system's."""
    from filelock import FileLock, Timeout

    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise RunFolderError(f"Another sweep is at work in {out}. Wait for it.") from None
    except OSError as error:
        raise RunFolderError(
            f"{out} cannot be written: {error.strerror or error}. Choose another `--out`."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _plan(asked: _Asked, sweep: Sweep, todo: Sequence[tuple[Cell, int]]) -> None:
    """Check every cell that will be run, and that the disk holds them all."""
    names = {cell.name for cell, _ in todo}
    cells = [cell for cell in asked.cells if cell.name in names]
    if not cells:
        return
    plans = asked.checked(cells)
    asked.check_metrics(plans)
    for cell, plan in zip(cells, plans, strict=True):
        state = sweep.state(cell)
        if state.held_out not in (None, plan["rows"]) and sweep.has_finished(cell):
            raise RunFolderError(
                f"{cell.said}: the held-out rows are not those that its finished runs were "
                f"measured on. Put the data back as it was, or give this sweep another `--out`."
            )
        state.held_out, state.steps, state.bytes = plan["rows"], plan["steps"], plan["bytes"]
    need, free = sweep.space_needed(todo), Space.of(sweep.out).bytes
    if need > free:
        raise RunFolderError(
            f"{len(todo)} runs need about {human(need)}, and {sweep.out} has {human(free)} free. "
            "Free space, name another `--out`, or keep fewer checkpoints (`--save_total_limit 1`)."
        )


def _dry_run(asked: _Asked, argv: Sequence[str]) -> int:
    """Print every cell and its commands; write nothing."""
    sweep = asked.sweep(argv)
    todo = sweep.unfinished(asked.cells, asked.seeds)
    _plan(asked, sweep, todo)
    for cell in asked.cells:
        print(f"{cell.said} ({sweep.state(cell).steps} steps)")
        for seed in asked.seeds:
            print(f"  {sweep.status(cell, seed)}: {shlex.join(sweep.command_of(cell, seed))}")
    print(
        f"{len(asked.cells)} cells x {len(asked.seeds)} seeds in {sweep.out}; {len(todo)} to be "
        f"run, about {human(sweep.space_needed(todo))}"
    )
    return 0


def _go(sweep: Sweep, todo: Sequence[tuple[Cell, int]], at_once: int) -> int | None:
    """Run what is to be done; return the signal that stopped it, if one did."""
    sweep.begin()
    if not todo:
        return None
    _let_end([cell.folder(sweep.out, seed) for cell, seed in todo])
    progress = _Progress(sweep, todo, at_once)
    return run_jobs(list(progress.places), at_once, progress.started, progress.ended)


def _let_end(folders: Sequence[Path]) -> None:
    """Wait for runs of a sweep that was killed: they may save once more before they end.

    A folder that is held for longer is its run's to refuse, which says by whom.
    """
    from filelock import FileLock, Timeout

    until = time.monotonic() + ORPHAN_SECONDS
    for folder in folders:
        if not (folder / LOCK_NAME).exists():
            continue
        lock = FileLock(folder / LOCK_NAME)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for what still runs in {folder}", flush=True)
            with suppress(Timeout):
                lock.acquire(timeout=max(until - time.monotonic(), 0))
        finally:
            lock.release()


class _Progress:
    """A line when a run starts, and one when it ends, with the time that is left."""

    def __init__(self, sweep: Sweep, todo: Sequence[tuple[Cell, int]], at_once: int) -> None:
        self.sweep = sweep
        self.places = {sweep.job(cell, seed): (cell, seed) for cell, seed in todo}
        self.numbers = {job: place for place, job in enumerate(self.places, 1)}
        self.at_once = at_once
        self.seconds: list[float] = []

    def started(self, job: Job) -> None:
        """Say which run begins, and where its own output goes."""
        self._say(job, f"started; its output: {job.log}")

    def ended(self, done: Done) -> None:
        """Say how a run ended."""
        cell, seed = self.places[done.job]
        status = self.sweep.ended(cell, seed, done)
        said = f"{status} after {duration(done.seconds)}"
        self.seconds.append(done.seconds)
        if status == "finished":
            record = load_record(cell.folder(self.sweep.out, seed))
            after = ((record["evaluation"] or {}).get("after") or {}).get(TOTAL)
            said += f", {TOTAL} {number(after['mean'])}" if after else ""
        elif why := self.sweep.state(cell).said.get(seed):
            said += f": {why}"
        left = len(self.places) - len(self.seconds)
        if left and not done.stopped:
            mean = sum(self.seconds) / len(self.seconds)
            said += f"; about {duration(mean * left / self.at_once)} left"
        self._say(done.job, said)

    def _say(self, job: Job, text: str) -> None:
        print(f"[{self.numbers[job]}/{len(self.places)}] {job.said}: {text}", flush=True)


def _report(sweep: Sweep, metrics: Sequence[str]) -> int:
    """Write and print the table of what is finished; return 1 if some run has failed."""
    from rich.console import Console

    lines, content = sweep.report(metrics)
    console = Console()
    if lines:
        console.print(terminal_table(lines, f"{sweep.name}: held-out results"))
        for note in notes(lines):
            console.print(f"- {note}", style="dim", markup=False, highlight=False)
    runs = [(cell, run) for cell in content["cells"] for run in cell["runs"]]
    for cell, run in runs:
        if run["status"] != "finished":
            why = f": {run['said']}" if run["said"] else ""
            print(f"{cell['said']}, seed {run['seed']}: {run['status']}{why}")
    print(f"table: {sweep.out / 'sweep.md'}")
    return FAILED if any(run["status"] == "failed" for _, run in runs) else 0

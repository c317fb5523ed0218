"""`hf-rlhf study`: many runs from one file, compared with intervals and verdicts.

A study file names conditions, seeds, what is measured, and the questions with the predicted
answers. The same command continues where it was stopped. This process never imports torch.
"""

import argparse
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hf_rlhf import ConfigError, Problem, RunFolderError
from hf_rlhf.cards import duration, number
from hf_rlhf.rewards import TOTAL
from hf_rlhf.storage import LOCK_NAME, atomic_write_text
from hf_rlhf_studies.check import check
from hf_rlhf_studies.folder import StudyFolder, TaskStatus, read_state
from hf_rlhf_studies.jobs import Job, JobEnd, run_jobs
from hf_rlhf_studies.plots import draw
from hf_rlhf_studies.report import answers, control_results, markdown, title_of, with_interval
from hf_rlhf_studies.results import ROWS_NAME, Results, collect, read_rows
from hf_rlhf_studies.runs import Runs, Task, record_of
from hf_rlhf_studies.study import Cell, Study

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
"""Exit statuses: some run failed; stopped by Ctrl-C; stopped by SIGTERM."""
ORPHAN_SECONDS = 60.0
"""How long runs of a study that was killed may go on: `stop_grace`, and to close their record."""
RESULTS_NAME = "RESULTS.md"


def study(argv: Sequence[str]) -> int:
    """Run a study of many runs, report on it, or show its progress."""
    options = _parser().parse_args(argv)
    content = Study.read(options.file)
    out = options.out or Path("studies") / (content.source.resolve().parent.name or "study")
    match options.verb:
        case "run":
            return _run(content, out, options, argv)
        case "status":
            return _status(StudyFolder(Runs(content, out)))
        case _:
            return _report(content, options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-rlhf study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="docs/how-to/studies.md describes the study file.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = {
        "run": "run what is not done, then report",
        "report": f"write {RESULTS_NAME} and plots from {ROWS_NAME}, beside the study file",
        "status": "list what is done, to do, failed or stale, and why",
    }
    for name, text in about.items():
        verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        verb.add_argument("file", type=Path, metavar="FILE", help="the study file")
        if name == "report":
            verb.add_argument("--out", type=Path, help=f"the folder of {ROWS_NAME} instead")
            continue
        verb.add_argument("--out", type=Path, help="where runs go (default: studies/FOLDER)")
        if name == "run":
            verb.add_argument("--only", default="", help="cells whose name has one of these words")
            verb.add_argument("--seeds", default="", help="only these seeds: 1,2")
            verb.add_argument("--redo", action="store_true", help="delete stale runs, do them anew")
            add_run_options(verb)
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of how runs are started."""
    parser.add_argument(
        "--launch",
        default=shlex.quote(sys.executable),
        help="what starts a run, before `-m hf_rlhf.train`, such as 'accelerate launch "
        "--num_processes 8' (default: this Python); {job} is 0 to jobs - 1",
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at once (default: 1)")
    parser.add_argument(
        "--dry_run", action="store_true", help="show cells and commands, run nothing"
    )


def launch_words(text: str) -> tuple[list[str], list[Problem]]:
    """Return the words that start a run, and what is wrong with them."""
    where = "--launch (command line)"
    try:
        words = shlex.split(text)
    except ValueError as error:
        return [], [Problem(where, f"`{text}` is no command: {error}.")]
    if not words or shutil.which(words[0]) is None:
        return [], [Problem(where, f"`{text}` does not begin with a program that is installed.")]
    return words, []


def _run(content: Study, out: Path, options: argparse.Namespace, argv: Sequence[str]) -> int:
    launch, problems = launch_words(options.launch)
    if options.jobs < 1:
        problems.append(Problem("--jobs (command line)", "should be 1 or more."))
    cells, wrong = _chosen(content, options)
    if problems := [*problems, *wrong]:
        raise ConfigError(problems)
    folder = StudyFolder(Runs(content, out, launch))
    tasks = folder.runs.tasks(cells)
    if options.dry_run:
        check(folder, _to_run(folder, tasks))
        show_plan(folder, tasks)
        return 0
    with folder.locked():
        folder.begin(content.file.model_dump(by_alias=True), ["study", *argv])
        check(folder, _to_run(folder, tasks))
        stopped = perform(folder, tasks, options.jobs, redo=options.redo)
        results = collect(folder)
        write_report(results, folder.out)
        failed = [status for status in folder.statuses(tasks) if status.state != "done"]
    return end(failed, stopped, ["hf-rlhf", "study", *argv])


def _chosen(content: Study, options: argparse.Namespace) -> tuple[list[Cell], list[Problem]]:
    """Return the cells that `--only` and `--seeds` choose, and what is wrong with those."""
    try:
        seeds = [int(word) for word in options.seeds.split(",") if word.strip()]
    except ValueError:
        return [], [Problem("--seeds (command line)", f"{options.seeds!r} is no list of seeds.")]
    words = [word for word in options.only.split(",") if word]
    cells = content.cells(seeds)
    chosen = [cell for cell in cells if not words or any(word in cell.folder for word in words)]
    if chosen:
        return chosen, []
    names = ", ".join(content.file.conditions)
    fix = f"Conditions: {names}; seeds: {', '.join(map(str, content.file.seeds))}."
    return [], [Problem("--only, --seeds (command line)", "choose no run.", fix)]


def _to_run(folder: StudyFolder, tasks: Sequence[Task]) -> list[Cell]:
    """Return the cells whose runs are still to do."""
    statuses = folder.statuses([task for task in tasks if task.kind == "run"])
    return [status.task.cell for status in statuses if status.state != "done" and status.task.cell]


def show_plan(folder: StudyFolder, tasks: Sequence[Task]) -> None:
    """Print how each task stands, with the command line of each run."""
    for status in folder.statuses(tasks):
        print(_line(status))
        if status.task.kind == "run" and status.task.cell is not None:
            print(f"  {shlex.join(folder.runs.run_command(status.task.cell))}")


def perform(
    folder: StudyFolder, tasks: Sequence[Task], at_once: int, *, redo: bool = False
) -> int | None:
    """Do what is to be done; return the signal that stopped it, if one did.

    Raises RunFolderError when runs are stale and are not to be done anew.
    """
    statuses = folder.statuses(tasks)
    stale = [status for status in statuses if status.state == "stale"]
    remaining = [entry for entry in stale if entry.task.kind != "measure"]
    if remaining and not redo:
        text = "".join(f"\n  - {entry.task.step}: {entry.why}" for entry in remaining)
        raise RunFolderError(
            f"{folder.out} has results of other settings (there -> here):{text}\nPut the study "
            "file back as it was, choose another `--out`, or add --redo: it deletes these runs "
            "and does them anew."
        )
    for item in stale:
        folder.discard(item.task)
    todo = [status.task for status in statuses if status.state != "done"]
    await_orphans([entry.output for entry in todo if entry.kind == "run"])
    queue = _Queue(
        folder, todo, {status.task.step for status in statuses if status.state == "done"}, at_once
    )
    return run_jobs(queue.next_job, at_once, queue.ended) if todo else None


def await_orphans(folders: Sequence[Path]) -> None:
    """Wait for runs of a study that was killed: they may save once more before they end.

    A folder that is locked for longer is its run's to refuse, which says by whom.
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
            print(f"waiting for the run that is still alive in {folder}", flush=True)
            with suppress(Timeout):
                lock.acquire(timeout=max(until - time.monotonic(), 0))
        finally:
            lock.release()


class _Queue:
    """The tasks to do, each given out when what it reads is done; a line for each."""

    def __init__(
        self, folder: StudyFolder, todo: Sequence[Task], done: set[str], at_once: int
    ) -> None:
        self.folder = folder
        self.waiting = list(todo)
        self.done = done
        self.at_once = at_once
        self.count = len(todo)
        self.running: dict[Job, tuple[int, Task]] = {}
        self.seconds: list[float] = []

    def next_job(self) -> Job | None:
        """Return a task that can begin as a job, or None; one without a command has failed."""
        for task in [task for task in self.waiting if self.done.issuperset(task.after)]:
            self.waiting.remove(task)
            number = self.count - len(self.waiting)
            try:
                job = Job(task.step, tuple(task.command()), task.log)
            except ConfigError as error:
                self.folder.failed(task, str(error.problems[0]))
                self._print(number, task, f"failed: {error.problems[0]}")
                continue
            self.running[job] = (number, task)
            self._print(number, task, f"started; its output: {task.log}")
            return job
        return None

    def ended(self, end: JobEnd) -> None:
        """Record how a task ended, and print a line."""
        number, task = self.running.pop(end.job)
        state = self.folder.ended(task, end)
        self.seconds.append(end.seconds)
        words = f"{state} after {duration(end.seconds)}"
        if state == "finished":
            self.done.add(task.step)
            words += _held_out_total(task)
        elif error := self.folder.state["errors"].get(task.step):
            words += f": {error}"
        left = len(self.waiting) + len(self.running)
        if left and not end.stopped:
            mean = sum(self.seconds) / len(self.seconds)
            words += f"; about {duration(mean * left / self.at_once)} left"
        self._print(number, task, words)

    def _print(self, number: int, task: Task, text: str) -> None:
        print(f"[{number}/{self.count}] {self._title(task)}: {text}", flush=True)

    def _title(self, task: Task) -> str:
        if task.cell is None:
            return task.step
        label = self.folder.runs.study.label(task.cell.condition)
        block = f"{task.cell.block}, " if task.cell.block else ""
        measured = ", measured" if task.kind == "measure" else ""
        return f"{block}{label}, seed {task.cell.seed}{measured}"


def _held_out_total(task: Task) -> str:
    if task.kind != "run":
        return ""
    after = (record_of(task.output).get("evaluation") or {}).get("after") or {}
    return f", {TOTAL} {number(after[TOTAL]['mean'])}" if TOTAL in after else ""


def end(failed: Sequence[TaskStatus], stopped: int | None, command: Sequence[str]) -> int:
    """Print what is not done, and how to continue; return the exit status."""
    for item in failed:
        print(_line(item))
    if stopped is not None:
        print(f"stopped; the same command continues: {shlex.join(command)}", file=sys.stderr)
        return INTERRUPTED if stopped == signal.SIGINT else TERMINATED
    return FAILED if failed else 0


def _line(status: TaskStatus) -> str:
    return f"{status.task.step}: {status.state}" + (f": {status.why}" if status.why else "")


def _status(folder: StudyFolder) -> int:
    if read_state(folder.out) is None:
        raise RunFolderError(
            f"{folder.out} is not a study's folder. Name the `--out` of its `study run`."
        )
    statuses = folder.statuses(folder.runs.tasks(folder.runs.study.cells()))
    for status in statuses:
        print(_line(status))
    done = sum(item.state == "done" for item in statuses)
    print(f"{done} of {len(statuses)} tasks are done in {folder.out}")
    return 0


def _report(content: Study, out: Path | None) -> int:
    folder = out or content.source.parent
    write_report(read_rows(content, folder), folder)
    return 0


def write_report(results: Results, folder: Path) -> None:
    """Write the report and its plots into a folder, and print the answers."""
    from rich.console import Console

    plots = draw(results, folder)
    atomic_write_text(folder / RESULTS_NAME, markdown(results, plots))
    console = Console(highlight=False, markup=False)
    for answer in answers(results, predicted=True):
        block = f" ({answer.block})" if answer.block else ""
        numbers = f"{answer.question.metric} {with_interval(answer.difference)}"
        words = f"{title_of(answer.question)}{block}: {answer.verdict}; {numbers}"
        console.print(words, soft_wrap=True)
    for control in control_results(results):
        name = control.control.name or control.control.condition
        console.print(f"control {name}: {control.outcome}", soft_wrap=True)
    print(f"report: {folder / RESULTS_NAME}")

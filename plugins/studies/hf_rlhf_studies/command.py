"""`hf-rlhf study`: many runs from a file, compared with intervals and verdicts.

A study file names conditions, seeds, what is measured, and the questions with
the predicted answers. The same command continues where it was stopped. This
process never imports torch.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_rlhf import ConfigError, Problem, RunFolderError
from hf_rlhf.cli import launch_words
from hf_rlhf.formatting import print_table
from hf_rlhf.steps import Chain
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_studies.check import check
from hf_rlhf_studies.folder import PLAN, StudyFolder, plan_text
from hf_rlhf_studies.plots import draw
from hf_rlhf_studies.report import (
    answers,
    control_results,
    criteria_of,
    markdown,
    metric_table,
    p_value,
    t_interval,
    with_interval,
)
from hf_rlhf_studies.results import ROWS_NAME, Results, collect, read_rows
from hf_rlhf_studies.runs import CellTask, Runs
from hf_rlhf_studies.study import Cell, Study

FAILED, INTERRUPTED, TERMINATED = 1, 130, 143
"""Exit statuses: some run failed; stopped by Ctrl-C; stopped by SIGTERM."""
RESULTS_NAME = "RESULTS.md"


def study(argv: Sequence[str]) -> int:
    """Run a study of many runs, report on it, or show its progress."""
    options = _parser().parse_args(argv)
    content = Study.read(options.file)
    here = content.source.resolve().parent
    if options.verb == "report":
        folder = options.out or content.source.parent
        write_report(read_rows(content, folder), folder)
        return 0
    # The folder of a sweep holds its own study file.
    default = here if (here / "steps.json").exists() else Path("studies") / (here.name or "study")
    out = options.out or default
    if options.verb == "status":
        return _print_status(StudyFolder(Runs(content, out)))
    launch, problems = launch_of(options)
    cells, wrong = _chosen(content, options)
    if problems := [*problems, *wrong]:
        raise ConfigError(problems)
    return run_study(StudyFolder(Runs(content, out, launch)), cells, options, ["study", *argv])


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
        "run": "do the remaining runs, then write the report",
        "report": f"write {RESULTS_NAME} and plots from {ROWS_NAME}, beside the study file",
        "status": "list the state of each run: done, to do, failed or stale, and why",
    }
    for name, text in about.items():
        verb = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        verb.add_argument("file", type=Path, metavar="FILE", help="the study file")
        if name == "report":
            verb.add_argument("--out", type=Path, help=f"the folder of {ROWS_NAME} instead")
            continue
        verb.add_argument("--out", type=Path, help="the output folder (default: studies/FOLDER)")
        if name == "run":
            verb.add_argument(
                "--only", default="", help="only cells whose name contains one of these words"
            )
            verb.add_argument("--seeds", default="", help="only these seeds: 1,2")
            add_run_options(verb)
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of how runs are started."""
    add = parser.add_argument
    add(
        "--launch",
        default=shlex.quote(sys.executable),
        help="the launcher of a run, before `-m hf_rlhf.train`, such as 'accelerate launch "
        "--num_processes 8' (default: this Python); {job} is 0 to jobs - 1",
    )
    add("--jobs", type=int, default=1, help="number of concurrent runs (default: 1)")
    add("--redo", action="store_true", help="delete stale runs and repeat them")
    add("--dry_run", action="store_true", help="show cells and commands, run nothing")


def launch_of(options: argparse.Namespace) -> tuple[list[str], list[Problem]]:
    """Return the words that start a run, and the problems of the options of how runs start."""
    problems = []
    if options.jobs < 1:
        problems.append(Problem("--jobs (command line)", "should be 1 or more."))
    try:
        return launch_words(options.launch), problems
    except ConfigError as error:
        return [], [*error.problems, *problems]


def _chosen(content: Study, options: argparse.Namespace) -> tuple[list[Cell], list[Problem]]:
    """Return the cells that `--only` and `--seeds` choose, and the problems of the two options."""
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


def run_study(
    folder: StudyFolder,
    cells: Sequence[Cell],
    options: argparse.Namespace,
    command: Sequence[str],
    study_file: str = "",
) -> int:
    """Do the tasks of some cells that are not done, and report; return the exit status.

    Args:
        folder: of the study.
        cells: to run.
        options: of `add_run_options`.
        command: the words after `hf-rlhf`, which continue the study.
        study_file: text of a study file to write into the folder; empty: it exists elsewhere.
    """
    plan_text(folder.runs.study)  # one that cannot be read is an error of a dry run too
    chain = folder.chain(cells)
    if options.dry_run:
        _show_plan(folder, chain)
        return 0
    with folder.ledger.locked():
        folder.begin()
        if study_file:
            atomic_write_text(folder.runs.study.source, study_file)
        check(folder, chain.statuses())
        folder.save_checks()
        stopped = chain.run_jobs(options.jobs, redo=options.redo)
        write_report(collect(folder), folder.out)
        unfinished = [status for status in chain.statuses() if status.state != "done"]
    for status in unfinished:
        print(status)
    if stopped is not None:
        words = shlex.join(["hf-rlhf", *command])
        print(f"stopped; the same command continues: {words}", file=sys.stderr)
        return INTERRUPTED if stopped == signal.SIGINT else TERMINATED
    return FAILED if unfinished else 0


def _show_plan(folder: StudyFolder, chain: Chain) -> None:
    """Check the runs, and print the state of each task with the command line of each run."""
    statuses = chain.statuses()
    check(folder, statuses)
    for status in statuses:
        print(status)
        if isinstance(status.task, CellTask) and status.task.trains:
            print(f"  {shlex.join(folder.runs.run_command(status.task.cell))}")
    todo = sum(status.state != "done" for status in statuses)
    print(f"{len(statuses)} tasks in {folder.out}; {todo} to do")


def _print_status(folder: StudyFolder) -> int:
    if PLAN not in folder.ledger.entries():
        raise RunFolderError(
            f"{folder.out} is not a study's folder. Name the `--out` of its `study run`."
        )
    statuses = folder.chain().statuses()
    for status in statuses:
        print(status)
    done = sum(status.state == "done" for status in statuses)
    print(f"{done} of {len(statuses)} tasks are done in {folder.out}")
    return 0


def write_report(results: Results, folder: Path) -> None:
    """Write the report and its plots into a folder, and print the answers.

    Of a study with a reference, the tables of its metrics are printed too.
    """
    from rich.console import Console

    plan_text(results.study, (results.plan or {}).get("text", ""))
    atomic_write_text(folder / RESULTS_NAME, markdown(results, draw(results, folder)))
    console = Console(highlight=False, markup=False)
    if results.study.file.reference is not None:
        for block in results.study.file.blocks:
            for metric in results.metrics(block):
                title = f"{block}, {metric}" if block else metric
                print_table(console, *metric_table(results, block, metric), title)
    for line in _answer_lines(results):
        console.print(line, soft_wrap=True)
    print(f"report: {folder / RESULTS_NAME}")


def _answer_lines(results: Results) -> Iterator[str]:
    printed = answers(results, predicted=True)
    for criterion in criteria_of(results, printed):
        yield f"failure criterion {criterion.outcome}: {criterion.quote} ({criterion.numbers})"
    if results.study.file.reference is not None:
        printed += answers(results, predicted=False)
    for answer in printed:
        block = f" ({answer.block})" if answer.block else ""
        words = answer.verdict
        if gap := answer.difference:
            numbers = f"{answer.question.metric} {with_interval(gap)}, t {t_interval(gap)}"
            p = f"p (Holm) {p_value(answer.p_holm)}"
            words = "; ".join(filter(None, (words, f"{numbers}, {p}")))
        yield f"{answer.title}{block}: {words}"
    for control in control_results(results):
        yield f"control {control.control.condition}: {control.outcome}"

"""`hf-rlhf traces pipeline FILE... --out DIR`: `read` and `steps` at once, or on many machines."""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ConfigError, PluginError, Problem
from hf_rlhf_traces.datasets_command import described
from hf_rlhf_traces.engine import blocks, cores
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.format_options import add_format_options, asked_format
from hf_rlhf_traces.job import DATASET, Job
from hf_rlhf_traces.layout import Layout, add_layout_options, asked_layout
from hf_rlhf_traces.options import count, verb_parser
from hf_rlhf_traces.read_command import add_reading_options, asked_reading, is_read
from hf_rlhf_traces.read_table import show_read
from hf_rlhf_traces.sources import files_of, in_blocks
from hf_rlhf_traces.store import TRACES, Store

if TYPE_CHECKING:
    from hf_rlhf_traces.pipeline import Slurm


def pipeline_main(argv: Sequence[str]) -> int:
    """Read files and build their steps: in one pass here, or as datatrove pipelines."""
    chosen = _parser().parse_args(argv)
    if chosen.tasks is None and chosen.slurm is None:
        return _here(chosen)
    if find_spec("datatrove") is None:
        raise PluginError(
            "datatrove, which --tasks and --slurm run by, is not installed. "
            "Install it: pip install 'hf-rlhf-traces[datatrove]'. "
            "Without --tasks and --slurm, the cores of this machine make the same."
        )
    slurm = asked_slurm(chosen.slurm) if chosen.slurm else None
    job, tasks = _job(chosen), chosen.tasks or cores()
    if chosen.dry_run:
        print(_shown(job, tasks, chosen.workers, slurm))
        return 0
    store = Store.make(chosen.out)
    if _done(store, job):
        print(f"steps: done already. {described(store.report('steps'))}")
        return 0
    return _run(job, tasks, chosen.workers, slurm)


def _here(chosen: argparse.Namespace) -> int:
    from hf_rlhf_traces.dataset_card import write_card
    from hf_rlhf_traces.one_pass import read_and_build

    job, workers = _job(chosen), chosen.workers
    if chosen.dry_run:
        print(f"read and steps: one pass, {workers or cores()} worker processes")
        return 0
    store = Store.make(chosen.out)
    if _done(store, job):
        print(f"steps: done already. {described(store.report('steps'))}")
        return 0
    report = read_and_build(job, workers)
    show_read(store.report("read"), chosen.out)
    print(f"steps: {described(report)}")
    print(f"{store.folder / 'datasets' / DATASET}, and its card: {write_card(store)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "pipeline",
        "Read agent traces into DIR and build their steps: in one pass on the cores of "
        "this machine; with --tasks or --slurm, by datatrove. The traces, counts, split and rows "
        "are those of `read` and `steps`.",
    )
    add_reading_options(parser)
    parser.add_argument("--tasks", type=count, metavar="N", help="parts of the work, for datatrove")
    parser.add_argument(
        "--workers",
        type=count,
        metavar="M",
        help="processes, or tasks, at once; default: one for each core; all tasks",
    )
    parser.add_argument(
        "--slurm",
        metavar="KEY=VALUE,...",
        help="submit the tasks to Slurm: partition=cpu,time=02:00:00 and, if they are to be "
        "others, qos, cpus_per_task, mem_per_cpu_gb, venv_path, env_command",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="show the jobs, or Slurm's scripts; write nothing"
    )
    add_layout_options(parser)
    add_format_options(parser)
    return parser


def asked_slurm(text: str) -> "Slurm":
    """Read `partition=cpu,time=02:00:00`. Raises ConfigError with all that is wrong with it."""
    from hf_rlhf_traces.pipeline import Slurm

    known = {one.name: one.type for one in fields(Slurm)}
    given = dict(part.partition("=")[::2] for part in text.split(","))
    problems = [
        Problem(f"--slurm: {name}", "is not known.", f"Known: {', '.join(known)}.")
        for name in given
        if name not in known
    ]
    problems += [
        Problem(f"--slurm: {name}", "is missing.", f"Say {name}=….")
        for name in ("partition", "time")
        if not given.get(name)
    ]
    problems += [
        Problem(f"--slurm: {name}", f"is {value!r}, expected a whole number above 0.")
        for name, value in given.items()
        if known.get(name) is int and not (value.isdecimal() and int(value))
    ]
    if problems:
        raise ConfigError(problems)
    read = {name: int(value) if known[name] is int else value for name, value in given.items()}
    activate = Path(sys.prefix) / "bin" / "activate"
    if sys.prefix != sys.base_prefix and not {"venv_path", "env_command"} & read.keys():
        read["venv_path"] = str(activate)
    return Slurm(**read)  # type: ignore[arg-type]


def _job(chosen: argparse.Namespace) -> Job:
    reading = asked_reading(chosen)
    reading["sources"] = files_of(chosen.files, chosen.out, reading["options"])
    form, layout = asked_format(chosen) or Format(), asked_layout(chosen)
    key = _key(reading, form, layout)
    return Job(reading, form, layout, chosen.out.absolute() / "pipeline" / key)


def _key(reading: Mapping[str, Any], form: Format, layout: Layout) -> str:
    """What stands for the files, as they are now, and the settings."""
    files = [_seen(file) for file in reading["sources"]]
    told = {**reading, "options": asdict(reading["options"]), "files": files}
    for name in ("out", "overwrite"):
        del told[name]
    text = json.dumps([told, form.settings(), layout.settings()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _seen(file: str) -> tuple[str, int, int]:
    stat = os.stat(file) if os.path.exists(file) else None
    return (file, stat.st_size, stat.st_mtime_ns) if stat else (file, 0, 0)


def _done(store: Store, job: Job) -> bool:
    """Whether all is made. Raises RunFolderError where it is made with other settings."""
    overwrite = job.reading["overwrite"]
    made = is_read(**job.reading)
    for step, settings in (("format", job.form.settings()), ("steps", job.settings)):
        made = store.check(step, settings, overwrite=overwrite) == "done" and made
    return made and (job.store / "datasets" / "steps" / "train.parquet").exists()


def _run(job: Job, tasks: int, workers: int | None, slurm: "Slurm | None") -> int:
    from hf_rlhf_traces.pipeline import executors

    if is_read(**job.reading):
        stages, files = ["steps"], [job.store / TRACES]
    else:
        files = [Path(file) for file in job.reading["sources"] if in_blocks(file)]
        stages = ["read", "steps"]
    count = job.spool(stages[0]).plan(block for path in files for block in blocks(path))
    made = executors(job, tasks=tasks, workers=workers or -1, slurm=slurm, stages=stages)
    if slurm is not None:
        made[-1].run()  # submits those before it, too
        print(f"Submitted: {count:,} blocks in {tasks} tasks. Logs: {job.home / 'logs'}")
        return 0
    for number, one in enumerate(made, start=1):
        name = Path(one.logging_dir.path).name
        print(f"{number}/{len(made)} {name}: {one.tasks} tasks", flush=True)
        with _errors_to(job.home / "logs" / f"{name}.log"):
            one.run()
    print(f"logs: {job.home / 'logs'}")
    print(f"steps: {described(Store.open(job.store).report('steps'))}")
    print(f"{job.store / 'datasets' / 'steps'}")
    return 0


@contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Have what this process and those that it starts write to standard error go to a file.

    datatrove logs there, from every task, beside its log files; errors are still raised.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    shown = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)
        os.close(shown)


def _shown(job: Job, tasks: int, workers: int | None, slurm: "Slurm | None") -> str:
    """Return what would be run. Slurm's scripts are made in a folder that is gone afterwards."""
    from hf_rlhf_traces.pipeline import executors

    with tempfile.TemporaryDirectory() as name:
        made = executors(
            replace(job, home=Path(name)), tasks=tasks, workers=workers or -1, slurm=slurm
        )
        if slurm is None:
            return "\n".join(
                f"{Path(one.logging_dir.path).name}: {one.tasks} tasks" for one in made
            )
        scripts = []
        for one in made:
            args = one.get_sbatch_args(min(one.tasks, one.max_array_size))
            pickled = one.logging_dir.resolve_paths("executor.pik")
            run = f"srun  -l -n {one.nodes_per_task} launch_pickled_pipeline {pickled}"
            scripts.append(f"# {one.job_name}\n{one.get_launch_file_contents(args, run)}")
        return "\n".join(scripts).replace(name, str(job.home))

"""Run the reading of `build` as datatrove tasks, locally or on a Slurm cluster.

Each task reads its part of the input into DIR/build/KEY/; a last task then counts the rows and
builds the datasets as `build` does on a single machine. KEY is a digest of the files and settings.
Repeating the command does not rerun finished tasks.
"""

import inspect
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, DataError, PluginError, Problem
from hf_rlhf.steps import digest
from hf_rlhf_traces.blocks import Block, cores
from hf_rlhf_traces.dataset_card import write_card
from hf_rlhf_traces.pipeline import Build, input_blocks, read_blocks, run_build
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.store import Store


def read_part(
    data: Any,
    rank: int = 0,
    world_size: int = 1,
    *,
    blocks: Sequence[Block],
    options: Options,
    folder: Path,
) -> Iterator[None]:
    """Read the part of a task into `folder`: a step of a datatrove pipeline."""
    start, end = (len(blocks) * each // world_size for each in (rank, rank + 1))
    path = folder / f"part-{rank:05d}"
    read_blocks(blocks[start:end], options, folder / "cache" / path.name, 1).save_to_disk(path)
    yield from ()


def complete(
    data: Any, rank: int = 0, world_size: int = 1, *, build: Build, folder: Path, tasks: int
) -> Iterator[None]:
    """Build the datasets of all parts, and write their card: a step of a datatrove pipeline."""
    from datasets import concatenate_datasets, load_from_disk

    parts = sorted(folder.glob("part-*/state.json"))
    if len(parts) < tasks:
        raise DataError(f"{folder}: {tasks - len(parts)} of {tasks} tasks failed. Run it again.")
    run_build(build, rows=concatenate_datasets([load_from_disk(str(p.parent)) for p in parts]))
    write_card(Store.open(build.reading.out))
    shutil.rmtree(folder)
    yield from ()


def run_tasks(
    build: Build, tasks: int | None, workers: int | None, slurm: Mapping[str, Any] | None
) -> str:
    """Build by tasks; return a sentence if they were only submitted, else "".

    Raises PluginError without datatrove, ConfigError for a Slurm argument that it does not accept,
    and the errors of tasks.
    """
    if find_spec("datatrove") is None:
        raise PluginError(
            "--tasks and --slurm need datatrove. Install it: pip install "
            "'hf-rlhf-traces[datatrove]'. Without them, `build` uses the cores of this machine."
        )
    from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor

    count = tasks or cores()
    reading = build.reading
    datasets = {builder.dataset: builder.settings for builder in build.builders}
    inputs = [reading.settings(), reading.sources(), build.form.settings(), datasets, count]
    home = reading.out.absolute() / "build" / digest(inputs)
    parts = home / "parts"
    if not parts.exists():  # they are built: finished tasks are to run again
        shutil.rmtree(home, ignore_errors=True)
        parts.mkdir(parents=True)
    arguments = _slurm_arguments(slurm) if slurm else {}

    def executor(name: str, step: Any, tasks: int, **others: Any) -> Any:
        others.update(pipeline=[step], tasks=tasks, logging_dir=str(home / "logs" / name))
        if slurm:
            return SlurmPipelineExecutor(job_name=f"traces_{name}", **arguments, **others)
        return LocalPipelineExecutor(**others)

    step = partial(read_part, blocks=input_blocks(reading), options=reading.options, folder=parts)
    first = executor("read", step, count, workers=workers or -1)
    last = partial(complete, build=build, folder=parts, tasks=count)
    executor("complete", last, 1, skip_completed=False, depends=first).run()
    return f"Submitted {count} tasks. Logs: {home / 'logs'}" if slurm else ""


def _slurm_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    from datatrove.executor import SlurmPipelineExecutor

    values = {"qos": "", **given}
    if sys.prefix != sys.base_prefix and not {"venv_path", "env_command"} & values.keys():
        values["venv_path"] = str(Path(sys.prefix) / "bin" / "activate")
    try:
        inspect.signature(SlurmPipelineExecutor).bind(pipeline=[], tasks=1, **values)
    except TypeError as error:
        raise ConfigError([Problem("--slurm", f"{error}.")]) from error
    return values

"""The first pass of `build` as datatrove tasks, on this machine or on a Slurm cluster.

Each task builds its shards into DIR/build/KEY/, with their facts beside them; one task then
completes the datasets as `build` does on one machine. KEY is a digest of the files and settings.
Finished tasks are not run again by the same command.
"""

import inspect
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from hf_rlhf.errors import ConfigError, DataError, PluginError, Problem, did_you_mean
from hf_rlhf.steps import digest
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_traces.blocks import cores
from hf_rlhf_traces.building import Shard
from hf_rlhf_traces.dataset_card import write_card
from hf_rlhf_traces.pipeline import Build, FileShards, ShardFacts, input_shards, run_build
from hf_rlhf_traces.store import Store

PLAN = "shards.msgpack"


def build_shards(
    data: Any, rank: int = 0, world_size: int = 1, *, job: FileShards
) -> Iterator[None]:
    """Build the shards of a task: a step of a datatrove pipeline."""
    assert job.folder is not None
    plan = msgspec.msgpack.decode((job.folder / PLAN).read_bytes(), type=list[Shard])
    for shard in plan[rank::world_size]:
        _facts_file(job.folder, shard).write_bytes(msgspec.msgpack.encode(job(shard)))
    yield from ()


def complete(
    data: Any, rank: int = 0, world_size: int = 1, *, build: Build, folder: Path
) -> Iterator[None]:
    """Complete the datasets and write their card: a step of a datatrove pipeline."""
    run_build(build, folder=folder, first_pass=_built_shards)
    write_card(Store.open(build.reading.out))
    yield from ()


def _built_shards(job: FileShards, shards: Sequence[Shard]) -> Iterator[ShardFacts]:
    assert job.folder is not None
    for shard in shards:
        path = _facts_file(job.folder, shard)
        if not path.exists():
            raise DataError(f"{path} is missing: a task failed. The same command runs it again.")
        yield msgspec.msgpack.decode(path.read_bytes(), type=ShardFacts)


def _facts_file(folder: Path, shard: Shard) -> Path:
    return folder / f"facts-{shard.number:05d}.msgpack"


def run_tasks(build: Build, tasks: int | None, workers: int | None, slurm: str | None) -> str:
    """Build by tasks; return a sentence where they were only submitted, else "".

    Raises PluginError where datatrove is not installed, ConfigError for a Slurm argument that it
    does not take, and whatever the tasks raise.
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
    shards = home / "shards"
    if not shards.exists():  # they were moved: finished tasks are to run again
        shutil.rmtree(home, ignore_errors=True)
        shards.mkdir(parents=True)
    arguments = _slurm_arguments(slurm) if slurm else {}

    def executor(name: str, step: Any, tasks: int, **others: Any) -> Any:
        others.update(pipeline=[step], tasks=tasks, logging_dir=str(home / "logs" / name))
        if slurm:
            return SlurmPipelineExecutor(job_name=f"traces_{name}", **arguments, **others)
        return LocalPipelineExecutor(**others)

    atomic_write_bytes(shards / PLAN, msgspec.msgpack.encode(input_shards(reading)))
    job = build.first_job(shards)
    first = executor("shards", partial(build_shards, job=job), count, workers=workers or -1)
    last = partial(complete, build=build, folder=shards)
    executor("complete", last, 1, skip_completed=False, depends=first).run()
    return f"Submitted {count} tasks. Logs: {home / 'logs'}" if slurm else ""


def _slurm_arguments(text: str) -> dict[str, Any]:
    from datatrove.executor import SlurmPipelineExecutor

    values = dict(part.partition("=")[::2] for part in text.split(","))
    known = list(inspect.signature(SlurmPipelineExecutor).parameters)
    problems = [
        Problem(f"--slurm: {name}", f"is not known{did_you_mean(name, known)}.")
        for name in values
        if name not in known
    ]
    problems += [
        Problem(f"--slurm: {name}", "is missing.", f"Add {name}=….")
        for name in ("partition", "time")
        if not values.get(name)
    ]
    if problems:
        raise ConfigError(problems)
    if sys.prefix != sys.base_prefix and not {"venv_path", "env_command"} & values.keys():
        values["venv_path"] = str(Path(sys.prefix) / "bin" / "activate")
    numbers = {name: int(value) for name, value in values.items() if value.isdecimal()}
    return {"qos": "", **values, **numbers}

"""The first pass of `pipeline` as datatrove tasks, on this machine or on a Slurm cluster.

Each task builds its shards into DIR/pipeline/KEY/, with what came of their rows beside them; one
task then completes the datasets as `pipeline` does on one machine. KEY is a digest of the files and
settings. Tasks that were finished are not run again by the same command.
"""

import inspect
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from hf_rlhf.data import near
from hf_rlhf.errors import ConfigError, DataError, PluginError, Problem
from hf_rlhf.steps import digest
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_traces.blocks import cores
from hf_rlhf_traces.building import Shard
from hf_rlhf_traces.dataset_card import write_card
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.pipeline import FileShards, ShardFacts, first_job, input_shards, run_pipeline
from hf_rlhf_traces.read_files import Reading
from hf_rlhf_traces.store import Store

PLAN = "shards.msgpack"


def build_shards(
    data: Any, rank: int = 0, world_size: int = 1, *, job: FileShards
) -> Iterator[None]:
    """Build the shards of a task: a step of a datatrove pipeline."""
    plan = msgspec.msgpack.decode((job.folder / PLAN).read_bytes(), type=list[Shard])
    for shard in plan[rank::world_size]:
        _facts_file(job.folder, shard).write_bytes(msgspec.msgpack.encode(job(shard)))
    yield from ()


def complete(
    data: Any, rank: int = 0, world_size: int = 1, *, reading: Reading, form: Format, folder: Path
) -> Iterator[None]:
    """Put the shards of all tasks together, and write the card: a step of a datatrove pipeline."""
    run_pipeline(reading, form, folder=folder, first_pass=_built_shards)
    write_card(Store.open(reading.out))
    yield from ()


def _built_shards(job: FileShards, shards: Sequence[Shard]) -> Iterator[ShardFacts]:
    for shard in shards:
        path = _facts_file(job.folder, shard)
        if not path.exists():
            raise DataError(f"{path} is missing: a task failed. The same command runs it again.")
        yield msgspec.msgpack.decode(path.read_bytes(), type=ShardFacts)


def _facts_file(folder: Path, shard: Shard) -> Path:
    return folder / f"facts-{shard.number:05d}.msgpack"


def run_tasks(
    reading: Reading, form: Format, tasks: int | None, workers: int | None, slurm: str | None
) -> str:
    """Run the pipeline as tasks; return a sentence where they were only submitted, else "".

    Raises PluginError where datatrove is not installed, ConfigError for a Slurm argument that it
    does not take, and whatever the tasks raise.
    """
    if find_spec("datatrove") is None:
        raise PluginError(
            "--tasks and --slurm need datatrove. Install it: pip install "
            "'hf-rlhf-traces[datatrove]'. Without them, `pipeline` uses the cores of this machine."
        )
    from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor

    count = tasks or cores()
    key = digest([reading.settings(), reading.sources(), form.settings(), count])
    home = reading.out.absolute() / "pipeline" / key
    if not (home / "shards").exists():  # tasks that ended there are to run again
        shutil.rmtree(home, ignore_errors=True)
        (home / "shards").mkdir(parents=True)
    plan = msgspec.msgpack.encode(input_shards(reading))
    atomic_write_bytes(home / "shards" / PLAN, plan)
    job = first_job(reading, form, home / "shards")
    last = partial(complete, reading=reading, form=form, folder=home / "shards")
    executor: Any = LocalPipelineExecutor
    shared: Mapping[str, Any] = {}
    if slurm:
        known = list(inspect.signature(SlurmPipelineExecutor).parameters)
        executor, shared = SlurmPipelineExecutor, _slurm_arguments(slurm, known)
    extra = {"job_name": "traces_shards"} if slurm else {}
    first = executor(
        pipeline=[partial(build_shards, job=job)],
        tasks=count,
        workers=workers or -1,
        logging_dir=str(home / "logs" / "shards"),
        **shared,
        **extra,
    )
    extra = {"job_name": "traces_complete"} if slurm else {}
    executor(
        pipeline=[last],
        tasks=1,
        logging_dir=str(home / "logs" / "complete"),
        skip_completed=False,
        depends=first,
        **shared,
        **extra,
    ).run()
    return f"Submitted {count} tasks. Logs: {home / 'logs'}" if slurm else ""


def _slurm_arguments(text: str, known: Sequence[str]) -> dict[str, Any]:
    values = dict(part.partition("=")[::2] for part in text.split(","))
    problems = [
        Problem(f"--slurm: {name}", f"is not known{near(name, known)}.")
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
    return {
        "qos": "",
        **{name: int(value) if value.isdecimal() else value for name, value in values.items()},
    }

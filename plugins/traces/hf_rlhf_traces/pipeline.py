"""`read` and `steps` as datatrove pipelines: the same functions, on as many machines as there are.

Four jobs, each after the one before:
  read           tasks read blocks of the files
  read_gather    one task settles what is for all files together (repeated ids, the split), and
                 writes traces.jsonl
  steps          tasks build the rows of blocks of traces.jsonl
  steps_gather   one task puts them behind one another

The gathering is that of the verbs, so that what is written does not depend on who made which part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.executor.base import PipelineExecutor
from datatrove.pipeline.base import PipelineStep

from hf_rlhf_traces.building import TRACES, Built, build
from hf_rlhf_traces.dataset_card import write_card
from hf_rlhf_traces.engine import Block, blocks
from hf_rlhf_traces.format_options import store_format
from hf_rlhf_traces.gathering import read_block
from hf_rlhf_traces.job import DATASET, Job
from hf_rlhf_traces.read_command import read
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.spool import Spool
from hf_rlhf_traces.store import Store


class Blocks(PipelineStep):  # type: ignore[misc]
    """Reader: the blocks of a task that are not made yet."""

    name = "blocks"
    type = "Reader"

    def __init__(self, job: Job, stage: str) -> None:
        super().__init__()
        self.job, self.stage = job, stage

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Block]:
        """Yield them."""
        for block in self.job.spool(self.stage).blocks(rank, world_size):
            self.stat_update("bytes", value=block.size, unit="block")
            yield block


class Make(PipelineStep):  # type: ignore[misc]
    """Writer: keeps what the function of a stage makes of each block."""

    name = "make"
    type = "Writer"

    def __init__(self, job: Job, stage: str) -> None:
        super().__init__()
        self.job, self.stage = job, stage

    def run(self, data: Iterator[Block], rank: int = 0, world_size: int = 1) -> Iterator[Block]:
        """Keep it, and yield the block."""
        work, spool = WORK[self.stage](self.job), self.job.spool(self.stage)
        for block in data:
            with self.track_time("block"):
                spool.keep(block, work(block))
            yield block


class Gather(PipelineStep):  # type: ignore[misc]
    """Writer, of one task: puts together what was made in a stage."""

    name = "gather"
    type = "Writer"

    def __init__(self, job: Job, stage: str) -> None:
        super().__init__()
        self.job, self.stage = job, stage

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Block]:
        """Do so, and yield nothing."""
        GATHER[self.stage](self.job, self.job.spool(self.stage))
        self.job.spool(self.stage).clear()
        yield from ()


def _reading(job: Job) -> Callable[[Block], Any]:
    return partial(read_block, options=job.reading["options"])


def _building(job: Job) -> Callable[[Block], Any]:
    split = Split.of_report(Store.open(job.store).report("read"))
    return Built(job.rows, split)


def gather_read(job: Job, spool: Spool) -> None:
    """Write traces.jsonl and the report, and plan what follows."""
    read(**job.reading, each=spool.each)
    store_format(Store.open(job.store), job.form, overwrite=job.reading["overwrite"])
    job.spool(DATASET).plan(blocks(job.store / TRACES))


def gather_steps(job: Job, spool: Spool) -> None:
    """Write the dataset, its report and the card."""
    store = Store.open(job.store)
    build(store, job.rows, job.settings, each=spool.each)
    write_card(store)


WORK: Mapping[str, Callable[[Job], Callable[[Block], Any]]] = {
    "read": _reading,
    DATASET: _building,
}
GATHER: Mapping[str, Callable[[Job, Spool], None]] = {"read": gather_read, DATASET: gather_steps}


@dataclass(frozen=True)
class Slurm:
    """How tasks are run on a cluster: fields of datatrove's SlurmPipelineExecutor."""

    partition: str
    time: str
    qos: str = ""
    cpus_per_task: int = 1
    mem_per_cpu_gb: int = 4
    venv_path: str = ""
    env_command: str = ""


def executors(
    job: Job,
    *,
    tasks: int,
    workers: int,
    slurm: Slurm | None = None,
    stages: Sequence[str] = ("read", DATASET),
) -> list[PipelineExecutor]:
    """Return the jobs in the order in which they run; to run the last, runs those before it.

    Args:
        job: what is made.
        tasks: of `read` and of `steps`.
        workers: how many tasks run at once; -1 is all of them.
        slurm: how, on a cluster; None runs them here.
        stages: those to run. Their blocks are planned, or will be by the stage before.
    """
    made: list[PipelineExecutor] = []
    for stage in stages:
        working = [Blocks(job, stage), Make(job, stage)]
        made.append(_executor(job, stage, working, tasks, workers, slurm, made[-1:]))
        made.append(_executor(job, f"{stage}_gather", [Gather(job, stage)], 1, 1, slurm, made[-1:]))
    return made


def _executor(
    job: Job,
    name: str,
    pipeline: list[PipelineStep],
    tasks: int,
    workers: int,
    slurm: Slurm | None,
    before: list[PipelineExecutor],
) -> PipelineExecutor:
    shared: dict[str, Any] = {
        "pipeline": pipeline,
        "tasks": tasks,
        "workers": workers,
        "logging_dir": str(job.home / "logs" / name),
        "depends": before[0] if before else None,
        # Tasks pass over the parts that are there, and what is gathered must be so anew.
        "skip_completed": False,
    }
    if slurm is None:
        return LocalPipelineExecutor(**shared)
    return SlurmPipelineExecutor(**shared, job_name=f"traces_{name}", **asdict(slurm))

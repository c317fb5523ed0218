"""What a training run will do, before anything of it is done: `python -m hf_rlhf.train --dry_run`.

Everything is resolved and checked as for the run itself. Nothing is written, and no weights that
are kept are trained: where the time is measured, it is on a copy in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.cards.markdown import counted, duration
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.distributed import processes
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.runs.estimate import disk_need, planned_steps
from hf_rlhf.runs.phases import chain_of, said_of
from hf_rlhf.runs.preflight_data import data_lines
from hf_rlhf.runs.resolve import prepare
from hf_rlhf.runs.resolve_phases import prepare_chain
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import Space, human
from hf_rlhf.storage.record import load_record
from hf_rlhf.training.run_folder import previous_record
from hf_rlhf.training.speed import Speed, speed_of


@dataclass(frozen=True)
class Planned:
    """One run of a plan: the only one, or a phase."""

    name: str
    run: Run
    data: str
    start: str
    steps: int
    tokens: Mapping[str, int] | None
    """`tokens` of an epoch and `trained`, those with a loss; None where the trainer cannot say."""
    speed: Speed
    disk: int | None
    """Bytes; None of a model that is of no known kind."""
    done: int
    """Steps that the record in its folder says are done."""

    def as_json(self) -> dict[str, Any]:
        """Return the numbers."""
        training = self.run.training
        return {
            "name": self.name,
            "data": self.data,
            "rows": len(self.run.dataset["train"]),
            "tokens_an_epoch": dict(self.tokens) if self.tokens else None,
            "epochs": training.num_train_epochs if training.max_steps <= 0 else None,
            "steps": self.steps,
            "done": self.done,
            "starts_from": self.start,
            "learning_rate": training.learning_rate,
            "seconds": self.seconds,
            "seconds_from": self.speed.basis,
            "disk_bytes": self.disk,
        }

    @property
    def seconds(self) -> float:
        """Return the time that the steps still to do will take."""
        return self.speed.seconds_a_step * max(self.steps - self.done, 0)


def plan(file: RunFile, plugin: str | None, given: Sequence[str] = ()) -> list[Planned]:
    """Return what a run file will do, phase by phase.

    Raises ConfigError with every problem, and RunFolderError for a folder that holds another run,
    as the run itself would.
    """
    chain = chain_of(file, plugin, given)
    if chain is None:
        run = prepare(file, plugin=plugin)
        previous_record(run)
        asked = run.spec.dataset
        data = ", ".join([asked.name, *filter(None, [str(asked.arguments.get("form") or "")])])
        return [_planned(run.spec.plugin, run, data, _start(run), ())]
    face, runs = prepare_chain(chain)
    previous_record(face)
    folders = [link.folder for link in chain.links]
    found: list[Planned] = []
    for link, run in zip(chain.links, runs, strict=True):
        start = f"what phase {found[-1].name} has made" if found else _start(run)
        data = said_of(link.own) or run.spec.dataset.name
        found.append(_planned(link.name, run, data, start, folders))
    return found


def _planned(name: str, run: Run, data: str, start: str, others: Sequence[Path]) -> Planned:
    steps = planned_steps(run)
    count = getattr(run.trainer_class, "tokens", None)
    tokens = count(run) if count is not None else None
    try:
        disk = disk_need(run, steps).total
    except ValueError:
        disk = None
    speed = speed_of(run, steps, tokens, others)
    return Planned(name, run, data, start, steps, tokens, speed, disk, _done(run.folder))


def _start(run: Run) -> str:
    base = str(run.model.model_name_or_path)
    return f"{run.spec.adapter} on {base}" if run.adapter is not None else base


def _done(folder: Path) -> int:
    try:
        record = load_record(folder)
    except HfRlhfError:
        return 0
    return int((record["training"] or {}).get("steps") or 0)


def lines(plans: Sequence[Planned], plugin: str) -> list[str]:
    """Return a plan as text."""
    folder = plans[-1].run.folder
    folder = folder.parent.parent if len(plans) > 1 else folder
    on = counted(processes(), "process", "processes")
    found = [f"Plan of {plugin} in {folder}, on {on}. Nothing is trained or written."]
    for number, one in enumerate(plans, start=1):
        found += ["", f"{number} {one.name}", *(f"  {line}" for line in _about(one))]
    seconds = sum(one.seconds for one in plans)
    steps = sum(one.steps for one in plans)
    known = [one.disk for one in plans if one.disk is not None]
    found += [
        "",
        f"in all  {counted(steps, 'optimizer step')}, about {duration(seconds)} of training "
        "(measuring before and after is not counted)",
        f"disk    about {human(sum(known))}; {Space.of(folder)}",
    ]
    return found


def _about(one: Planned) -> list[str]:
    run, training = one.run, one.run.training
    rows = len(run.dataset["train"])
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
    much = f"{training.num_train_epochs:g} epochs, " if training.max_steps <= 0 else ""
    tokens = "tokens not counted"
    if one.tokens:
        tokens = "{tokens:,} tokens an epoch ({trained:,} with a loss)".format(**one.tokens)
    kind = f"LoRA, r {run.model.lora_r}" if run.model.use_peft else "all weights"
    said = [
        f"from    {one.start}",
        f"data    {one.data}: {rows:,} rows, {tokens}",
        f"train   {much}{counted(one.steps, 'step')} of {counted(batch * processes(), 'row')}, "
        f"learning rate {training.learning_rate:g}, {kind}",
        f"time    about {duration(one.seconds)} ({one.speed.basis})",
    ]
    said[2:2] = [f"rows    {line}" for line in data_lines(run)[1:]]
    if one.disk is not None:
        said.append(f"disk    about {human(one.disk)}")
    if one.done:
        said.append(f"done    {one.done} of {counted(one.steps, 'step')}")
    return said

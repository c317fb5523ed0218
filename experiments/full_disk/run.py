"""A GRPO run on disks that are too small, fill up, or whose process is killed at any file.

    python experiments/full_disk/run.py sizes filled shorn inodes kills

Needs Linux and root: each trial has its own tmpfs. A trial is a command that fails or is killed,
then space, then the same command again; its adapter must equal an undisturbed run's bit for bit.
"""

import argparse
import hashlib
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from opens import Opens, resize, tmpfs, used

import hf_rlhf.training.start  # noqa: F401 - for the runs that are forked from here
from hf_rlhf.config import load_component
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.storage.checkpoints import valid_checkpoints
from hf_rlhf.storage.record import load_record
from hf_rlhf.testing.offering import offering
from hf_rlhf.train import main as train_main

MIB = 2**20
ROOMY = 256 * MIB
STEPS = 4


@dataclass
class Scattered:
    """A reward that differs from completion to completion, so that every step moves the weights."""

    def __call__(self, prompts, completions, **_):
        """Score each completion with a number that its text alone decides."""
        digests = (hashlib.sha256(repr(text).encode()).digest()[0] for text in completions)
        return [digest / 255 for digest in digests]


def run_file(folder: Path, **changes: object) -> dict:
    """Return a run of four steps that takes seconds."""
    return {
        "plugin": "refiner_grpo",
        "model_name_or_path": "package://hf_rlhf_refiner/tiny_policy",
        "output_dir": str(folder / "run"),
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": ["q_proj", "v_proj"],
        "dataset": {"name": "tiny_world", "train_rows": 16, "test_rows": 2},
        "rewards": [{"name": "scattered"}],
        "evaluation": {"rows": 2, "batch_size": 2, "samples": 1},
        "num_generations": 2,
        "prompts_per_step": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_steps": 1,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "dataloader_pin_memory": False,
        **changes,
    }


@dataclass
class Ended:
    """How one process of a run ended."""

    status: int
    """Its exit status; of a killed one, minus the signal."""
    output: str

    @property
    def step(self) -> int:
        """The last optimizer step that it reported."""
        steps = re.findall(rf"^step +(\d+)/{STEPS}", self.output, re.MULTILINE)
        return int(steps[-1]) if steps else 0

    @property
    def resumed_at(self) -> int:
        """The step of the checkpoint that it went on from."""
        match = re.search(r"^resuming from .*checkpoint-(\d+)$", self.output, re.MULTILINE)
        return int(match[1]) if match else 0

    @property
    def message(self) -> str:
        """Its error message, in one line."""
        match = re.search(r"^error: (.*)", self.output, re.MULTILINE | re.DOTALL)
        return " ".join(match[1].split()) if match else ""


class Laboratory:
    """Where runs are started: one scratch folder, one mount."""

    def __init__(self, scratch: Path, **changes: object) -> None:
        self.mount = scratch / "disk"
        self.file = scratch / "run.yaml"
        self.log = scratch / "log.txt"
        self.file.write_text(RunFile.from_mapping(run_file(self.mount, **changes)).to_yaml())

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.mount / "run"

    def start(self) -> int:
        """Start the run's command in a process of its own; return its id."""
        child = os.fork()
        if child:
            return child
        with self.log.open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        status = 1
        try:
            status = train_main(["--config", str(self.file)])
        except BaseException:  # noqa: BLE001 - nothing of this process may run in its copy
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)

    def end(self, child: int) -> Ended:
        """Wait for a process."""
        try:
            _, status = os.waitpid(child, 0)
        except BaseException:  # this process is asked to end
            os.kill(child, signal.SIGKILL)
            raise
        return Ended(os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"))

    def adapter(self) -> str:
        """Return the digest of the finished run's adapter."""
        content = (self.folder / "adapter" / "adapter_model.safetensors").read_bytes()
        return hashlib.sha256(content).hexdigest()

    def valid(self) -> list[int]:
        """Return the steps of the valid checkpoints."""
        paths = valid_checkpoints(self.folder / "checkpoints")
        return [int(path.name.split("-")[1]) for path in paths]


@dataclass
class Trial:
    """What came of one disturbed run and of the same command after it."""

    name: str
    first: Ended
    checkpoints: list[int]
    again: Ended | None = None
    same: bool = False
    problem: str = ""

    @property
    def lost(self) -> int:
        """How many optimizer steps had to be done again."""
        if self.again is None or self.first.status == 0:
            return 0
        return max(self.first.step - self.again.resumed_at, 0)

    def row(self) -> str:
        """Return the trial as a line of the table."""
        newest = f"checkpoint-{self.checkpoints[-1]}" if self.checkpoints else "none"
        message = self.first.message or ("finished" if self.first.status == 0 else "")
        message = re.sub(r"/\S*/disk/run\b", "RUN", message)[:110]
        outcome = self.problem or ("same weights" if self.same else "OTHER WEIGHTS")
        return (
            f"| {self.name} | {self.first.status} | {message} | {newest} | "
            f"{self.first.step} | {self.lost} | {outcome} |"
        )


HEAD = (
    "| trial | exit status | message | newest valid | steps done | done again | in the end |\n"
    "|---|---|---|---|---|---|---|"
)


class Experiment:
    """The trials, each against the run that nothing disturbed."""

    def __init__(self, scratch: Path, **changes: object) -> None:
        self.lab = Laboratory(scratch, **changes)
        with tmpfs(self.lab.mount, str(ROOMY)):
            ended = self.lab.end(self.lab.start())
            if ended.status:
                raise SystemExit(ended.output)
            self.reference = self.lab.adapter()
            self.size = used(self.lab.mount)

    def finish(self, trial: Trial, *, killed: bool = False) -> Trial:
        """Judge what a run left, give it space, and let the same command finish it."""
        first = trial.first
        if "Traceback" in first.output:
            trial.problem = "TRACEBACK"
        elif not killed and first.status and not first.message:
            trial.problem = "NO MESSAGE"
        elif not killed and first.status not in (0, 2):
            trial.problem = "WRONG STATUS"
        resize(self.lab.mount, ROOMY, "nr_inodes=0")
        trial.again = self.lab.end(self.lab.start())
        if trial.again.status or load_record(self.lab.folder).status != "finished":
            trial.problem += f" NOT FINISHED: {trial.again.output[-400:]!r}"
        else:
            trial.same = self.lab.adapter() == self.reference
        if trial.checkpoints and first.status and trial.again.resumed_at != trial.checkpoints[-1]:
            trial.problem += f" RESUMED AT {trial.again.resumed_at}"
        if list(self.lab.folder.rglob("*.tmp*")):
            trial.problem += " LEFTOVERS"
        return trial

    def sizes(self, chosen: Sequence[float] = ()) -> Iterator[Trial]:
        """A disk of each of these sizes, in MiB, from the start."""
        for size in chosen or [self.size / MIB * 1.35 * (n + 1) / 20 for n in range(20)]:
            with tmpfs(self.lab.mount, str(int(size * MIB))):
                first = self.lab.end(self.lab.start())
                yield self.finish(Trial(f"disk of {size:.2f} MiB", first, self.lab.valid()))

    def inodes(self, chosen: Sequence[float] = ()) -> Iterator[Trial]:
        """A disk with room, but for so many files only."""
        for count in map(int, chosen or (1, 3, 6, 12, 20, 40, 60, 80)):
            with tmpfs(self.lab.mount, str(ROOMY), f"nr_inodes={count}"):
                first = self.lab.end(self.lab.start())
                yield self.finish(Trial(f"{count} files", first, self.lab.valid()))

    def filled(self, chosen: Sequence[float] = ()) -> Iterator[Trial]:
        """A disk that others fill once the run has begun, but for so many MiB."""
        for left in chosen or [self.size / MIB * 1.2 * n / 19 for n in range(20)]:

            def fill(left: float = left) -> bool:
                resize(self.lab.mount, used(self.lab.mount) + int(left * MIB))
                return False

            yield self.disturbed(f"{left:.2f} MiB left", Nth("before.json", 0), fill)

    def shorn(self, chosen: Sequence[float] = ()) -> Iterator[Trial]:
        """A disk that is full from the n-th file of a save on."""

        def fill() -> bool:
            resize(self.lab.mount, used(self.lab.mount))
            return False

        yield from self.at_each_open(fill, chosen, "full at")

    def kills(self, chosen: Sequence[float] = ()) -> Iterator[Trial]:
        """SIGKILL while the n-th file is being opened."""

        def kill() -> bool:
            os.kill(self.child, signal.SIGKILL)
            return True

        yield from self.at_each_open(kill, chosen, "killed at")

    def at_each_open(
        self, act: Callable[[], bool], chosen: Sequence[float], verb: str
    ) -> Iterator[Trial]:
        """Disturb at the n-th open of the second save or of what follows it, until there is none.

        The saves after the second one are left out: their files are the same.
        """
        for number in map(int, chosen or itertools.count(1)):
            nth = Nth(f"checkpoint-{STEPS // 2}/", number - 1, f"checkpoint-{STEPS // 2 + 1}/")
            trial = self.disturbed("", nth, act)
            if not nth.path:
                return  # the run opens fewer files than that
            trial.name = f"{verb} {number}: {_plain(Path(nth.path).relative_to(self.lab.folder))}"
            yield trial

    def disturbed(self, name: str, chosen: "Nth", act: Callable[[], bool]) -> Trial:
        """Start a run, and `act` once, while it waits to open the first path that is `chosen`."""
        with tmpfs(self.lab.mount, str(ROOMY)):
            with closing(Opens(self.lab.mount)) as opens:
                self.child = self.lab.start()
                for path in opens.of(self.child):
                    if chosen(path) and act():
                        break
            first = self.lab.end(self.child)
            trial = Trial(name, first, self.lab.valid())
            return self.finish(trial, killed=first.status == -signal.SIGKILL)


class Nth:
    """Chooses the n-th path that a run opens from the first with `begin` in it on.

    From the first with `pause` in it on, files of checkpoints are not counted; nor is a file that
    is opened again at once, since nothing has been written meanwhile.
    """

    def __init__(self, begin: str, n: int, pause: str = "\0") -> None:
        self.begin, self.pause, self.left = begin, pause, n
        self.begun = self.paused = False
        self.path = self.before = ""

    def __call__(self, path: str) -> bool:
        """Return whether this is the one."""
        self.begun |= self.begin in path
        self.paused |= self.pause in path
        again, self.before = path == self.before, path
        if self.path or again or not self.begun or (self.paused and "/checkpoints" in path):
            return False
        self.left -= 1
        if self.left < 0:
            self.path = path
        return bool(self.path)


def _plain(path: Path) -> str:
    """Return a path without what is random in it."""
    return re.sub(r"[0-9a-f]{32}", "*", re.sub(r"\.tmp\w{6}$", ".tmp*", str(path)))


@offering({"rewards": {"scattered": Scattered}}, package="full-disk")
def main() -> int:
    """Run the trials that the command line names, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "trials", nargs="+", help="sizes, filled, shorn, inodes, kills; kills:1-9,17 for some only"
    )
    parser.add_argument("--full", action="store_true", help="train every weight, not a LoRA")
    parser.add_argument("--keep", type=int, help="save_total_limit")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unmount first
    load_component("trainers", "refiner_grpo")  # what takes seconds to import is imported once
    changes: dict = {"save_total_limit": chosen.keep} if chosen.keep else {}
    if chosen.full:
        changes |= {"use_peft": False, "lora_r": 16, "lora_target_modules": None}
    scratch = Path(tempfile.mkdtemp(prefix="full_disk-"))
    bad = 0
    try:
        experiment = Experiment(scratch, **changes)
        print(f"undisturbed, the run takes {experiment.size / MIB:.2f} MiB\n")
        for argument in chosen.trials:
            name, _, numbers = argument.partition(":")
            began = time.monotonic()
            print(f"## {name}\n\n{HEAD}", flush=True)
            done = []
            for trial in getattr(experiment, name)(_numbers(numbers)):
                print(trial.row(), flush=True)
                done.append(trial)
            bad += sum(not trial.same or bool(trial.problem) for trial in done)
            print(summary(done, time.monotonic() - began), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return bad


def _numbers(text: str) -> list[float]:
    """Read 1-5,9: the integers from 1 to 5, and 9."""
    numbers: list[float] = []
    for piece in text.split(",") if text else ():
        first, _, last = piece.partition("-")
        numbers += range(int(first), int(last) + 1) if last else [float(first)]
    return numbers


def summary(done: list[Trial], seconds: float) -> str:
    """Return the figures of one kind of trial."""
    reached = sum(trial.first.step for trial in done)
    lost = sum(trial.lost for trial in done)
    good = sum(trial.same and not trial.problem for trial in done)
    recovered = 1 - lost / reached if reached else 1.0
    most = max((trial.lost for trial in done), default=0)
    return (
        f"\n{good} of {len(done)} ended with the undisturbed run's weights; {recovered:.1%} of "
        f"{reached} steps recovered, at most {most} done again ({seconds:.0f} s).\n"
    )


if __name__ == "__main__":
    sys.exit(main())

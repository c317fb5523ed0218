"""Kill training runs with SIGKILL at random moments, go on, and compare with an undisturbed run.

A parent imports the libraries once and forks one child for each session of a run: the child does
what the command does, `hf_rlhf.train.main`, on the same arguments, and is killed for good. Killed
and undisturbed run must agree in every weight, every scored completion, and the record, but for
times, costs, and the list of sessions. Exits with 1 if any do not.
"""

import argparse
import itertools
import json
import mmap
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # more threads, and forks would not be safe

PHASES = {
    "write_record": "record",
    "render_card": "card",
    "reward_curve": "card",
    "merge_adapter": "merge",
    "prune": "sealing",
    "seal": "sealing",
    "_save_checkpoint": "checkpoint",
    "save_model": "weights",
    "save_pretrained": "weights",
    "_generate_and_score_completions": "generation",
    "evaluate": "evaluation",
    "_load_from_checkpoint": "loading a checkpoint",
    "_load_optimizer_and_scheduler": "loading a checkpoint",
    "training_step": "optimizer steps",
    "from_run": "loading the model",
    "resolve_run": "preparing",
    "open": "preparing",
    "newest_valid": "loading a checkpoint",
    "samples_table": "showing results",
    "results_table": "showing results",
    "_train_and_measure": "between two of these",
    "_inner_training_loop": "training, other",
    "go": "other",
}
"""What a kill hit, by the innermost of these functions on the stack."""

UNCOMPARED = {
    # Times, what differs because there were kills, and the folder's own name.
    *("started", "finished", "sessions", "run_id", "command", "publish", "environment"),
    *("seconds", "usage", "output_dir", "logging_dir", "run_name", "config_file", "peak_memory"),
}
LABELS = ("gradient_accumulation_steps", "steps_per_generation", "num_iterations", "use_peft")
TIMES = ("_runtime", "_per_second", "step_time", "profiling/Time")


def main() -> int:
    """Run what the command line asks for; print a table."""
    parser = options(__doc__)
    parser.set_defaults(kills=50)
    parser.add_argument("--matrix", action="store_true", help="the matrix, not the one run")
    parser.add_argument("--command", action="store_true", help="kill the real command, not forks")
    chosen = parser.parse_args()
    Session.forked = not chosen.command
    preload()
    cells = [settings(cell) for cell in (matrix() if chosen.matrix else [{}])]
    labels = [{**{key: cell[key] for key in LABELS}, **lengths(cell)} for cell in cells]
    return measure_cells(chosen, list(zip(labels, cells, strict=True)), line)


def options(description: str | None) -> argparse.ArgumentParser:
    """Return the options of an experiment that kills runs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, required=True, help="where runs are written")
    parser.add_argument("--kills", type=int, default=10, help="kills of each cell, at least")
    parser.add_argument("--cells", type=int, nargs="*", help="only these, from 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="write the table's rows there, as JSON")
    return parser


def measure_cells(
    chosen: argparse.Namespace,
    cells: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    line: Callable[[Mapping[str, Any]], str],
) -> int:
    """Kill the runs of cells and print a line for each; return 1 if any differs.

    A cell is what its row of the table begins with, and its run file.
    """
    moments = random.Random(chosen.seed)
    rows = []
    for number, (labels, content) in enumerate(cells):
        if not chosen.cells or number in chosen.cells:
            folder = chosen.folder / f"{number:02}"
            rows.append({**labels, **measure(content, folder, chosen.kills, moments)})
            print(line(rows[-1]), flush=True)
            if chosen.results:
                chosen.results.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["max_difference"] != 0 or row["unequal"] for row in rows))


def preload() -> None:
    """Import what every session imports."""
    from accelerate.utils import is_deepspeed_available

    import hf_rlhf.runs.resolve
    import hf_rlhf.training.start  # noqa: F401
    import hf_rlhf_refiner.trainer  # noqa: F401

    if is_deepspeed_available():
        import deepspeed  # noqa: F401


def settings(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of 16 optimizer steps over two epochs; `cell` changes it."""
    content = {
        "schema": 1,
        "plugin": "refiner_grpo",
        "model_name_or_path": "package://hf_rlhf_refiner/tiny_policy",
        "use_peft": True,
        "lora_r": 4,
        "lora_dropout": 0.1,
        "lora_target_modules": ["q_proj", "v_proj"],
        "dataset": {"name": "tiny_world", "train_rows": 8, "test_rows": 4},
        "judges": {"words": {"name": "lexical"}},
        "rewards": [
            {"name": "refiner_reward", "label": "refiner"},
            {"name": "answer_format", "label": "format", "weight": 0},
        ],
        "evaluation": {"rows": 4, "batch_size": 4, "samples": 2},
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "num_iterations": 2,
        "max_completion_length": 40,
        "max_steps": 16,
        "save_steps": 4,
        "save_total_limit": 2,
        "logging_steps": 1,
        "loss_type": "bnpo",
        "beta": 0.001,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "dataloader_pin_memory": False,
        **cell,
    }
    return {key: value for key, value in content.items() if value is not None}


def lengths(content: Mapping[str, Any]) -> dict[str, int]:
    """Return how long a run is and how often it saves."""
    return {"steps": content["max_steps"], "save_steps": content["save_steps"]}


def matrix() -> list[dict[str, Any]]:
    """Return what each cell changes; a save falls at the end of every cycle."""
    cells = []
    for adapted, accumulation, per_generation, iterations in itertools.product(
        (True, False), (1, 2), (1, 2, 4), (1, 2)
    ):
        cycle = max(per_generation * iterations // accumulation, 1)
        lora = ("lora_r", "lora_dropout", "lora_target_modules")
        cells.append(
            {
                "use_peft": adapted,
                "gradient_accumulation_steps": accumulation,
                "steps_per_generation": per_generation,
                "num_iterations": iterations,
                "save_steps": cycle,
                "max_steps": 2 * max(cycle, 4),
                **({} if adapted else dict.fromkeys(lora)),
            }
        )
    return cells


def measure(
    content: Mapping[str, Any], folder: Path, kills: int, moments: random.Random
) -> dict[str, Any]:
    """Kill runs of one run file until `kills` have hit; return how the resumed runs compare."""
    folder.mkdir(parents=True)
    config = folder / "run.json"
    config.write_text(json.dumps(content))
    undisturbed = Session(config, folder / "whole")
    seconds = undisturbed.end()
    if undisturbed.status:
        raise RuntimeError(f"the undisturbed run failed: {folder / 'whole.log'}")
    hits: Counter[str] = Counter()
    differences, unequal, lost = [], set(), []
    while hits.total() < kills:
        killed = folder / f"killed-{len(differences)}"
        while True:
            session = Session(config, killed)
            if hits.total() >= kills:
                session.end()
                break
            phase = session.kill(moments.uniform(0, seconds))
            if phase is None:
                break
            hits[phase] += 1
            lost.append(max(session.step() - newest_step(killed), 0))
        if session.status:
            raise RuntimeError(f"it did not go on ({session.status}): {killed}.log")
        differences.append(largest_difference(folder / "whole", killed))
        unequal |= set(differing(folder / "whole", killed))
    return {
        "runs": len(differences),
        "kills": hits.total(),
        "phases": dict(hits.most_common()),
        "steps_lost_at_most": max(lost, default=0),
        "steps_lost_mean": round(sum(lost) / max(len(lost), 1), 2),
        "max_difference": max(differences),
        "unequal": sorted(unequal),
    }


class Session:
    """One child that trains in `folder` until it is done or killed."""

    forked = True

    def __init__(self, config: Path, folder: Path) -> None:
        self.folder = folder
        self.status: int | None = None
        self.began = time.monotonic()
        # Shared with the child: the phase that it is in.
        self.current = mmap.mmap(-1, 64)
        log = Path(f"{folder}.log")
        self.log_before = log.stat().st_size if log.exists() else 0
        self.pid = os.fork()
        if self.pid == 0:
            self._train(config)

    def _train(self, config: Path) -> None:
        log = os.open(f"{self.folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        arguments = ["--config", str(config), "--output_dir", str(self.folder)]
        if not self.forked:
            os.execv(sys.executable, [sys.executable, "-m", "hf_rlhf.train", *arguments])
        threading.Thread(target=self._watch, args=(threading.get_ident(),), daemon=True).start()
        from hf_rlhf.train import main

        status = 70
        try:
            status = main(arguments)
        except Exception:  # noqa: BLE001 - os._exit below would lose it
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _watch(self, thread: int) -> None:
        while True:
            frame, phase = sys._current_frames().get(thread), None
            while frame is not None and phase is None:
                phase = PHASES.get(frame.f_code.co_name)
                frame = frame.f_back
            self.current[:] = (phase or "other").encode().ljust(64, b"\0")
            time.sleep(0.002)

    def phase(self) -> str:
        """Return what it was last seen to do."""
        return bytes(self.current).rstrip(b"\0").decode() or "starting"

    def step(self) -> int:
        """Return the last optimizer step that it has printed."""
        path = Path(f"{self.folder}.log")
        if not path.exists():
            return 0
        with path.open() as log:
            log.seek(self.log_before)
            steps = re.findall(r"^step +(\d+)/", log.read(), re.MULTILINE)
        return int(steps[-1]) if steps else 0

    def end(self) -> float:
        """Let it end; return its seconds."""
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        return time.monotonic() - self.began

    def kill(self, after: float) -> str | None:
        """Kill it `after` seconds; return what it was doing, None if it had ended by then."""
        while (left := self.began + after - time.monotonic()) > 0:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
                return None
            time.sleep(min(left, 0.01))
        os.kill(self.pid, signal.SIGKILL)
        self.end()
        return self.phase()


def newest_step(folder: Path) -> int:
    """Return the step of the newest valid checkpoint, 0 if there is none."""
    from hf_rlhf.storage.checkpoints import step_of, valid_checkpoints

    valid = valid_checkpoints(folder / "checkpoints")
    return step_of(valid[-1]) if valid else 0


def largest_difference(first: Path, second: Path) -> float:
    """Return the largest absolute difference of any weight of two runs, adapter and merged."""
    from safetensors.torch import load_file

    names = sorted(path.relative_to(first) for path in first.glob("*/*.safetensors"))
    if names != sorted(path.relative_to(second) for path in second.glob("*/*.safetensors")):
        return float("inf")
    largest = 0.0
    for name in names:
        here, there = load_file(first / name), load_file(second / name)
        if here.keys() != there.keys():
            return float("inf")
        largest = max(largest, *((here[key] - there[key]).abs().max().item() for key in here))
    return largest


def differing(first: Path, second: Path) -> Iterator[str]:
    """Yield the names of what differs between two runs beside their weights."""
    for path in sorted([*first.glob("samples.jsonl"), *first.glob("evaluation/*.json")]):
        name = path.relative_to(first)
        if path.read_bytes() != (second / name).read_bytes():
            yield str(name)
    yield from differing_paths(record(first), record(second))


def record(folder: Path) -> Any:
    """Return a run's record without what may differ."""
    return stripped(json.loads((folder / "run.json").read_text()))


def stripped(value: Any) -> Any:
    """Return `value` without times and what else is not compared."""
    if isinstance(value, dict):
        return {
            key: stripped(inner)
            for key, inner in value.items()
            if key not in UNCOMPARED and not any(ending in key for ending in TIMES)
        }
    return [stripped(inner) for inner in value] if isinstance(value, list) else value


def differing_paths(first: Any, second: Any, path: str = "record") -> Iterator[str]:
    """Yield the places in which two JSON values differ, with both values."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in first.keys() | second.keys():
            yield from differing_paths(first.get(key), second.get(key), f"{path}.{key}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (here, there) in enumerate(zip(first, second, strict=True)):
            yield from differing_paths(here, there, f"{path}[{index}]")
    elif first != second:
        yield f"{path}: {str(first)[:60]} / {str(second)[:60]}"


def line(row: Mapping[str, Any]) -> str:
    """Return a row of the table as Markdown."""
    cells = [
        "LoRA" if row["use_peft"] else "full",
        row["gradient_accumulation_steps"],
        row["steps_per_generation"],
        row["num_iterations"],
        f"{row['steps']} / {row['save_steps']}",
        f"{row['kills']} / {row['runs']}",
        f"{row['steps_lost_mean']} / {row['steps_lost_at_most']}",
        f"{row['max_difference']:g}",
        "; ".join(row["unequal"][:3]) or "-",
        ", ".join(f"{name} {count}" for name, count in row["phases"].items()),
    ]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())

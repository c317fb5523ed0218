"""Traces to steps as Parquet: `hf-rlhf traces build` against a plain script.

The file is generated: three to six searches a trace, each of three to five documents of 300 to
1500 characters, in words whose frequencies are Zipf's, so that text compresses as English
does. The plain script (traces_plain.py) reads line by line, with json and f-strings, and writes by
pyarrow with its defaults, in one pass. Ours also checks each row, finds repeated ones, splits the
questions and compresses with zstd. Rows of both are the same, which is checked. Time is what a user
waits; processor time is that of all processes, whatever else the machine does.

The bound is what no script by these libraries can do without: orjson parses every line, and Arrow
encodes and compresses the same columns (zstd), each once, on as many cores as there are. How many
that is, is measured: by how much work as many processes do at once as the system counts cores.
"""

import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
from side_by_side import Comparison, Report, in_turn, parser, scratch

CLI = [sys.executable, "-m", "hf_rlhf.cli", "traces"]
PLAIN = str(Path(__file__).with_name("traces_plain.py"))
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
WORDS = 30_000


class Words:
    """Text of words that are as frequent as in a language."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        lengths = (max(1, min(12, round(self.rng.gauss(5, 2.2)))) for _ in range(WORDS))
        vocabulary = ["".join(self.rng.choices(LETTERS, range(26, 0, -1), k=k)) for k in lengths]
        shares = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(WORDS)))
        self.drawn = self.rng.choices(vocabulary, cum_weights=shares, k=1_000_000)

    def text(self, fewest: int, most: int) -> str:
        """Return text of about so many characters; some has what is not ASCII, or a `<`."""
        count = max(1, self.rng.randint(fewest, most) // 5)
        begin = self.rng.randrange(len(self.drawn) - count)
        text = " ".join(self.drawn[begin : begin + count]).capitalize() + "."
        draw = self.rng.random()
        if draw < 0.05:
            return f"{text} — “é”, 1 < 2\nand so on."
        return text


def lines(size: float) -> Iterator[str]:
    """Yield traces until they add up to `size` bytes."""
    words, written, number = Words(0), 0, 0
    while written < size:
        trace = []
        for _ in range(words.rng.randint(3, 6)):
            trace.append({"type": "reasoning", "content": words.text(100, 400)})
            trace.append({"type": "search", "query": words.text(30, 60)})
            documents = [
                {"title": words.text(15, 40), "content": words.text(300, 1500)}
                for _ in range(words.rng.randint(3, 5))
            ]
            trace.append({"type": "search_result", "documents": documents})
        trace.append({"type": "reasoning", "content": words.text(100, 400)})
        trace.append({"type": "CorrectAnswer", "content": words.text(5, 30)})
        row = {"id": f"t{number}", "question": f"{words.text(50, 120)} {number}?", "trace": trace}
        line = json.dumps(row, ensure_ascii=False) + "\n"
        written += len(line.encode())
        number += 1
        yield line


class Run:
    """A command: seconds, processor seconds, and peak memory of all its processes.

    Processor seconds are those of the command and of the processes that it has waited for.
    """

    def __init__(self, command: list[str]) -> None:
        os.sync()  # what was written before would slow this down
        self.peak = 0.0
        before, start = _processor_seconds(), time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                self.peak = max(self.peak, _memory(process.pid))
                time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"{command} has failed; see above")
        self.seconds = time.perf_counter() - start
        self.processor = _processor_seconds() - before


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _memory(pid: int) -> float:
    """Resident MB of a process and its children; what they share counts for each of them."""
    try:
        process = psutil.Process(pid)
        tree = [process, *process.children(recursive=True)]
        return sum(process.memory_info().rss for process in tree) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


def build(source: Path, out: Path) -> Run:
    """Build the steps."""
    shutil.rmtree(out, ignore_errors=True)
    return Run([*CLI, "build", str(source), "--out", str(out), "--dataset", "steps"])


def plain(source: Path, out: Path) -> Run:
    """Run the plain script."""
    shutil.rmtree(out, ignore_errors=True)
    return Run([sys.executable, PLAIN, str(source), str(out)])


def digest(folder: Path) -> tuple[int, int]:
    """Return the number of rows of both splits, and the sum of the hashes of all."""
    import pyarrow.parquet as pq

    rows, total = 0, 0
    for split in ("train", "validation"):
        for path in folder.glob(f"{split}*.parquet"):
            for batch in pq.ParquetFile(path).iter_batches(256):
                for row in batch.to_pylist():
                    text = json.dumps(row, sort_keys=True).encode()
                    total += int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
                    rows += 1
    return rows, total % 2**128


def measure(folder: Path, size: float, rounds: int) -> tuple[dict[str, list[Run]], list[str]]:
    """Generate a file, run all on it in turn, compare what they wrote; return costs and notes."""
    source = folder / "traces.jsonl"
    with source.open("w", encoding="utf-8") as file:
        file.writelines(lines(size))
    megabytes = source.stat().st_size / 1e6
    ways: dict[str, Callable[[Path], Run]] = {
        "build": lambda out: build(source, out),
        "plain script": lambda out: plain(source, out),
    }
    wrote: dict[str, tuple[int, int, float]] = {}

    def run(name: str) -> Run:
        out = folder / "out"
        cost = ways[name](out)
        built = out if name == "plain script" else out / "datasets/steps"
        if name not in wrote:
            disk = sum(path.stat().st_size for path in built.glob("*.parquet")) / 1e6
            wrote[name] = (*digest(built), disk)
        shutil.rmtree(out)
        return cost

    costs = in_turn(rounds, {name: partial(run, name) for name in ways})
    if len({counts[:2] for counts in wrote.values()}) > 1:
        raise SystemExit(f"the rows differ: {wrote}")
    notes = [f"{megabytes:.0f} MB, {wrote['plain script'][0]} rows, the same of all."]
    other = min(run.seconds for run in costs["plain script"])
    for name, runs in costs.items():
        best = min(run.seconds for run in runs)
        notes.append(
            f"{name}: {megabytes / best:.0f} MB of input a second, {other / best:.2f} times the "
            f"plain script; {wrote[name][2]:.0f} MB of Parquet."
        )
    return costs, notes


def main() -> None:
    """Measure two sizes, since memory is to be the same for both."""
    options = parser(__doc__, rounds=3)
    options.add_argument("--gb", type=float, default=0.2, help="of the larger file (%(default)s)")
    chosen = options.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    sizes = [2e6] if chosen.quick else [chosen.gb * 1e9 / 4, chosen.gb * 1e9]
    report = Report("Traces to steps as Parquet")
    for size in sizes:
        with scratch() as name:
            costs, notes = measure(Path(name), size, rounds)
        size_label = f"of {size / 1e6:.0f} MB"
        other = costs.pop("plain script")
        for name, runs in costs.items():
            for title, of, unit in (
                (f"{name}: time {size_label}", lambda run: run.seconds, "s"),
                (f"{name}: processor time {size_label}", lambda run: run.processor, "s"),
                (f"{name}: peak memory {size_label}", lambda run: run.peak, "MB"),
            ):
                sides = (list(map(of, side)) for side in (runs, other))
                report.comparisons.append(Comparison(title, *sides, unit, "plain script"))
        report.notes += notes
    report.notes.append(f"Load while it ran (1, 5, 15 min): {os.getloadavg()}")
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()

"""Ours against the alternative, run in turn: what every benchmark of this folder shares.

A machine that others use, or that heats up, drifts: so A and B are measured A B A B, and compared
by the medians. The interval of a ratio is a percentile bootstrap over the rounds, paired: a slow
minute slows both of a round.
"""

import argparse
import json
import multiprocessing
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from claims import target_of
from rich.console import Console
from rich.table import Table

T = TypeVar("T")
_RESAMPLES = 4000
_SAMPLING_S = 0.004
_PACKAGES = ("torch", "transformers", "trl", "peft", "huggingface_hub", "hf_xet", "openai")


def in_turn(rounds: int, candidates: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Call each candidate once a round, in order; return what each call returned."""
    results: dict[str, list[T]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name, call in candidates.items():
            print(f"round {number + 1}/{rounds}: {name}", file=sys.stderr, flush=True)
            results[name].append(call())
    return results


@dataclass(frozen=True)
class Comparison:
    """One quantity of ours beside the alternative's, a value per round (or pair) of each."""

    what: str
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str
    against: str
    higher_is_better: bool = False
    target: float | None = None
    """What the ratio ours / theirs is to be at most; at least, for `higher_is_better`. A report
    takes it from `claims.py`."""

    @property
    def ratio(self) -> float:
        """The median of ours over the median of theirs."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    @property
    def interval(self) -> tuple[float, float]:
        """The ratio's 95% percentile-bootstrap interval over rounds."""
        ours, theirs = np.asarray(self.ours), np.asarray(self.theirs)
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, len(ours), (_RESAMPLES, len(ours)))
        paired = drawn
        if len(ours) != len(theirs):
            paired = rng.integers(0, len(theirs), (_RESAMPLES, len(theirs)))
        ratios = np.median(ours[drawn], axis=1) / np.median(theirs[paired], axis=1)
        low, high = np.percentile(ratios, [2.5, 97.5])
        return float(low), float(high)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.ratio >= self.target if self.higher_is_better else self.ratio <= self.target

    def as_json(self) -> dict[str, Any]:
        """Return everything that was measured and what it comes to."""
        return {
            "what": self.what,
            "unit": self.unit,
            "against": self.against,
            "ours": list(self.ours),
            "theirs": list(self.theirs),
            "ratio": self.ratio,
            "interval": list(self.interval),
            "higher_is_better": self.higher_is_better,
            "target": self.target,
            "met": self.met,
        }


@dataclass
class Report:
    """What one benchmark prints: comparisons, and notes on what they do not say."""

    title: str
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, *, as_json: bool) -> None:
        """Print a table, or JSON with every single value, to the standard output."""
        script, quick = Path(sys.argv[0]).stem, "--quick" in sys.argv
        self.comparisons = [
            each if quick else replace(each, target=target_of(script, each.what, each.against))
            for each in self.comparisons
        ]
        if as_json:
            content = {
                "title": self.title,
                "command": sys.argv,
                "machine": machine(),
                "comparisons": [comparison.as_json() for comparison in self.comparisons],
                "notes": self.notes,
            }
            print(json.dumps(content, indent=2))
            return
        table = Table(title=self.title)
        for heading in ("", "ours", "alternative", "", "ours / alternative (95%)", "target"):
            table.add_column(heading, justify="left" if heading == "" else "right")
        for comparison in self.comparisons:
            low, high = comparison.interval
            table.add_row(
                comparison.what,
                _spread(comparison.ours, comparison.unit),
                _spread(comparison.theirs, comparison.unit),
                comparison.against,
                f"{comparison.ratio:.3f} [{low:.3f}, {high:.3f}]",
                _target(comparison),
            )
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(table)
        for note in self.notes:
            console.print(f"  {note}", highlight=False)
        console.print(f"  {', '.join(f'{key} {value}' for key, value in machine().items())}")


def _spread(values: Sequence[float], unit: str) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.3g} {unit} ({low:.3g} to {high:.3g})"


def _target(comparison: Comparison) -> str:
    if comparison.target is None:
        return "-"
    sign = "≥" if comparison.higher_is_better else "≤"
    return f"{sign} {comparison.target:g}: {'met' if comparison.met else 'MISSED'}"


def machine() -> dict[str, str]:
    """Return what the numbers depend on: processor, memory, versions."""
    versions = {
        "cpu": _processor(),
        "cores": str(psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "none"
    return versions


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return match[1] if match else platform.processor()


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="default: %(default)s")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON with every value")
    return parser


def scratch() -> "tempfile.TemporaryDirectory[str]":
    """Return a temporary folder, in TMPDIR, that is gone when the `with` block ends."""
    return tempfile.TemporaryDirectory(prefix="hf-rlhf-benchmark-")


def processor_time(argv: Sequence[str]) -> float:
    """Return the processor seconds of a command and what it starts; raises if it fails.

    Other work on the machine hardly changes these, and multiplies the time that passes.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@dataclass(frozen=True)
class Child:
    """What one piece of work cost a process of its own. Memory in MB, as the kernel counts it."""

    seconds: float
    rss_before: float
    """Resident memory when the work began: what was imported by then."""
    rss_peak: float
    """Resident memory at its highest, pages of mapped files included."""
    anonymous_before: float
    anonymous_peak: float
    """Without pages of mapped files, which the kernel may drop at any time."""

    @property
    def rss_grown(self) -> float:
        """How much the work added to what the imports took."""
        return self.rss_peak - self.rss_before

    @property
    def anonymous_grown(self) -> float:
        """The same without mapped files."""
        return self.anonymous_peak - self.anonymous_before


def in_child(work: Callable[..., Generator[None, None, None]], *arguments: Any) -> Child:
    """Run `work(*arguments)` in a fresh process and measure from its `yield` to its end.

    What comes before the `yield` (imports, opening files) is not measured. Linux only: the peaks
    are the kernel's own (VmHWM), or sampled every 4 ms (RssAnon). Raises RuntimeError if it fails.
    """
    ours, theirs = _start.Pipe()
    process = _start.Process(target=_work, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        before = _memory(_next(ours))
        ours.send("go")
        with _Peak(before["pid"]) as anonymous:
            done = _next(ours)
        after = _memory(done)
        ours.send("end")
    finally:
        process.join()
    return Child(
        seconds=done["seconds"],
        rss_before=before["VmRSS"],
        rss_peak=after["VmHWM"],
        anonymous_before=before["RssAnon"],
        anonymous_peak=max(anonymous.peak, after["RssAnon"]),
    )


_start: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")


def import_once(*modules: str) -> None:
    """Let children be forked from a process that has imported `modules`: quick, not for measuring.

    What a child imports itself would otherwise be most of the time that `--quick` takes.
    """
    global _start
    _start = multiprocessing.get_context("forkserver")
    _start.set_forkserver_preload(list(modules))


def _next(pipe: Connection) -> dict[str, float]:
    try:
        return dict(pipe.recv())
    except EOFError:
        raise RuntimeError("the process that was measured has failed; see above") from None


def _memory(usage: dict[str, float]) -> dict[str, float]:
    return {**usage, **_status(int(usage["pid"]))}


def _status(pid: int) -> dict[str, float]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {name: int(kb) * 1024 / 1e6 for name, kb in re.findall(r"(\w+):\s+(\d+) kB", text)}


def _work(
    pipe: Connection, work: Callable[..., Generator[None, None, None]], arguments: Sequence[Any]
) -> None:
    os.dup2(2, 1)  # what the work prints is not the benchmark's result
    running = work(*arguments)
    next(running)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts anew
    pipe.send({"pid": os.getpid()})
    pipe.recv()
    begun = time.perf_counter()
    for _ in running:
        raise RuntimeError("the work yields once, where measuring begins")
    pipe.send({"pid": os.getpid(), "seconds": time.perf_counter() - begun})
    pipe.recv()


class _Peak:
    """The highest RssAnon of a process while the block runs."""

    def __init__(self, pid: float) -> None:
        self.pid = int(pid)
        self.peak = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLING_S):
            try:
                self.peak = max(self.peak, _status(self.pid)["RssAnon"])
            except (OSError, KeyError):
                return  # it has ended

"""Datasets of files: the same rows for any blocks, workers and tasks."""

import json
import os
import signal
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest

from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf_traces import blocks, pipeline
from hf_rlhf_traces.command import command
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.pipeline import Build, row_builders
from hf_rlhf_traces.read_files import Reading
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.shards import dataset_rows
from hf_rlhf_traces.store import Store

LAX = ("--max_rejected_share", "0.5")


def run(files: list[Path], out: Path, *more: str) -> None:
    assert command(["build", *map(str, files), "--out", str(out), *LAX, *more]) == 0


def build_of(files: list[Path], out: Path) -> Build:
    """Return the build of `run`."""
    reading = Reading.of([*map(str, files)], out, Options(max_row_mb=64), max_rejected_share=0.5)
    drop = {"seed": 42, "think_drop_prob": 0.3, "reasoning_drop_prob": 0.0}
    return Build(reading, Format(), row_builders(("multiturn", "steps"), Format(), drop))


def rows_of(store: Path, split: str, dataset: str = "steps") -> list[dict[str, Any]]:
    rows = dataset_rows(store / "datasets" / dataset, split)
    return sorted(rows, key=lambda row: str(row["id"]))


def check_same(out: Path, in_one_shard: Path) -> None:
    assert rows_of(out, "train")
    for split, dataset in product(("train", "validation"), ("multiturn", "steps")):
        assert rows_of(out, split, dataset) == rows_of(in_one_shard, split, dataset)
    assert (out / "rejects.jsonl").read_bytes() == (in_one_shard / "rejects.jsonl").read_bytes()
    steps_here, steps_there = (
        json.loads((home / "traces.json").read_text())["steps"] for home in (out, in_one_shard)
    )
    for step in ("build", "multiturn", "steps"):
        assert steps_here[step]["result"] == steps_there[step]["result"]
        assert steps_here[step]["digest"] == steps_there[step]["digest"]
    assert not list(out.glob(".build*"))


def test_any_number_of_workers_and_blocks_gives_the_same_datasets(
    files: list[Path],
    in_one_shard: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 20_000)
    out = tmp_path / "store"
    run(files, out, "--workers", "2")
    check_same(out, in_one_shard)
    capsys.readouterr()
    run(files, out, "--workers", "1")
    assert "done already" in capsys.readouterr().out


def test_a_worker_that_is_killed_is_an_error_that_says_what_to_do(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "read_row", lambda *_: os._exit(9))
    with pytest.raises(DataError, match=r"worker process ended.*--workers 1"):
        run(files, tmp_path / "store", "--workers", "2")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_no_process_is_left_of_a_build_that_is_stopped(
    files: list[Path], tmp_path: Path, number: int
) -> None:
    script = (
        "import signal, time; from hf_rlhf_traces import command, pipeline\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"reading = __import__('pathlib').Path({str(tmp_path / 'reading')!r})\n"
        "pipeline.read_row = lambda *_: (reading.touch(), time.sleep(60))\n"
        f"command.command(['build', *{list(map(str, files))}, '--out', {str(tmp_path / 'out')!r}, "
        "'--workers', '2'])"
    )
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        build = psutil.Popen([sys.executable, "-c", script], stderr=file)
    while not (tmp_path / "reading").exists():
        assert build.poll() is None
        time.sleep(0.05)
    started = build.children()  # two workers and their manager
    build.send_signal(number)
    build.wait()
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert ("same command continues" in errors.read_text()) == (number == signal.SIGINT)


def test_a_source_that_is_gone_is_named_by_any_process(tmp_path: Path) -> None:
    gone = [blocks.Block(str(tmp_path / "gone.jsonl"), 0, 8, 1)] * 2
    for workers in (1, 2):
        with pytest.raises(DataError, match=r"^\S*/gone.jsonl: no such file or folder\.$"):
            pipeline.read_blocks(gone, Options(), tmp_path / str(workers), workers)


def test_a_dataset_may_be_built_later_without_another_becoming_stale(
    files: list[Path], in_one_shard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "store"
    run(files, out, "--workers", "1", "--dataset", "steps")
    assert not (out / "datasets" / "multiturn").exists()
    run(files, out, "--workers", "1")
    assert "steps: done already" in capsys.readouterr().out
    check_same(out, in_one_shard)
    assert Store.open(out).state("steps") == "done"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"partition": "cpu"}', "'time'"),
        ('{"partition": "a", "time": "1:0", "nodes": 2}', "nodes"),
    ],
)
def test_slurm_needs_a_partition_and_a_time(
    given: str, said: str, files: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("datatrove")
    with pytest.raises(ConfigError, match=f"--slurm: .*{said}"):
        run(files, tmp_path / "store", "--slurm", given)


def test_what_tasks_read_is_kept_until_the_datasets_are_built(
    files: list[Path], in_one_shard: Path, tmp_path: Path
) -> None:
    pytest.importorskip("datatrove")
    from hf_rlhf_traces import datatrove_tasks as tasks

    out, folder = tmp_path / "store", tmp_path / "store" / "build" / "key"
    build = build_of(files, out)
    step = partial(
        tasks.read_part,
        blocks=pipeline.input_blocks(build.reading),
        options=build.reading.options,
        folder=folder,
    )
    list(step(None, 1, 2))
    with pytest.raises(DataError, match="1 of 2 tasks failed"):
        list(tasks.complete(None, build=build, folder=folder, tasks=2))
    list(step(None, 0, 2))
    list(tasks.complete(None, build=build, folder=folder, tasks=2))
    check_same(out, in_one_shard)
    assert not folder.exists()

"""Blocks of lines, and workers: the same whatever the size and the number, and no line lost."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_rlhf.errors import DataError
from hf_rlhf_traces.blocks import Block, blocks, in_order
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.sources import rows_in


def numbered(block: Block) -> list[tuple[int, bytes]]:
    """Return the lines of a block, each read once more from where it is said to stand."""
    rows_read = []
    for line, where, item in rows_in(block, Options()):
        assert where == line.where
        again = Path(line.path).read_bytes()[line.start : line.start + line.size]
        assert item == (b"" if again.isspace() else again)
        rows_read.append((line.line, again))
    return rows_read


def fails_at(bad: int, item: int) -> int:
    if item == bad:
        raise DataError(f"rows.jsonl:{item}: is bad")
    return item * 2


def dies_at(bad: int, item: int) -> int:
    if item == bad:
        os._exit(9)
    return item * 2


def slow_first(item: int) -> tuple[int, int]:
    time.sleep(0.2 if item == 0 else 0)
    return item, os.getpid()


def file_of(folder: Path, content: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return path


LINE = st.text(alphabet='aé\r()"\\ \u2028\x85', max_size=12).map(lambda text: text.encode())


@given(
    lines=st.lists(LINE, max_size=30),
    end=st.sampled_from([b"\n", b"\r\n"]),
    ended=st.booleans(),
    size=st.integers(1, 200),
)
def test_blocks_hold_every_line_once_with_its_number(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    end: bytes,
    ended: bool,
    size: int,
) -> None:
    content = end.join(lines) + (end if ended and lines else b"")
    assume(b"\n" in content or b"\r" not in content.rstrip(b"\r"))  # an old Mac's are refused
    path = file_of(tmp_path_factory.mktemp("blocks"), content)
    with path.open("rb") as file:
        expected = list(enumerate(file, start=1))
    parts = list(blocks(path, size))
    assert [row for block in parts for row in numbered(block)] == expected
    assert [block.start for block in parts] == [
        sum(block.size for block in parts[:number]) for number in range(len(parts))
    ]
    longest = max((len(line) for _, line in expected), default=0)
    assert all(block.size <= size + longest for block in parts)


def test_a_line_larger_than_many_blocks_is_one_block(tmp_path: Path) -> None:
    rows = [b"{}\n", json.dumps("x" * 3_000_000).encode() + b"\n", b"{}\n", b'{"cut": "of']
    path = file_of(tmp_path, b"".join(rows))
    rows_read = [row for block in blocks(path, 1000) for row in numbered(block)]
    assert rows_read == list(enumerate(rows, start=1))


def test_an_empty_file_has_no_block_and_an_absent_one_is_said(tmp_path: Path) -> None:
    assert list(blocks(file_of(tmp_path, b""))) == []
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read: No such file"):
        list(blocks(tmp_path / "gone.jsonl"))


def test_results_come_in_order_from_other_processes_and_items_are_taken_a_few_ahead() -> None:
    items = iter(range(1000))
    coming = in_order(slow_first, items, workers=2)
    results = [next(coming) for _ in range(12)]
    assert [item for item, _ in results] == list(range(12))
    assert os.getpid() not in {process for _, process in results}
    assert next(items) < 20


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_one_item_or_one_worker_is_done_here(workers: int) -> None:
    items = 3 if workers < 2 else 1
    assert {process for _, process in in_order(slow_first, range(items), workers=workers)} == {
        os.getpid()
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_what_work_raises_comes_after_the_results_before_it(workers: int) -> None:
    results = in_order(partial(fails_at, 3), range(100), workers=workers)
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    with pytest.raises(DataError, match=r"rows\.jsonl:3: is bad"):
        next(results)


def test_a_worker_that_is_killed_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"worker processes ended.*--workers 1"):
        list(in_order(partial(dies_at, 3), range(100), workers=2))


ORPHANS = """
import sys, time
from hf_rlhf_traces.blocks import in_order
if __name__ == "__main__":
    for _ in in_order(time.sleep, [0, 0, 0, 0, 600, 600], workers=2):
        print("begun", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGINT"])
def test_no_worker_is_left_when_the_process_is_killed(tmp_path: Path, signal: str) -> None:
    import signal as signals

    import psutil

    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        process.send_signal(getattr(signals, signal))
        assert psutil.wait_procs(workers, timeout=20)[1] == []

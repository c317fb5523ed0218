"""What is read of a file does not depend on where its blocks end, nor on who reads them."""

import json
import pickle
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_traces.building import Built, Rows
from hf_rlhf_traces.columns import Part
from hf_rlhf_traces.command import command
from hf_rlhf_traces.engine import blocks
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.gathering import read_block, read_item
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.reading import Options, Read, Rejected
from hf_rlhf_traces.samples import growing_step_rows, step_rows
from hf_rlhf_traces.sources import rows_of
from hf_rlhf_traces.split import Split

LIMIT_MB = 0.004
OPTIONS = Options(max_row_mb=LIMIT_MB)


def row(number: int, content: str = "found") -> bytes:
    steps = [
        {"type": "search", "query": "q"},
        {"type": "search_result", "documents": [{"title": "é", "content": content}]},
        {"type": "CorrectAnswer", "content": "a"},
    ]
    values = {"id": f"t{number}", "question": f"Who is {number}?", "trace": steps}
    return json.dumps(values, ensure_ascii=number % 2 == 0).encode()


LINES = st.one_of(
    st.integers(0, 9).map(row),
    st.sampled_from([b"", b"  ", b"\r", b"{}", b"\xff", row(3)[:40], row(5, "x" * 6_000)]),
)


@settings(max_examples=40)
@given(
    lines=st.lists(LINES, min_size=1, max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    ended=st.booleans(),
    size=st.integers(1, 9_000),
)
def test_blocks_read_what_the_whole_file_reads(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    end: bytes,
    ended: bool,
    size: int,
) -> None:
    path = tmp_path_factory.mktemp("read") / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + end.join(lines) + (end if ended else b""))
    whole = rows_of(str(path), Options(max_row_mb=LIMIT_MB), lambda _: None)
    expected = [read_item(where, item, OPTIONS) for where, item in whole]
    assert [found for one in blocks(path, size) for found in read_block(one, OPTIONS)] == expected
    with path.open("rb") as file:
        assert len(expected) == sum(1 for _ in file)


def rows_in(parts: list[Part]) -> list[dict[str, object]]:
    return [json.loads(line) for part in parts for line in bytes(part.lines.content).splitlines()]


@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_blocks_build_the_rows_of_each_trace(tmp_path: Path, size: int) -> None:
    raw, canonical = tmp_path / "raw.jsonl", tmp_path / "traces.jsonl"
    raw.write_bytes(b"\n".join(map(row, range(20))))
    (block,) = blocks(raw)
    traces = [found for found in read_block(block, Options()) if found is not None]
    canonical.write_bytes(b"".join(one.line for one in traces))  # type: ignore[union-attr]
    split = Split(0.5, 42, 1 << 63)
    built = Built(Rows("steps", partial(growing_step_rows, form=Format()), Layout()), split)
    made = [built(one) for one in blocks(canonical, size)]
    for side in ("train", "validation"):
        expected = [
            sample
            for one in traces
            for sample in step_rows(one.trace, Format())[0]  # type: ignore[union-attr]
            if split.of(sample["question_key"]) == side
        ]
        assert expected
        assert rows_in([part for one in made for part in one.parts[side]]) == expected


@pytest.mark.slow
def test_workers_write_the_bytes_that_one_process_writes(tmp_path: Path) -> None:
    """Of a file of several blocks, with a row of 3 MB and a last line that is cut off."""
    raw = tmp_path / "raw.jsonl"
    rows = [row(number, "found " * 2_000) for number in range(1_100)]
    rows.insert(700, row(10_000, "x" * 3_000_000))
    raw.write_bytes(b"\n".join(rows) + b"\n" + row(1)[:90])
    written = {}
    for workers in ("1", "2", "3"):
        out = tmp_path / workers
        command(["read", str(raw), "--out", str(out), "--workers", workers])
        command(["steps", str(out), "--workers", workers])
        command(["multiturn", str(out), "--workers", workers])
        files = sorted(path for path in out.rglob("*") if path.suffix in (".jsonl", ".parquet"))
        written[workers] = {str(path.relative_to(out)): path.read_bytes() for path in files}
    assert len(written["1"]) == 10
    assert b"not_json" in written["1"]["rejects.jsonl"]
    assert all(one == written["1"] for one in written.values())


def test_what_a_worker_has_read_of_a_block_comes_whole(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_bytes(b"\n".join([row(1), b"{", b"", row(2), row(2), row(3)]))
    (block,) = blocks(raw)
    found = read_block(block, OPTIONS)
    came = pickle.loads(pickle.dumps(found))
    assert [one if isinstance(one, Rejected) else one and one.line for one in came] == [
        one if isinstance(one, Rejected) else one and one.line for one in found
    ]
    assert [one.trace for one in came if isinstance(one, Read)] == [
        one.trace for one in found if isinstance(one, Read)
    ]
    assert {type(one) for one in came} == {Read, Rejected, type(None)}

"""Rows as they stand in files: whatever texts share, what is read back is what was put in."""

import io
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf.errors import DataError
from hf_rlhf_traces.columns import Batch, Part
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.parquet_parts import PartsFile
from hf_rlhf_traces.rows import Lines, arrow_schema

ORIGIN: dict[str, Any] = {
    **{"id": "t#1", "trace": "t", "question_key": "0" * 16},
    **{"step": 1, "steps": 2, "question": "Who?"},
}
PIECES = st.text(alphabet="aé😀\n\0", max_size=9)


def part_of(dataset: str, rows: list[dict[str, Any]], *, jsonl: bool = True) -> Part:
    batch = Batch(dataset, Layout(jsonl))
    for row in rows:
        batch.add(row)
    return batch.take()


def rows_of(content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return rows


def step(prompt: object, answer: str = "") -> dict[str, Any]:
    return {**ORIGIN, "prompt": prompt, "answer": answer, "final": False}


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[object, str]]:
    """Prompts as they are given, with their text: joined, or lines of lists that grow."""
    given: list[tuple[object, str]] = []
    for pieces in draw(st.lists(st.lists(PIECES, min_size=1, max_size=4), max_size=6)):
        for count in range(1, len(pieces) + 1):
            lines = Lines(pieces, count)
            given.append((lines if draw(st.booleans()) else str(lines), str(lines)))
    return given


@settings(max_examples=50)
@given(prompts())
def test_texts_that_grow_are_read_back_as_they_are(given: list[tuple[object, str]]) -> None:
    part = part_of("steps", [step(prompt, text[::-1]) for prompt, text in given])
    expected = [step(text, text[::-1]) for _, text in given]
    assert rows_of(part.parquet.content) == expected
    assert [orjson.loads(line) for line in bytes(part.lines.content).splitlines()] == expected


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), PIECES), max_size=4)))
def test_turns_that_come_again_are_read_back(conversations: list[list[tuple[str, str]]]) -> None:
    rows = [
        {**ORIGIN, "messages": [{"role": role, "content": text * 3} for role, text in one]}
        for one in conversations
    ]
    assert rows_of(part_of("multiturn", rows).parquet.content) == rows


def test_parts_become_one_file(tmp_path: Any) -> None:
    rows = [step(f"prompt {number}" * number, "é" * number) for number in range(40)]
    with (tmp_path / "all.parquet").open("wb") as file:
        whole = PartsFile(file)
        for begin in range(0, 40, 3):
            whole.add(part_of("steps", rows[begin : begin + 3], jsonl=False).parquet.content)
        whole.close()
    read = pq.ParquetFile(tmp_path / "all.parquet")
    assert (read.num_row_groups, whole.rows) == (14, 40)
    assert read.schema_arrow == arrow_schema("steps")
    assert read.read().to_pylist() == rows
    assert read.read_row_group(13).to_pylist() == rows[39:]
    assert len(pq.read_table(tmp_path / "all.parquet", filters=[("step", ">", 1)])) == 0


def test_polars_reads_what_parts_became(tmp_path: Any) -> None:
    polars = pytest.importorskip("polars", reason="polars, which reads with code of its own")
    rows = [step(f"prompt {number}" * number) for number in range(40)]
    with (tmp_path / "all.parquet").open("wb") as file:
        whole = PartsFile(file)
        for begin in range(0, 40, 3):
            whole.add(part_of("steps", rows[begin : begin + 3], jsonl=False).parquet.content)
        whole.close()
    assert polars.read_parquet(tmp_path / "all.parquet").to_dicts() == rows


def test_a_file_that_is_made_otherwise_becomes_one_as_well() -> None:
    """With dictionaries, page indexes, checksums and several row groups a part: all is moved."""
    table = pa.table({"n": list(range(100)), "text": [f"{n % 7}" * 20 for n in range(100)]})
    made, whole = io.BytesIO(), io.BytesIO()
    pq.write_table(table, made, row_group_size=30, write_page_index=True, write_page_checksum=True)
    parts = PartsFile(whole)
    for _ in range(3):
        parts.add(made.getvalue())
    parts.close()
    whole.seek(0)
    read = pq.read_table(whole, page_checksum_verification=True)
    assert read.equals(pa.concat_tables([table] * 3))


def test_what_is_no_part_is_refused() -> None:
    parts = PartsFile(io.BytesIO())
    with pytest.raises(ValueError, match="needs a part"):
        parts.close()
    with pytest.raises(ValueError, match="not a Parquet file"):
        parts.add(b"PAR1 and more")
    parts.add(part_of("steps", [], jsonl=False).parquet.content)
    with pytest.raises(ValueError, match="other columns"):
        parts.add(part_of("multiturn", [], jsonl=False).parquet.content)


@pytest.mark.parametrize("jsonl", [True, False])
def test_half_a_character_is_an_error_that_names_the_sample(jsonl: bool) -> None:
    with pytest.raises(DataError, match=r"sample 't#1' cannot be written"):
        part_of("steps", [step("\ud83d and more than twelve bytes")], jsonl=jsonl)

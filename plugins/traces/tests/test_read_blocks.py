"""What is read of a file does not depend on where its blocks end, nor on who reads them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_traces.blocks import Block, blocks
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row
from hf_rlhf_traces.sources import rows_in

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
    expected = rows_of(Block(str(path), 0, 0, 1))
    assert [row for block in blocks(path, size) for row in rows_of(block)] == expected
    with path.open("rb") as file:
        assert len(expected) == sum(1 for _ in file)


def rows_of(block: Block, options: Options = OPTIONS) -> list[Read | Rejected | None]:
    return [read_row(raw, where, options) for where, raw in rows_in(block, options)]

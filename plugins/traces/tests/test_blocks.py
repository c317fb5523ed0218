"""Blocks of lines: the same rows whatever the size, and no line lost."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_rlhf.errors import DataError
from hf_rlhf_traces.blocks import Block, blocks
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.sources import rows_in


def numbered(block: Block) -> list[tuple[int, bytes]]:
    """Return the lines of a block with their numbers, blank ones as b""."""
    rows_read = []
    for where, item in rows_in(block, Options()):
        assert isinstance(item, bytes)
        rows_read.append((int(where.rpartition(":")[2]), item))
    return rows_read


def file_of(folder: Path, content: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return path


LINE = st.text(alphabet='aé\r()"\\ \u2028\x85', max_size=12).map(lambda text: text.encode())


@settings(max_examples=25)
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
        expected = [
            (number, b"" if line.isspace() else line) for number, line in enumerate(file, start=1)
        ]
    parts = list(blocks(path, size))
    assert [row for block in parts for row in numbered(block)] == expected
    assert [block.start for block in parts] == [
        sum(block.size for block in parts[:number]) for number in range(len(parts))
    ]
    longest = max(map(len, content.split(b"\n"))) + 1
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

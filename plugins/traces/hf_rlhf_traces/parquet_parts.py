"""Parquet files of the same columns, one after the other, as one file: nothing is encoded anew.

Row groups are encoded by workers, each as a small file in memory. One file is their bytes behind
one another, and a footer that says where each of them now stands.

https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

import struct
from dataclasses import dataclass, field
from io import BytesIO
from mmap import mmap
from typing import IO

from hf_rlhf_traces.thrift_compact import LIST, LONG, STRUCT, Fields, parsed, write_struct

MAGIC = b"PAR1"
# Fields by their numbers in parquet.thrift.
_SCHEMA, _NUM_ROWS, _ROW_GROUPS = 2, 3, 4  # of FileMetaData
_COLUMNS, _GROUP_PLACE, _ORDINAL = 1, 5, 7  # of RowGroup
_CHUNK_PLACE, _CHUNK_META = 2, 3  # of ColumnChunk
_INDEXES = (4, 6)  # of ColumnChunk: where its offset index and its column index stand
_PAGES = (9, 10, 11, 14)  # of ColumnMetaData: where its pages and its Bloom filter stand


@dataclass
class PartsFile:
    """Writes Parquet files with the same schema into one, which `close` makes readable."""

    file: IO[bytes]
    rows: int = 0
    _place: int = 0
    _footer: Fields | None = None
    _groups: list[Fields] = field(default_factory=list)

    def add(self, part: bytes | mmap) -> None:
        """Put the row groups of a file behind those there are; only their footer stays in memory.

        Raises ValueError when the part is no Parquet file, or has other columns.
        """
        if len(part) < 12 or part[:4] != MAGIC or part[-4:] != MAGIC:
            raise ValueError("the part is not a Parquet file")
        (size,) = struct.unpack("<I", part[-8:-4])
        footer = parsed(part[-8 - size : -8])
        if self._footer is None:
            self._footer = footer
            self._write(MAGIC)
        elif footer[_SCHEMA] != self._footer[_SCHEMA]:
            raise ValueError("the part has other columns than the first")
        for group in footer[_ROW_GROUPS][1][1]:
            _move(group, self._place - len(MAGIC))
            group.pop(_ORDINAL, None)  # 16 bits, and only encrypted files need it
            self._groups.append(group)
        self.rows += footer[_NUM_ROWS][1]
        self._write(memoryview(part)[4 : -8 - size])

    def close(self) -> None:
        """Write the footer. Raises ValueError without a part: the first one says what columns."""
        if self._footer is None:
            raise ValueError("a Parquet file needs a part")
        made = BytesIO()
        groups = (LIST, (STRUCT, self._groups))
        write_struct(made, {**self._footer, _NUM_ROWS: (LONG, self.rows), _ROW_GROUPS: groups})
        self._write(made.getvalue() + struct.pack("<I", made.tell()) + MAGIC)

    def _write(self, content: bytes | memoryview) -> None:
        self.file.write(content)
        self._place += len(content)


def _move(group: Fields, by: int) -> None:
    """Add to each place that is said in a row group. 0 is said where a place is not used."""
    _add(group, (_GROUP_PLACE,), by)
    for chunk in group[_COLUMNS][1][1]:
        _add(chunk, (_CHUNK_PLACE, *_INDEXES), by)
        _add(chunk[_CHUNK_META][1], _PAGES, by)


def _add(fields: Fields, numbers: tuple[int, ...], by: int) -> None:
    for number in numbers:
        if number in fields and fields[number][1]:
            kind, place = fields[number]
            fields[number] = (kind, place + by)

"""The two binary formats of the Xet protocol that a server has to read.

* A *xorb* is a block of up to 64 MB of compressed chunks, one behind the other.
* A *shard* says which chunks of which xorbs make up a file.

Source: https://huggingface.co/docs/xet (hashing, xorb and shard formats), and
`xet_core_structures` in https://github.com/huggingface/xet-core. All integers are little-endian.
"""

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

_SHARD_TAG = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
_SHARD_VERSION = 2
_BOOKEND = b"\xff" * 32
_HAS_VERIFICATION = 1 << 31
_HAS_METADATA = 1 << 30
_ENTRY = struct.Struct("<32sIIII")
_HASH = struct.Struct("<4Q")
_CHUNK_HEADER = 8
_XORB_FOOTER = b"XETBLOB"
_LARGEST_XORB = 128 * 1024 * 1024


class Malformed(ValueError):
    """Bytes that are not what the format says."""


@dataclass(frozen=True)
class Term:
    """Chunks `start` to `end` (exclusive) of a xorb, `size` bytes when unpacked."""

    xorb: str
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class FileRecipe:
    """How to put one file together. `sha256` is what the client says it is."""

    hash: str
    terms: tuple[Term, ...]
    sha256: str | None

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return sum(term.size for term in self.terms)


@dataclass
class XorbIndex:
    """Where each chunk of a xorb ends: on disk (`packed`) and unpacked (`unpacked`), in bytes.

    Both begin with 0, so that chunk i is from [i] to [i + 1].
    """

    packed: "array[int]" = field(default_factory=lambda: array("Q", [0]))
    unpacked: "array[int]" = field(default_factory=lambda: array("Q", [0]))

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return len(self.packed) - 1


def read_xorb(path: Path) -> XorbIndex:
    """Walk over the chunk headers of a xorb; raises Malformed when the chunks do not add up."""
    index = XorbIndex()
    end = path.stat().st_size
    if end > _LARGEST_XORB:
        raise Malformed(f"a xorb of {end} bytes is larger than any can be")
    with path.open("rb") as file:
        position = 0
        while position < end:
            header = file.read(_CHUNK_HEADER)
            if header.startswith(_XORB_FOOTER):
                break
            if len(header) < _CHUNK_HEADER or header[0] != 0:
                raise Malformed(f"no chunk of version 0 at byte {position} of the xorb")
            position += _CHUNK_HEADER + int.from_bytes(header[1:4], "little")
            if position > end:
                raise Malformed(f"the xorb ends within chunk {index.chunks}")
            file.seek(position)
            index.packed.append(position)
            index.unpacked.append(index.unpacked[-1] + int.from_bytes(header[5:8], "little"))
    if not index.chunks:
        raise Malformed("the xorb has no chunks")
    return index


def read_shard(path: Path) -> list[FileRecipe]:
    """Return the files that a shard describes; raises Malformed."""
    with path.open("rb") as file:
        header = file.read(48)
        if header[:32] != _SHARD_TAG:
            raise Malformed("this is not a shard")
        version = int.from_bytes(header[32:40], "little")
        if version != _SHARD_VERSION:
            raise Malformed(f"a shard of version {version}; this Hub reads {_SHARD_VERSION}")
        return list(_recipes(file))


def _recipes(file: BinaryIO) -> Iterator[FileRecipe]:
    while True:
        name, flags, count, _, _ = _entry(file)
        if name == _BOOKEND:
            return
        terms = []
        for _ in range(count):
            xorb, _, size, start, end = _entry(file)
            if start >= end:
                raise Malformed(f"an empty range of chunks, {start} to {end}")
            terms.append(Term(hash_text(xorb), size, start, end))
        if flags & _HAS_VERIFICATION:
            for _ in range(count):
                _entry(file)
        sha256 = hash_text(_entry(file)[0]) if flags & _HAS_METADATA else None
        yield FileRecipe(hash_text(name), tuple(terms), sha256)


def _entry(file: BinaryIO) -> tuple[bytes, int, int, int, int]:
    data = file.read(_ENTRY.size)
    if len(data) < _ENTRY.size:
        raise Malformed("the shard is cut off")
    name, first, second, third, fourth = _ENTRY.unpack(data)
    return name, first, second, third, fourth


def hash_text(raw: bytes) -> str:
    """Return a hash as Xet writes it: four 64-bit numbers, each in hexadecimal."""
    return "".join(f"{word:016x}" for word in _HASH.unpack(raw))

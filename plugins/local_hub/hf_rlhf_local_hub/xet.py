"""Contents from Xet: a server of the protocol, as far as a push needs it.

::

    ROOT/xet/ab/HASH    a xorb, as the client sent it

Files are assembled when their shard arrives. They then equal files from LFS: clients pull them over
plain HTTP. Xorbs stay, because a client that remembers a xorb never sends it again.

A *xorb* is a block of up to 64 MB of concatenated compressed chunks; a *shard* lists the chunks of
xorbs that make up a file. Source: https://huggingface.co/docs/xet, and `xet_core_structures` in
https://github.com/huggingface/xet-core. All integers are little-endian.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hf_rlhf_local_hub.blobs import Blobs, Upload
from hf_rlhf_local_hub.names import check_digest
from hf_rlhf_local_hub.refusals import Refused

_SHARD_TAG = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
_SHARD_VERSION = 2
_BOOKEND = b"\xff" * 32
_HAS_VERIFICATION = 1 << 31
_HAS_METADATA = 1 << 30
_ENTRY = struct.Struct("<32sIIII")
_CHUNK_HEADER = 8
_XORB_FOOTER = b"XETBLOB"

Term = tuple[str, int, int]
"""A xorb with the indices of its first and last (exclusive) chunk."""


class XetStore:
    """Xorbs below `root`; their files go to `blobs`."""

    def __init__(self, root: Path, blobs: Blobs) -> None:
        self.xorbs = Blobs(root)
        self._blobs = blobs

    def add_xorb(self, name: str, upload: Upload) -> bool:
        """Store a xorb; return False if it already exists."""
        if self.xorbs.has(check_digest(name)):
            return False
        self.xorbs.adopt(upload, name)
        return True

    def add_shard(self, upload: Upload) -> None:
        """Assemble the files of a shard.

        Raises Refused (400) if one of their xorbs is missing or damaged; a damaged xorb is deleted.
        """
        upload.finish()
        with upload.path.open("rb") as shard:
            for terms in _files(shard):
                content = self._blobs.new_upload()
                try:
                    for term in terms:
                        for chunk in self._chunks(*term):
                            content.write(chunk)
                    self._blobs.adopt(content, content.sha256)
                finally:
                    content.discard()

    def _chunks(self, xorb: str, start: int, end: int) -> Iterator[bytes]:
        if not self.xorbs.has(xorb):
            raise Refused(400, f"The shard names a xorb that was never uploaded: {xorb}.")
        path, number = self.xorbs.path(xorb), -1
        try:
            with path.open("rb") as file:
                for number in range(end):
                    header = file.read(_CHUNK_HEADER)
                    content = file.read(int.from_bytes(header[1:4], "little"))
                    if number >= start:
                        size = int.from_bytes(header[5:8], "little")
                        yield _unpacked(header[4], content, size)
        except (OSError, ValueError, IndexError) as error:
            path.unlink(missing_ok=True)
            raise Refused(
                400, f"Xorb {xorb} is damaged at chunk {number}: {error}. Send it again."
            ) from error


def _files(shard: BinaryIO) -> Iterator[list[Term]]:
    """Yield the parts of each file of a shard."""
    header = shard.read(48)
    version = int.from_bytes(header[32:40], "little")
    if header[:32] != _SHARD_TAG or version != _SHARD_VERSION:
        raise Refused(400, f"This is not a shard of version {_SHARD_VERSION}.")
    while True:
        name, flags, count, _, _ = _entry(shard)
        if name == _BOOKEND:
            return
        entries = [_entry(shard) for _ in range(count)]
        for _ in range(count if flags & _HAS_VERIFICATION else 0):
            _entry(shard)
        if flags & _HAS_METADATA:
            _entry(shard)
        yield [(_hash_text(xorb), start, end) for xorb, _, _, start, end in entries]


def _entry(file: BinaryIO) -> tuple[bytes, int, int, int, int]:
    data = file.read(_ENTRY.size)
    if len(data) < _ENTRY.size:
        raise Refused(400, "The shard is cut off.")
    name, first, second, third, fourth = _ENTRY.unpack(data)
    return name, first, second, third, fourth


def _hash_text(raw: bytes) -> str:
    """Return a hash as Xet writes it: four 64-bit numbers, each in hexadecimal."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", raw))


def _unpacked(scheme: int, content: bytes, size: int) -> bytes:
    if scheme in (1, 2):  # LZ4, and LZ4 on bytes grouped by their position modulo 4
        import pyarrow

        content = pyarrow.decompress(content, size, codec="lz4", asbytes=True)
    if len(content) != size or scheme > 2:
        raise ValueError(f"{len(content)} bytes of scheme {scheme}, expected {size}")
    return _ungrouped(content) if scheme == 2 else content


def _ungrouped(content: bytes) -> bytes:
    whole, start = bytearray(len(content)), 0
    for place in range(4):
        length = len(range(place, len(content), 4))
        whole[place::4] = content[start : start + length]
        start += length
    return bytes(whole)

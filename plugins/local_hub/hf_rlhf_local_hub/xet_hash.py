"""The hash of a xorb: a Merkle tree over its chunks, which is also the xorb's name.

Source: https://huggingface.co/docs/xet (hashing) and `merklehash` in xet-core.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from blake3 import blake3

from hf_rlhf_local_hub.xet_format import Malformed, XorbIndex, hash_text

_CHUNK_KEY = bytes.fromhex("6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229")
_NODE_KEY = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
_CHUNK_HEADER = 8
_BRANCHES = 4
"""Children of a node on average; at least 2, at most 2 x 4 + 1."""
_Node = tuple[bytes, int]
"""Its hash, and its bytes of content."""


def xorb_hash(path: Path, index: XorbIndex) -> str:
    """Return the hash of a xorb's content; raises Malformed for a chunk that does not unpack."""
    nodes: list[_Node] = []
    with path.open("rb") as file:
        sizes = zip(pairwise(index.packed), pairwise(index.unpacked), strict=True)
        for (start, end), (low, high) in sizes:
            file.seek(start)
            content = _unpacked(file.read(end - start), high - low)
            nodes.append((blake3(content, key=_CHUNK_KEY).digest(), len(content)))
    while len(nodes) > 1:
        merged, at = [], 0
        while at < len(nodes):
            size = _children(nodes[at:])
            merged.append(_parent(nodes[at : at + size]))
            at += size
        nodes = merged
    return hash_text(nodes[0][0])


def _children(nodes: Sequence[_Node]) -> int:
    """Return how many of the nodes the next parent takes: up to one whose hash divides by 4."""
    most = min(2 * _BRANCHES + 1, len(nodes))
    ends = (n + 1 for n in range(2, most) if int.from_bytes(nodes[n][0][24:], "little") % 4 == 0)
    return next(ends, most)


def _parent(nodes: Sequence[_Node]) -> _Node:
    text = "".join(f"{hash_text(digest)} : {size}\n" for digest, size in nodes)
    return blake3(text.encode(), key=_NODE_KEY).digest(), sum(size for _, size in nodes)


def _unpacked(chunk: bytes, size: int) -> bytes:
    scheme, content = chunk[4], chunk[_CHUNK_HEADER:]
    if scheme in (1, 2):  # LZ4; and of bytes that were grouped by their place in four
        import pyarrow

        try:
            content = pyarrow.decompress(content, size, codec="lz4", asbytes=True)
        except (OSError, ValueError) as error:
            raise Malformed(f"a chunk does not unpack: {error}") from error
    elif scheme:
        raise Malformed(f"a chunk is packed by scheme {scheme}, which is unknown")
    if len(content) != size:
        raise Malformed(f"a chunk has {len(content)} bytes, not {size}")
    return _ungrouped(content) if scheme == 2 else content


def _ungrouped(content: bytes) -> bytes:
    whole, start = bytearray(len(content)), 0
    for place in range(4):
        length = len(range(place, len(content), 4))
        whole[place::4] = content[start : start + length]
        start += length
    return bytes(whole)

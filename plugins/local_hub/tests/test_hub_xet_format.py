"""Bytes that are not a xorb or a shard are refused as such, and never believed."""

import struct
from pathlib import Path

import pytest

from hf_rlhf_local_hub import xet
from hf_rlhf_local_hub.blobs import Blobs, Upload
from hf_rlhf_local_hub.refusals import Refused

NAME = "ab" * 32
HEADER = xet._SHARD_TAG + struct.pack("<QQ", 2, 200)
BOOKEND = b"\xff" * 32 + b"\0" * 16


def chunk(size: int, scheme: bytes = b"\0") -> bytes:
    length = size.to_bytes(3, "little")
    return b"\0" + length + scheme + length + b"x" * size


def recipe(xorb: bytes, size: int, start: int, end: int) -> bytes:
    head = struct.pack("<32sIIQ", b"\1" * 32, 0, 1, 0)
    return HEADER + head + struct.pack("<32sIIII", xorb, 0, size, start, end) + BOOKEND


@pytest.fixture
def store(tmp_path: Path) -> xet.XetStore:
    return xet.XetStore(tmp_path / "xet", Blobs(tmp_path / "blobs"))


def upload(store: xet.XetStore, content: bytes) -> Upload:
    made = store.xorbs.new_upload()
    made.write(content)
    return made


def test_a_file_is_put_together_from_its_chunks(store: xet.XetStore) -> None:
    assert store.add_xorb(NAME, upload(store, chunk(10) + chunk(300) + chunk(5)))
    assert not store.add_xorb(NAME, upload(store, b"again"))
    store.add_shard(upload(store, recipe(b"\xab" * 32, 305, 1, 3)))
    (path,) = (path for path in store._blobs._root.rglob("*") if path.is_file())
    assert path.read_bytes() == b"x" * 305


@pytest.mark.parametrize(
    ("content", "xorb", "said"),
    [
        (chunk(10), b"\2" * 32, "never uploaded"),
        *((content, b"\xab" * 32, "damaged") for content in (
            b"", b"\0\0", chunk(10)[:-1], *(chunk(10, scheme) for scheme in (b"\1", b"\2", b"\7")),
        )),
    ],
)  # fmt: skip
def test_a_damaged_xorb_is_forgotten(
    store: xet.XetStore, content: bytes, xorb: bytes, said: str
) -> None:
    store.add_xorb(NAME, upload(store, content))
    with pytest.raises(Refused, match=said):
        store.add_shard(upload(store, recipe(xorb, 10, 0, 1)))
    assert store.xorbs.has(NAME) == (said != "damaged")

"""Bytes that are not a xorb or a shard are refused as such, and never believed."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_rlhf_local_hub import xet_format
from hf_rlhf_local_hub.blobs import Upload
from hf_rlhf_local_hub.refusals import Refused
from hf_rlhf_local_hub.xet import XetStore
from hf_rlhf_local_hub.xet_format import Malformed, read_shard, read_xorb
from hf_rlhf_local_hub.xet_hash import xorb_hash

NAME = "ab" * 32
HEADER = xet_format._SHARD_TAG + struct.pack("<QQ", 2, 200)
BOOKEND = b"\xff" * 32 + b"\0" * 16


def chunk(size: int) -> bytes:
    length = size.to_bytes(3, "little")
    return b"\0" + length + b"\0" + length + b"x" * size


def recipe(xorb: bytes, size: int, start: int, end: int) -> bytes:
    head = struct.pack("<32sIIQ", b"\1" * 32, 0, 1, 0)
    return HEADER + head + struct.pack("<32sIIII", xorb, 0, size, start, end) + BOOKEND


def upload(folder: Path, content: bytes) -> Upload:
    made = Upload(folder / f"upload-{len(list(folder.iterdir()))}")
    made.write(content)
    return made


def test_a_xorb_is_walked(tmp_path: Path) -> None:
    path = tmp_path / "xorb"
    path.write_bytes(chunk(10) + chunk(300) + b"XETBLOB\0footer")
    index = read_xorb(path)
    assert list(index.packed) == [0, 18, 326]
    assert list(index.unpacked) == [0, 10, 310]


@pytest.fixture
def any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Xorbs may have any name."""
    monkeypatch.setattr("hf_rlhf_local_hub.xet.xorb_hash", lambda *_: NAME)


@pytest.mark.parametrize("content", [b"", b"\0\0", chunk(10)[:-1], b"\1" + chunk(10)[1:]])
def test_damaged_xorbs(tmp_path: Path, content: bytes) -> None:
    store = XetStore(tmp_path / "xet")
    with pytest.raises(Refused, match="damaged"):
        store.add_xorb(NAME, upload(tmp_path, content))
    assert not store.xorbs.has(NAME)


@pytest.mark.parametrize("scheme", [b"\0", b"\1", b"\2", b"\7"])
def test_a_xorb_that_is_not_what_its_name_says(tmp_path: Path, scheme: bytes) -> None:
    store = XetStore(tmp_path / "xet")
    altered = chunk(10)[:4] + scheme + chunk(10)[5:]
    for content in (altered, chunk(10) + altered):
        with pytest.raises(Refused, match="is damaged"):
            store.add_xorb(NAME, upload(tmp_path, content))
    assert not store.xorbs.has(NAME)
    path = tmp_path / "good"
    path.write_bytes(chunk(10) + chunk(300))
    name = xorb_hash(path, read_xorb(path))
    assert store.add_xorb(name, upload(tmp_path, path.read_bytes()))


@pytest.mark.usefixtures("any_name")
@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ((b"\2" * 32, 310, 0, 2), "never uploaded"),
        ((b"\xab" * 32, 310, 0, 3), "2 chunks"),
        ((b"\xab" * 32, 311, 0, 2), "size"),
        ((b"\xab" * 32, 0, 1, 1), "empty range"),
    ],
)
def test_shards_that_do_not_fit(
    tmp_path: Path, terms: tuple[bytes, int, int, int], said: str
) -> None:
    store = XetStore(tmp_path / "xet")
    store.add_xorb(NAME, upload(tmp_path, chunk(10) + chunk(300)))
    with pytest.raises(Refused, match=said):
        store.add_shard(upload(tmp_path, recipe(*terms)))


@pytest.mark.usefixtures("any_name")
def test_parts_are_cut_at_chunks(tmp_path: Path) -> None:
    """Only the chunks that hold the wanted bytes are named."""
    store = XetStore(tmp_path / "xet")
    store.add_xorb(NAME, upload(tmp_path, chunk(10) + chunk(300) + chunk(5)))
    store.add_shard(upload(tmp_path, recipe(b"\xab" * 32, 315, 0, 3)))
    name = xet_format.hash_text(b"\1" * 32)

    def parts(wanted: tuple[int, int | None] | None) -> tuple[int, list[tuple[int, int]]]:
        answer = store.reconstruction(name, wanted, lambda xorb: f"there/{xorb}")
        terms = answer["terms"]
        assert sum(term["unpacked_length"] for term in terms) > 0
        (fetch,) = answer["fetch_info"][NAME]
        assert fetch["range"] == terms[0]["range"]
        return answer["offset_into_first_range"], [
            (term["range"]["start"], term["range"]["end"]) for term in terms
        ]

    assert parts(None) == (0, [(0, 3)])
    assert parts((0, 9)) == (0, [(0, 1)])
    assert parts((9, 10)) == (9, [(0, 2)])
    assert parts((10, 10)) == (0, [(1, 2)])
    assert parts((309, None)) == (299, [(1, 3)])
    assert parts((314, 10_000)) == (4, [(2, 3)])
    with pytest.raises(Refused, match="315 bytes"):
        parts((315, None))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(HEADER.__add__)))
def test_no_bytes_surprise_the_readers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(content)
    for reader in (read_xorb, read_shard):
        try:
            reader(path)
        except Malformed:
            continue

"""Contents that came by Xet: xorbs, and recipes to put files together from them.

::

    ROOT/xet/xorbs/ab/HASH        one xorb, as the client sent it
    ROOT/xet/files/ab/HASH.json   the recipe of one file
    ROOT/xet/sha256/ab/SHA.json   which file has this SHA-256, and whether we have checked

hf_xet could also keep these itself, in a folder (`local://`); but it opens such a folder for one
process at a time, for as long as that process lives, so that nobody could pull while a training
run that had pushed is still up. Hence a server of the protocol, which also works from elsewhere.

Clients are not trusted: the first commit of a file reads it back and compares the SHA-256.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from hf_rlhf.storage import atomic_write_json
from hf_rlhf_local_hub.blobs import Blobs, Upload
from hf_rlhf_local_hub.names import check_digest
from hf_rlhf_local_hub.refusals import Refused
from hf_rlhf_local_hub.xet_format import (
    Malformed,
    Term,
    XorbIndex,
    read_shard,
    read_xorb,
)
from hf_rlhf_local_hub.xet_hash import xorb_hash

Link = Callable[[str], str]
"""Xorb hash -> the address where it can be fetched."""

# hf_xet buffers up to 6 GB by default, which is not for a server beside a training run.
_READER_LIMITS = {
    "reconstruction.min_reconstruction_fetch_size": 32_000_000,
    "reconstruction.max_reconstruction_fetch_size": 64_000_000,
    "reconstruction.min_prefetch_buffer": 32_000_000,
    "reconstruction.download_buffer_size": 64_000_000,
    "reconstruction.download_buffer_perfile_size": 32_000_000,
    "reconstruction.download_buffer_limit": 128_000_000,
}


class XetStore:
    """Xorbs and recipes below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.xorbs = Blobs(root / "xorbs")
        self._index = lru_cache(maxsize=256)(lambda name: read_xorb(self.xorbs.path(name)))

    def add_xorb(self, name: str, upload: Upload) -> bool:
        """Store a xorb; False when it is stored already.

        Raises Refused (400) for one that is not what its name says: once it is stored, a client
        that remembers it never sends it again.
        """
        if self.xorbs.has(check_digest(name)):
            return False
        upload.finish()
        try:
            arrived = xorb_hash(upload.path, read_xorb(upload.path))
        except Malformed as error:
            raise Refused(400, f"Xorb {name} is damaged: {error}.") from error
        if arrived != name:
            raise Refused(
                400,
                f"Xorb {name} is damaged: what arrived has the hash {arrived}. Send it again, or "
                "without Xet (HF_HUB_DISABLE_XET=1).",
            )
        self.xorbs.adopt(upload, name)
        return True

    def add_shard(self, upload: Upload) -> None:
        """Store the recipes of a shard; raises Refused (400) if one of their xorbs is missing."""
        upload.finish()
        try:
            recipes = read_shard(upload.path)
        except Malformed as error:
            raise Refused(400, f"The shard is damaged: {error}.") from error
        for recipe in recipes:
            for term in recipe.terms:
                self._check_term(term)
        for recipe in recipes:
            self._write("files", recipe.hash, asdict(recipe))
            if recipe.sha256 and not (self._read("sha256", recipe.sha256) or {}).get("checked"):
                claim = {"file": recipe.hash, "size": recipe.size, "checked": False}
                self._write("sha256", recipe.sha256, claim)

    def find(self, sha256: str, read: Callable[[str, int], Iterator[bytes]]) -> Any:
        """Return `{"file": xet hash, "size": bytes}` of the file with this SHA-256, or None.

        Args:
            sha256: checked with names.check_digest.
            read: (xet hash, size) -> its content; used once per file, to compare the SHA-256.

        Raises:
            Refused: 400, the content differs from the SHA-256 that the client sent.
        """
        claim = self._read("sha256", sha256)
        if claim is not None and not claim["checked"]:
            digest = hashlib.sha256()
            for chunk in read(claim["file"], claim["size"]):
                digest.update(chunk)
            if digest.hexdigest() != sha256:
                self._path("sha256", sha256).unlink(missing_ok=True)
                raise Refused(
                    400,
                    f"The file uploaded by Xet as {sha256} has SHA-256 {digest.hexdigest()}: "
                    "altered, or announced wrongly. HF_HUB_DISABLE_XET=1 resends it.",
                )
            claim["checked"] = True
            self._write("sha256", sha256, claim)
        return claim

    def reconstruction(
        self, name: str, wanted: tuple[int, int | None] | None, link: Link
    ) -> dict[str, Any]:
        """Return the protocol's answer to how a file, or a part of it, is put together.

        Args:
            name: the file's Xet hash.
            wanted: first and last byte (inclusive; None is the end of the file), or None for all.
            link: gives the address of a xorb.

        Raises:
            Refused: 404 for no such file, 416 for a range behind its end.
        """
        data = self._read("files", check_digest(name))
        if data is None:
            raise Refused(404, f"No file with Xet hash {name}")
        terms = [Term(**term) for term in data["terms"]]
        size = sum(term.size for term in terms)
        first, last = wanted or (0, None)
        end = size if last is None else min(last + 1, size)
        if first >= end:
            raise Refused(416, f"The file has {size} bytes; there is no byte {first}.")
        offset, pieces = self._cut(terms, first, end)
        return {
            "offset_into_first_range": offset,
            "terms": [
                {
                    "hash": piece.xorb,
                    "unpacked_length": piece.size,
                    "range": {"start": piece.start, "end": piece.end},
                }
                for piece in pieces
            ],
            "fetch_info": self._fetch_info(pieces, link),
        }

    def _cut(self, terms: list[Term], first: int, end: int) -> tuple[int, list[Term]]:
        """Return the chunks of [first, end), and how many bytes of them precede `first`."""
        pieces: list[Term] = []
        offset = position = 0
        for term in terms:
            ends = self._index(term.xorb).unpacked
            chunks: list[int] = []
            for chunk, (low, high) in enumerate(
                pairwise(ends[term.start : term.end + 1]), start=term.start
            ):
                start, position = position, position + high - low
                if position > first and start < end:
                    if not pieces and not chunks:
                        offset = first - start
                    chunks.append(chunk)
            if chunks:
                low, high = chunks[0], chunks[-1] + 1
                pieces.append(Term(term.xorb, ends[high] - ends[low], low, high))
        return offset, pieces

    def _fetch_info(self, pieces: list[Term], link: Link) -> dict[str, Any]:
        info = {}
        for name in dict.fromkeys(piece.xorb for piece in pieces):
            packed = self._index(name).packed
            info[name] = [
                {
                    "range": {"start": start, "end": end},
                    "url": link(name),
                    "url_range": {"start": packed[start], "end": packed[end] - 1},
                }
                for start, end in _merged([p for p in pieces if p.xorb == name])
            ]
        return info

    def _check_term(self, term: Term) -> None:
        if not self.xorbs.has(term.xorb):
            raise Refused(400, f"The shard names a xorb that was never uploaded: {term.xorb}.")
        index: XorbIndex = self._index(term.xorb)
        if term.end > index.chunks:
            raise Refused(400, f"Xorb {term.xorb} has {index.chunks} chunks, not {term.end}.")
        if index.unpacked[term.end] - index.unpacked[term.start] != term.size:
            raise Refused(400, f"The shard is wrong about the size of chunks of {term.xorb}.")

    def _path(self, table: str, name: str) -> Path:
        return self._root / table / name[:2] / f"{name}.json"

    def _write(self, table: str, name: str, value: Any) -> None:
        atomic_write_json(self._path(table, name), value, mode=0o600)

    def _read(self, table: str, name: str) -> Any:
        try:
            return json.loads(self._path(table, name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


class XetReader:
    """Reads files as any client does, through hf_xet, for clients that speak plain HTTP.

    Args:
        token: returns a token that reads, for as long as `seconds` says.
    """

    def __init__(self, token: Callable[[int], str]) -> None:
        self._token = token
        self._session: Any = None

    def read(
        self, endpoint: str, name: str, size: int, start: int = 0, end: int | None = None
    ) -> Iterator[bytes]:
        """Yield bytes `start` to `end` (exclusive) of the file with Xet hash `name`."""
        import hf_xet

        if self._session is None:
            self._session = hf_xet.XetSession(hf_xet.XetConfig().with_config(_READER_LIMITS))
        seconds = 24 * 3600
        group = self._session.new_download_stream_group(
            endpoint=endpoint,
            token=self._token(seconds),
            token_expiry_unix_secs=int(time.time()) + seconds,
        )
        stream = group.download_stream(hf_xet.XetFileInfo(name, size), start=start, end=end)
        try:
            yield from stream
        finally:
            stream.cancel()


def _merged(pieces: list[Term]) -> list[tuple[int, int]]:
    """Return the ranges of chunks, sorted, adjacent ones joined."""
    merged: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if merged and piece.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], piece.end))
        else:
            merged.append((piece.start, piece.end))
    return merged

"""The files to upload: of allowed kinds, without secrets, with their hashes.

This is an allow list: files of any other kind are excluded.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hf_rlhf.cards.folders import EDITED_CARD
from hf_rlhf.errors import ModelError, PublishError
from hf_rlhf.models.adapter import check_tensors
from hf_rlhf.storage.secrets import find_secrets

ALLOWED = (
    ".safetensors", ".json", ".yaml", ".yml", ".md", ".png", ".svg", ".jpg", ".jpeg",
    ".txt", ".model", ".jinja", ".wav", ".flac",
)  # fmt: skip
"""Weights, configuration, cards, pictures, tokenizers (merges.txt, ...), and short sounds."""
SOUNDS = (".wav", ".flac")
MAX_SOUND = 2_000_000
"""Limit in bytes for a sound file, which is a sample."""
_EXCLUDED = {
    "trainer_state.json": "state of training",
    "manifest.json": "the manifest of a local checkpoint",
    "merge.json": "a note on the local merge",
    "README.md": "the repository gets the card of the run",
    "run.json": "the repository gets the record of the run",
}
"""Name -> why a file of an allowed kind is not pushed."""
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class PushedFile:
    """A file for the repository, hashed when a hash is first read."""

    path: str
    source: Path | bytes

    @cached_property
    def size(self) -> int:
        """Its bytes."""
        if isinstance(self.source, bytes):
            return len(self.source)
        return self.source.stat().st_size

    @property
    def sha256(self) -> str:
        """The Hub's hash of files in LFS."""
        return self._hashes[0]

    @property
    def git(self) -> str:
        """The git blob id, the Hub's hash of all other files."""
        return self._hashes[1]

    @cached_property
    def _hashes(self) -> tuple[str, str]:
        sha256 = hashlib.sha256()
        git = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        for chunk in _chunks(self.source):
            sha256.update(chunk)
            git.update(chunk)
        return sha256.hexdigest(), git.hexdigest()

    @property
    def origin(self) -> str:
        """The source of its content, for messages."""
        return "its source" if isinstance(self.source, bytes) else str(self.source)

    def read(self) -> bytes:
        """Return its content."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


@dataclass
class UploadSet:
    """Files by their path in the repository."""

    root: Path
    """The run folder; links out of it are refused."""
    files: dict[str, PushedFile] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Path below `root` -> why a file of an added folder is not pushed."""
    notes: tuple[str, ...] = ()
    """Notes on the weights for the card and for whoever pushes."""

    def add_text(self, path: str, text: str) -> None:
        """Add a file with this text."""
        self.files[path] = PushedFile(path, text.encode("utf-8"))

    def add_file(self, path: str, source: Path) -> None:
        """Add a file. Raise PublishError if a link leads out of the run folder."""
        if not source.resolve().is_relative_to(self.root.resolve()):
            raise PublishError(
                f"{source} is a link to {source.resolve()}, outside {self.root}. Nothing was "
                "pushed. Copy the file into the folder if it belongs to the run."
            )
        self.files[path] = PushedFile(path, source)

    def add_folder(self, folder: Path, prefix: str = "", skip: Iterable[str] = ()) -> None:
        """Add the allowed files of a model or adapter folder, without its subfolders.

        Subfolders hold other content: a reference adapter (`ref/`), optimizer shards. The only
        exception is a tokenizer's chat templates.
        """
        paths = [*folder.glob("*"), *folder.glob("additional_chat_templates/*")]
        for path in sorted(path for path in paths if path.is_file() and path.name not in skip):
            if reason := _exclusion(path):
                self.left_out[path.relative_to(self.root).as_posix()] = reason
            else:
                self.add_file(f"{prefix}{path.relative_to(folder).as_posix()}", path)

    def manifest(self) -> dict[str, dict[str, str | int]]:
        """Return path -> size and hashes, stored in the repository itself."""
        with ThreadPoolExecutor() as pool:  # hashing frees the GIL
            list(pool.map(lambda file: file.sha256, self.files.values()))
        return {
            path: {"size": file.size, "sha256": file.sha256, "git": file.git}
            for path, file in sorted(self.files.items())
        }

    def check(self, secrets: Mapping[str, str]) -> None:
        """Raise PublishError for a secret, an empty tensor, or a pickle behind an allowed name."""
        for file in self.files.values():
            if names := find_secrets(_text_bytes(file), secrets):
                raise PublishError(
                    f"{file.path} contains {', '.join(names)}. Nothing was pushed. Remove it from "
                    f"{file.origin}, and replace that secret if others could read the file."
                )


def _exclusion(path: Path) -> str:
    """Return why a file is excluded, or ""."""
    if path.suffix.lower() not in ALLOWED:
        return f"files of the kind {path.suffix or path.name} are never pushed"
    if path.suffix.lower() in SOUNDS and path.stat().st_size > MAX_SOUND:
        return f"sound files above {MAX_SOUND / 1e6:g} MB are not pushed"
    if path.name.startswith(EDITED_CARD):
        return _EXCLUDED["README.md"]
    return _EXCLUDED.get(path.name, "")


def _text_bytes(file: PushedFile) -> bytes:
    """Return the bytes that can hold text: the whole file, or a safetensors header."""
    if isinstance(file.source, Path) and file.path.endswith(".safetensors"):
        try:
            check_tensors(file.source)
        except ModelError as error:
            raise PublishError(f"{error} Nothing was pushed.") from error
        with file.source.open("rb") as stream:
            return stream.read(int.from_bytes(stream.read(8), "little"))
    content = file.read()
    if content.startswith(_PICKLES):
        raise PublishError(f"{file.origin} is a pickle or an archive, whatever its name says.")
    return content


def is_pickle(path: Path) -> bool:
    """Return whether a file starts like a pickle or torch's zip of pickles."""
    with path.open("rb") as stream:
        return stream.read(4).startswith(_PICKLES)


def _chunks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as stream:
        while chunk := stream.read(2**20):
            yield chunk


def as_text(value: object) -> str:
    """Return deterministic JSON, so that a second push changes nothing."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n"

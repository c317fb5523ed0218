"""What may leave the machine: files of allowed kinds, without secrets, with their hashes.

A bundle is built from nothing: a file is in it because its kind is on the list, not because
nobody thought of excluding it.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hf_rlhf.errors import PublishError
from hf_rlhf.models.adapter_check import check_tensors
from hf_rlhf.storage.secrets import find_secrets

ALLOWED = (
    ".safetensors", ".json", ".yaml", ".yml", ".md", ".png", ".svg", ".jpg", ".jpeg",
    ".txt", ".model", ".jinja",
)  # fmt: skip
"""Weights, configuration, cards, pictures, and tokenizers (merges.txt, tokenizer.model, ...)."""
_LEFT_OUT = ("trainer_state.json", "manifest.json", "README.md", "run.json", "merge.json")
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PushedFile:
    """One file as it will stand in the repository."""

    path: str
    source: Path | bytes
    size: int
    sha256: str
    git: str
    """Its git blob id, by which the Hub names files that it does not keep in LFS."""

    @classmethod
    def of(cls, path: str, source: Path | bytes, *, hashed: bool = True) -> "PushedFile":
        """Hash `source`, in chunks; or do not, where only the name matters."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if not hashed:
            return cls(path, source, size, "", "")
        sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        for chunk in _chunks(source):
            sha256.update(chunk)
            git.update(chunk)
        return cls(path, source, size, sha256.hexdigest(), git.hexdigest())

    def read(self) -> bytes:
        """Return its content."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()


@dataclass
class UploadSet:
    """Files by their path in the repository."""

    root: Path
    """The run folder, which no file may lead out of."""
    files: dict[str, PushedFile] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Files that were passed over because of their kind."""
    hashed: bool = True
    """False where only the names are wanted: hashing 100 GB takes minutes."""

    def add_text(self, path: str, text: str) -> None:
        """Add a file that is made here."""
        self.files[path] = PushedFile.of(path, text.encode("utf-8"), hashed=self.hashed)

    def add_file(self, path: str, source: Path) -> None:
        """Add one file; PublishError if a link leads out of the run folder."""
        self.files[path] = self._file(path, source)

    def _file(self, path: str, source: Path) -> PushedFile:
        if not source.resolve().is_relative_to(self.root.resolve()):
            raise PublishError(
                f"{source} is a link to {source.resolve()}, outside {self.root}. Nothing was "
                "pushed. Copy the file into the folder if it belongs to the run."
            )
        return PushedFile.of(path, source, hashed=self.hashed)

    def add_folder(self, folder: Path, prefix: str = "", skip: Iterable[str] = ()) -> None:
        """Add the allowed files of a model or adapter folder, without its subfolders.

        Subfolders hold other things: a reference adapter (`ref/`), optimizer shards. Chat
        templates are the one exception that tokenizers know.
        """
        result: list[tuple[str, Path]] = []
        for path in sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*")]):
            if not path.is_file() or path.name in skip:
                continue
            if _goes(path):
                result.append((f"{prefix}{path.relative_to(folder).as_posix()}", path))
            else:
                self.left_out.append(path.relative_to(self.root).as_posix())
        for file in _side_by_side(lambda item: self._file(*item), result):
            self.files[file.path] = file

    def manifest(self) -> dict[str, dict[str, str | int]]:
        """Return path -> size and hashes, to be kept in the repository itself."""
        return {
            path: {"size": file.size, "sha256": file.sha256, "git": file.git}
            for path, file in sorted(self.files.items())
        }

    def check(self, secrets: Mapping[str, str]) -> None:
        """Raise PublishError for a secret, an empty tensor, or a pickle behind an allowed name."""
        for file in self.files.values():
            head = _head(file)
            if result := find_secrets(head, secrets):
                raise PublishError(
                    f"{file.path} contains {', '.join(result)}. Nothing was pushed. Remove it from "
                    f"{_where(file)}, and replace that secret if others could read the file."
                )


def publishable_files(folder: Path) -> list[Path]:
    """Return the files of a model or adapter folder that `Bundle.add_folder` takes."""
    result = [*folder.glob("*"), *folder.glob("additional_chat_templates/*")]
    return sorted(path for path in result if path.is_file() and _goes(path))


def _side_by_side(
    work: Callable[[tuple[str, Path]], PushedFile], found: list[tuple[str, Path]]
) -> list[PushedFile]:
    # A process waits for a pool's threads before it ends, and a daemon is not to be waited for.
    if threading.current_thread().daemon:
        return [work(item) for item in found]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing frees the GIL
        return list(pool.map(work, found))


def _goes(path: Path) -> bool:
    return path.suffix.lower() in ALLOWED and path.name not in _LEFT_OUT


def _where(file: PushedFile) -> str:
    return "what it is made from" if isinstance(file.source, bytes) else str(file.source)


def _head(file: PushedFile) -> bytes:
    """Return what can hold text: all of a file, or the header of a safetensors file."""
    if not file.path.endswith(".safetensors"):
        content = file.read()
        if content.startswith(_PICKLES):
            raise PublishError(f"{_where(file)} is a pickle or an archive, whatever its name says.")
        return content
    assert isinstance(file.source, Path)
    return safetensors_header(file.source)


def safetensors_header(path: Path) -> bytes:
    """Return a safetensors file's header; PublishError if it is no such file, or holds nothing."""
    check_tensors(path)
    with path.open("rb") as stream:
        return stream.read(int.from_bytes(stream.read(8), "little"))


def is_pickle(path: Path) -> bool:
    """Say whether a file begins as a pickle or as torch's zip of pickles."""
    with path.open("rb") as stream:
        return stream.read(4).startswith(_PICKLES)


def _chunks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def as_text(value: object) -> str:
    """Return JSON that is the same for the same value, so that a second push changes nothing."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n"

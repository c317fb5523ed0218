"""Repositories, commits and files as JSON of the Hub's API."""

import hashlib
from collections.abc import Iterable
from typing import Any

from hf_rlhf.cards import listed
from hf_rlhf_local_hub import cards
from hf_rlhf_local_hub.blobs import Blobs
from hf_rlhf_local_hub.commits import LARGEST_REGULAR_FILE
from hf_rlhf_local_hub.store import Commit, Entry, Repository, lfs_pointer


def repository_info(
    repository: Repository, commit: Commit, blobs: Blobs, *, sizes: bool = False
) -> dict[str, Any]:
    """Return the answer for `model_info` and `dataset_info`.

    Args:
        repository: the repository.
        commit: its state.
        blobs: the contents, for its README.
        sizes: add size and hash of every file.
    """
    settings = repository.settings
    card = _card(commit, blobs)
    info: dict[str, Any] = {
        "_id": settings.id,
        "id": repository.id,
        "author": repository.id.split("/")[0],
        "sha": commit.oid,
        "createdAt": settings.created,
        "lastModified": commit.date,
        "private": settings.private,
        "gated": settings.gated,
        "tags": listed(card.get("tags")),
        "cardData": card,
        "siblings": [
            {"rfilename": path} | (_blob(entry) if sizes else {})
            for path, entry in sorted(commit.files.items())
        ],
    }
    if repository.kind == "models":
        info |= {"modelId": repository.id, "spaces": []}
        info |= {key: card[key] for key in ("pipeline_tag", "library_name") if key in card}
    return info


def commit_info(commit: Commit) -> dict[str, Any]:
    """Return the answer for `list_repo_commits`."""
    return {
        "id": commit.oid,
        "title": commit.title,
        "message": commit.message,
        "authors": [{"user": commit.author}],
        "date": commit.date,
    }


def tree(commit: Commit, folder: str, *, recursive: bool) -> list[dict[str, Any]] | None:
    """Return the files and folders in `folder` ("" is the root); None if it does not exist."""
    prefix = f"{folder}/" if folder else ""
    inside = {path: e for path, e in sorted(commit.files.items()) if path.startswith(prefix)}
    if folder and not inside:
        return None
    folders: dict[str, None] = {}
    files = []
    for path, entry in inside.items():
        names = path[len(prefix) :].split("/")
        depths = range(1, len(names)) if recursive else range(1, min(len(names), 2))
        folders |= dict.fromkeys(prefix + "/".join(names[:depth]) for depth in depths)
        if recursive or len(names) == 1:
            files.append(file_info(path, entry))
    return [folder_info(commit, name) for name in folders] + files


def paths_info(commit: Commit, paths: Iterable[str]) -> list[dict[str, Any]]:
    """Return the files and folders among `paths` that exist."""
    entries = []
    for path in paths:
        if path in commit.files:
            entries.append(file_info(path, commit.files[path]))
        elif any(name.startswith(f"{path}/") for name in commit.files):
            entries.append(folder_info(commit, path))
    return entries


def file_info(path: str, entry: Entry) -> dict[str, Any]:
    """Return a file of a tree."""
    info: dict[str, Any] = {
        "type": "file",
        "path": path,
        "size": entry.size,
        "oid": entry.oid,
    }
    if entry.lfs:
        info["lfs"] = {"oid": entry.sha256, **_pointer(entry)}
    return info


def folder_info(commit: Commit, path: str) -> dict[str, Any]:
    """Return a folder of a tree. Like git's, its id changes exactly when its content does."""
    inside = [f"{n} {e.oid}" for n, e in sorted(commit.files.items()) if n.startswith(f"{path}/")]
    oid = hashlib.sha1("\n".join(inside).encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "path": path, "size": 0, "oid": oid}


def upload_mode(path: str, size: int, sample: bytes) -> str:
    """Return the upload mode: "lfs" (or Xet) for large or binary files, else "regular"."""
    if not size:
        return "regular"
    if size > LARGEST_REGULAR_FILE or path.lower().endswith(LARGE_SUFFIXES):
        return "lfs"
    try:
        # A sample may end within a character.
        sample.decode("utf-8")
    except UnicodeDecodeError as error:
        return "lfs" if error.start < len(sample) - 4 else "regular"
    return "lfs" if b"\0" in sample else "regular"


# fmt: off
LARGE_SUFFIXES = (
    ".7z", ".arrow", ".bin", ".bz2", ".ckpt", ".ftz", ".gz", ".h5", ".joblib", ".mlmodel",
    ".model", ".msgpack", ".npy", ".npz", ".onnx", ".ot", ".parquet", ".pb", ".pickle", ".pkl",
    ".pt", ".pth", ".rar", ".safetensors", ".tar", ".tflite", ".tgz", ".wasm", ".xz", ".zip",
    ".zst",
)
# fmt: on
GIT_ATTRIBUTES = "".join(
    f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LARGE_SUFFIXES
).encode()
"""The Hub's content of a new repository."""


def _pointer(entry: Entry) -> dict[str, int]:
    return {"size": entry.size, "pointerSize": len(lfs_pointer(entry.sha256, entry.size))}


def _blob(entry: Entry) -> dict[str, Any]:
    info: dict[str, Any] = {"size": entry.size, "blobId": entry.oid}
    if entry.lfs:
        info["lfs"] = {"sha256": entry.sha256, **_pointer(entry)}
    return info


def _card(commit: Commit, blobs: Blobs) -> dict[str, Any]:
    entry = commit.files.get("README.md")
    if entry is None or entry.lfs:
        return {}
    text = blobs.path(entry.sha256).read_text(encoding="utf-8", errors="replace")
    # Commits with broken metadata are refused, so this content can be parsed.
    return cards.read_metadata(text) or {}

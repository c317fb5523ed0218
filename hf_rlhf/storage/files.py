"""Write files and folders atomically."""

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hf_rlhf.errors import RunFolderError

_UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{32}\.(?P<kind>tmp|old)")


@contextmanager
def atomic_file(path: str | os.PathLike[str], *, mode: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `path` when the block ends without an error.

    A reader or a crash sees either the old or the new file. Missing parent folders are created.
    Without `mode`, the file keeps its permissions or gets the default. Raises RunFolderError with
    path and cause if the file cannot be written; the old content then remains.
    """
    target = Path(path)
    # In the same folder, because os.replace is atomic only within one filesystem.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not tempfile: its files are private (0600), and a run folder is often shared.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        handle = os.open(temporary, flags, 0o666 if mode is None else mode)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is None and target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
        sync_path(target.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise  # an error of the block
        raise _unwritable(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_bytes(
    path: str | os.PathLike[str], content: bytes, *, mode: int | None = None
) -> None:
    """Write `content` atomically, like `atomic_file`."""
    with atomic_file(path, mode=mode) as file:
        file.write(content)


def _unwritable(target: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"{target} cannot be written: {error.strerror or error}. Free space, or choose a "
        "folder that is writable."
    )


def atomic_write_text(path: str | os.PathLike[str], text: str, *, mode: int | None = None) -> None:
    """Write `text` as UTF-8 atomically."""
    # A completion may contain a lone surrogate, which UTF-8 cannot encode.
    atomic_write_bytes(path, text.encode("utf-8", errors="backslashreplace"), mode=mode)


def atomic_write_json(path: str | os.PathLike[str], value: Any, *, mode: int | None = None) -> None:
    """Write `value` as indented JSON atomically.

    Raises ValueError for NaN or infinity and TypeError for values that are not JSON, before any
    file is touched; `as_json` converts other values.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_text(path, text + "\n", mode=mode)


@contextmanager
def atomic_dir(out: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that becomes `out` when the block ends without an error.

    Raises RunFolderError if `out` has content and `overwrite` is not set, or it cannot be written.
    On any error `out` is unchanged.
    """
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not overwrite:
        raise RunFolderError(f"{target} exists. Choose another folder, or ask to overwrite it.")
    name = uuid.uuid4().hex
    temporary, old = (target.with_name(f".{target.name}.{name}.{end}") for end in ("tmp", "old"))
    try:
        temporary.mkdir(parents=True)
        yield temporary
        _swap(temporary, target, old)
    except OSError as error:
        if error.errno is None:
            raise  # not a disk error: the Hub client's errors are OSErrors too
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(temporary: Path, target: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    sync_path(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def clear_unfinished(folder: Path) -> None:
    """Delete temporary files of killed writers in `folder` and its subfolders.

    No other process may write to the folder. A folder in the middle of a replacement gets its old
    content back.
    """
    for parent in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        for path in list(parent.glob(".*")):
            if (match := _UNFINISHED.fullmatch(path.name)) is None:
                continue
            target = parent / match["name"]
            if match["kind"] == "old" and not target.exists():
                path.rename(target)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk; Windows cannot open a folder."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

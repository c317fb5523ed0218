"""Write a file whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError


def atomic_write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` so that a reader, or a crash, sees the old file or the new one, never less.

    Missing parent folders are made. Raises RunFolderError, naming the path and the cause, when
    the file cannot be written; the old content then stands.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, because os.replace is atomic only within one filesystem.
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
        temporary = None
        _sync_folder(target.parent)
    except OSError as error:
        raise RunFolderError(
            f"{target} cannot be written: {error.strerror or error}. Free space, or choose a "
            "folder that is writable (`output_dir`)."
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, as `atomic_write_bytes` does."""
    # A completion may hold half of a surrogate pair, which is text to Python but not to UTF-8.
    atomic_write_bytes(path, text.encode("utf-8", errors="backslashreplace"))


def atomic_write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, as `atomic_write_bytes` does.

    Raises ValueError for NaN or infinity and TypeError for what is not JSON, before any file is
    touched; `hf_rlhf.record.as_json` makes JSON of everything else.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    atomic_write_text(path, text + "\n")


def _mode(target: Path) -> int:
    """Return the permissions that the file has, or that a new one would have."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut; Windows cannot open a folder."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

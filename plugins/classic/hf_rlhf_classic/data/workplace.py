"""Where rows are converted: a temporary folder, and what killed processes have left of theirs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from hf_rlhf.errors import DiskError
from hf_rlhf.storage import disk_errors_told

PREFIX = ".spool-"


@contextmanager
def workplace() -> Iterator[tuple[Path, Path]]:
    """Yield the folder for splits and one for what is temporary, both where `datasets` caches.

    Raises DiskError for a cache that cannot be written, or is full.
    """
    from datasets import config
    from filelock import FileLock

    cache = Path(config.HF_DATASETS_CACHE, "hf_rlhf")
    folder = cache / f"{PREFIX}{uuid4().hex}"
    with disk_errors_told(cache):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            clear(cache)
            # The system gives it back when its holder dies. Held before the folder is there, so
            # that a folder whose lock is free has no owner.
            lock = FileLock(_lock_of(folder))
            lock.acquire()
            folder.mkdir()
        except OSError as error:
            raise DiskError(
                f"{cache} cannot be written: {error.strerror or error}. Set HF_DATASETS_CACHE to "
                "a folder that can."
            ) from error
        try:
            yield cache, folder
        finally:
            _delete(folder)
            lock.release()


def clear(cache: Path) -> None:
    """Delete the temporary folders of processes that are no more."""
    from filelock import FileLock, Timeout

    for folder in cache.glob(f"{PREFIX}*/"):
        try:
            with FileLock(_lock_of(folder), timeout=0):
                _delete(folder)
        except Timeout:
            continue


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _lock_of(folder).unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")

"""Cache verdicts and texts on disk, so that each is paid for once; and `hf-rlhf judge-cache`.

The format is SQLite with JSON, which never executes anything. Several processes and threads may use
it at once. A cache that cannot be read or written warns once, and never stops a run.
"""

import argparse
import json
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.errors import JudgeError

Keep = Callable[[str, Any], None]
_MAX_FAILURES = 5
_LOCKED_S = 10.0


def default_path() -> Path:
    """Return the path of the cache in `$HF_RLHF_CACHE`, by default under the XDG cache folder."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_RLHF_CACHE") or xdg / "hf_rlhf") / "judge.sqlite"


@dataclass
class DiskCache:
    """JSON values by key in a SQLite table."""

    path: Path
    decode: Callable[[Any], Any]
    """Converts a JSON value for `read`. Raises ValueError or TypeError if invalid."""
    enabled: bool = True
    failures: int = field(default=0, compare=False)
    """Failed reads and writes. After a few the file is no longer used: waiting for a locked file
    takes seconds each time, in which no reply is read."""

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of `keys` that are in the file."""
        values: dict[str, Any] = {}
        if self._is_usable():
            with self._warn_on_failure(), closing(self._open()) as database:
                for key in dict.fromkeys(keys):
                    query = "SELECT value FROM replies WHERE key = ?"
                    for (text,) in database.execute(query, (key,)):
                        values[key] = self.decode(json.loads(text))
        return values

    @contextmanager
    def writer(self) -> Iterator[Keep]:
        """Yield a function that stores a JSON value under a key, over a single connection.

        Opening and closing the file costs more than a row: closing flushes it to disk.
        """
        database: sqlite3.Connection | None = None

        def keep(key: str, value: Any) -> None:
            nonlocal database
            if self._is_usable():
                with self._warn_on_failure():
                    database = database or self._open()
                    row = (key, json.dumps(value))
                    database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", row)

        try:
            yield keep
        finally:
            if database is not None:
                with self._warn_on_failure():
                    database.close()

    def _is_usable(self) -> bool:
        return self.enabled and self.failures < _MAX_FAILURES

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = _connect(self.path)
        try:
            with suppress(sqlite3.OperationalError):  # a concurrent opener sets it
                database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            table = "replies (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
            database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        except sqlite3.Error:
            database.close()
            raise
        return database

    @contextmanager
    def _warn_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:
            self.failures += 1
            if self.failures == 1:
                warnings.warn(
                    f"The cache {self.path} cannot be used ({error}); replies are requested again. "
                    "Free disk space, or set HF_RLHF_CACHE to a writable folder.",
                    RuntimeWarning,
                    stacklevel=4,
                )


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_LOCKED_S, isolation_level=None)  # each row is committed


def command(arguments: Sequence[str]) -> int:
    """Show or clear the cache of judges' verdicts and generated texts.

    Raises JudgeError if a file is not a cache.
    """
    about = "Show or clear the cache of judges' verdicts and generated texts."
    parser = argparse.ArgumentParser("hf-rlhf judge-cache", description=about)
    parser.add_argument("action", choices=["show", "clear"])
    parser.add_argument("--path", type=Path, default=default_path(), help="file of the cache")
    chosen = parser.parse_args(arguments)
    path = chosen.path
    if not path.exists() or not path.stat().st_size:
        print(f"{path}: empty")
        return 0
    try:
        with closing(_connect(path)) as database:
            (count,) = database.execute("SELECT COUNT(*) FROM replies").fetchone()
            if chosen.action == "clear":
                database.execute("DELETE FROM replies")
                database.execute("VACUUM")
    except sqlite3.Error as error:
        raise JudgeError(
            f"{path} is not a judge's cache: {error}. Name another with --path, or delete it."
        ) from error
    cleared = " deleted" * (chosen.action == "clear")
    print(f"{path}: {count} replies{cleared}, {path.stat().st_size / 1e6:.1f} MB")
    return 0

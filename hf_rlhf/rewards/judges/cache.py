"""Cache verdicts and texts on disk, so that each is paid for once; and `hf-rlhf judge-cache`.

The format is SQLite with JSON, which never executes anything. Several processes and threads may use
it at once. A cache that cannot be read or written warns once, and never stops a run.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.errors import JudgeError

Keep = Callable[[str, Any], None]
FILES = {"verdict": "judge.sqlite", "text": "texts.sqlite"}
"""Texts have a separate file, since they are many times larger than verdicts."""
_KEYS_PER_QUERY = 500
_MAX_FAILURES = 5
_BATCH_S = 0.02
_LOCKED_S = 10.0


def default_path(kind: Literal["verdict", "text"] = "verdict") -> Path:
    """Return the path of a cache in `$HF_RLHF_CACHE`, by default under the XDG cache folder."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_RLHF_CACHE") or xdg / "hf_rlhf") / FILES[kind]


@dataclass
class DiskCache:
    """JSON values by key in a SQLite table."""

    path: Path
    kind: Literal["verdict", "text"]
    decode: Callable[[Any], Any]
    """Converts a JSON value for `read`. Raises ValueError or TypeError if invalid."""
    enabled: bool = True
    failures: int = field(default=0, compare=False)
    """Failed reads and writes. After a few the file is no longer used: waiting for a locked file
    takes seconds each time, in which no reply is read."""

    def read(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of `keys` that are in the file."""
        unique = list(dict.fromkeys(keys))
        values: dict[str, Any] = {}
        if not self._is_usable():
            return values
        with self._warn_on_failure(), closing(self._open()) as database:
            for start in range(0, len(unique), _KEYS_PER_QUERY):
                batch = unique[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(batch))
                rows = database.execute(
                    f"SELECT key, {self.kind} FROM {self.kind}s WHERE key IN ({marks})", batch
                )
                values |= {key: self.decode(json.loads(text)) for key, text in rows}
        return values

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[Keep]:
        """Yield a function that stores a JSON value under a key, over a single connection.

        Values that arrive within 20 ms share a transaction, since separate ones would delay
        requests. Opening and closing the file costs more than a row: closing flushes it to disk.
        """
        loop = asyncio.get_running_loop()
        fresh: dict[str, Any] = {}
        database: sqlite3.Connection | None = None

        def write() -> None:
            nonlocal database
            if fresh and self._is_usable():
                with self._warn_on_failure():
                    database = database or self._open()
                    self._insert(database, fresh)
            fresh.clear()

        def keep(key: str, value: Any) -> None:
            if not fresh:
                loop.call_later(_BATCH_S, write)
            fresh[key] = value

        try:
            yield keep
        finally:
            write()
            if database is not None:
                with self._warn_on_failure():
                    database.close()

    def _insert(self, database: sqlite3.Connection, values: Mapping[str, Any]) -> None:
        now = time.time()
        rows = [(key, json.dumps(value), now) for key, value in values.items()]
        with database:
            database.executemany(f"INSERT OR REPLACE INTO {self.kind}s VALUES (?, ?, ?)", rows)

    def _is_usable(self) -> bool:
        return self.enabled and self.failures < _MAX_FAILURES

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=_LOCKED_S)
        try:
            with suppress(sqlite3.OperationalError):  # a concurrent opener sets it
                database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {self.kind}s "
                f"(key TEXT PRIMARY KEY, {self.kind} TEXT NOT NULL, at REAL NOT NULL) "
                "WITHOUT ROWID"
            )
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
                    f"The cache {self.path} cannot be used ({error}); {self.kind}s are requested "
                    "again. Free disk space, or set HF_RLHF_CACHE to a writable folder.",
                    RuntimeWarning,
                    stacklevel=4,
                )


def command(arguments: Sequence[str]) -> int:
    """Show or clear the cache of judges' verdicts and generated texts.

    Raises JudgeError if a file is not a cache.
    """
    description = str(command.__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(prog="hf-rlhf judge-cache", description=description)
    parser.add_argument("action", choices=["show", "clear"])
    defaults = [default_path(), default_path("text")]
    text = f"default: {defaults[0]} and, if it exists, {defaults[1]}"
    parser.add_argument("--path", type=Path, help=text.replace("%", "%%"))
    chosen = parser.parse_args(arguments)
    for path in [chosen.path] if chosen.path else [defaults[0], *filter(Path.exists, defaults[1:])]:
        if not path.exists() or not path.stat().st_size:
            print(f"{path}: empty")
            continue
        try:
            with closing(sqlite3.connect(path, timeout=_LOCKED_S)) as database:
                (_clear if chosen.action == "clear" else _show)(database, path)
        except sqlite3.Error as error:
            raise JudgeError(
                f"{path} is not a judge's cache: {error}. Name another with --path, or delete it."
            ) from error
    return 0


def _clear(database: sqlite3.Connection, path: Path) -> None:
    table = _table(database)
    with database:
        deleted = database.execute(f"DELETE FROM {table}").rowcount
    database.execute("VACUUM")
    print(f"{path}: {deleted} {table} deleted")


def _show(database: sqlite3.Connection, path: Path) -> None:
    table = _table(database)
    count, *times = database.execute(f"SELECT COUNT(*), MIN(at), MAX(at) FROM {table}").fetchone()
    print(f"{path}: {count} {table}, {path.stat().st_size / 1e6:.1f} MB")
    for name, moment in zip(("first", "last"), times, strict=True):
        if count:
            print(f"{name}: {time.strftime('%Y-%m-%d %H:%M', time.localtime(moment))}")


def _table(database: sqlite3.Connection) -> str:
    texts = database.execute("SELECT name FROM sqlite_master WHERE name = 'texts'").fetchone()
    return "texts" if texts else "verdicts"

"""Verdicts and texts on disk, so that each is paid for once; and `hf-rlhf judge-cache`.

SQLite and JSON: readable by anything, and nothing in it is ever executed. Several processes and
threads may use it at once. Only verdicts and texts enter; a failure is asked again. A cache that
cannot be read or written costs a warning, once, and never a run.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from hf_rlhf.contracts import Verdict
from hf_rlhf.errors import JudgeError

T = TypeVar("T")
Keep = Callable[[str, T], None]
Write = Callable[[Mapping[str, T]], None]
SCHEMA_VERSION = 1
TEXTS = "texts.sqlite"
"""A file of their own, for texts are many times larger than verdicts."""
_KEYS_PER_QUERY = 500
_GIVE_UP = 5
_TOGETHER_S = 0.02
_LOCKED_S = 10.0


def default_path(name: str = "judge.sqlite") -> Path:
    """Return the path of a cache in `$HF_RLHF_CACHE`, by default under the XDG cache folder."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_RLHF_CACHE") or xdg / "hf_rlhf") / name


class DiskCache(ABC, Generic[T]):
    """What a model answered, by key, in a table of the SQLite file at `path`."""

    table: ClassVar[str]
    column: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = 0
        """How many reads and writes failed. After a few the file is left alone, for waiting for a
        locked one takes seconds each time, in which nothing else arrives."""

    @abstractmethod
    def encode(self, value: T) -> str | None:
        """Return what is written of a value; None for a failure, which is not kept."""

    @abstractmethod
    def decode(self, remaining: str) -> T:
        """Undo `encode`. Raises ValueError or TypeError for what it did not make."""

    def read(self, keys: Iterable[str]) -> dict[str, T]:
        """Return what is known of `keys`."""
        wanted = list(dict.fromkeys(keys))
        result: dict[str, T] = {}
        if self.trouble >= _GIVE_UP:
            return result
        if self._is_new():
            return result
        with self._guarded(), closing(self._open()) as database:
            for start in range(0, len(wanted), _KEYS_PER_QUERY):
                some = wanted[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(some))
                rows = database.execute(
                    f"SELECT key, {self.column} FROM {self.table} WHERE key IN ({marks})", some
                )
                result |= {key: self.decode(remaining) for key, remaining in rows}
        return result

    def write(self, key: str, value: T) -> None:
        """Keep a value, unless it is a failure."""
        with self.writing() as write:
            write({key: value})

    @contextmanager
    def writing(self) -> Iterator[Write[T]]:
        """Give a function that keeps values, as `write` does, over one connection.

        To open the file and close it costs more than a row does: closing flushes it to disk.
        """
        database: sqlite3.Connection | None = None

        def write(values: Mapping[str, T]) -> None:
            nonlocal database
            now = time.time()
            rows = [
                (key, remaining, now)
                for key, value in values.items()
                if (remaining := self.encode(value)) is not None
            ]
            if not rows or self.trouble >= _GIVE_UP:
                return
            with self._guarded():
                database = database or self._open()
                with database:
                    database.executemany(
                        f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?, ?)", rows
                    )

        try:
            yield write
        finally:
            if database is not None:
                with self._guarded():
                    database.close()

    def _is_new(self) -> bool:
        """Make an empty file where there is none, which tells at once whether that can be done."""
        with self._guarded():
            if self.path.exists():
                return False
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
        return True

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=_LOCKED_S)
        try:
            _write_ahead(database)
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} "
                f"(key TEXT PRIMARY KEY, {self.column} TEXT NOT NULL, at REAL NOT NULL) "
                "WITHOUT ROWID"
            )
        except sqlite3.Error:
            database.close()
            raise
        return database

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:
            self.trouble += 1
            if self.trouble == 1:
                warnings.warn(
                    f"The cache {self.path} cannot be used ({error}); {self.table} are asked "
                    f"anew. Free space, or set HF_RLHF_CACHE to a folder that can be "
                    f"written.",
                    RuntimeWarning,
                    stacklevel=4,
                )


class VerdictCache(DiskCache[Verdict]):
    """Verdicts by key. One without a score is a failure, and is not kept."""

    table, column = "verdicts", "verdict"

    def encode(self, value: Verdict) -> str | None:
        """Return a verdict as JSON, or None for one without a score."""
        if value.score is None:
            return None
        return json.dumps({"score": value.score, "reason": value.reason})

    def decode(self, remaining: str) -> Verdict:
        """Undo `encode`. Raises ValueError or TypeError for what it did not make."""
        return _checked(**json.loads(remaining))


def _write_ahead(database: sqlite3.Connection) -> None:
    """Set the journal's mode. SQLite does not wait here for others who open the file; we do."""
    last = time.monotonic() + _LOCKED_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > last:
                raise
        time.sleep(0.01)


@asynccontextmanager
async def together(write: Write[T]) -> AsyncIterator[Keep[T]]:
    """Give a function that keeps a value: what arrives within a moment is one write.

    Many values arrive at once, and to write each by itself would delay the next requests.
    """
    loop = asyncio.get_running_loop()
    fresh: dict[str, T] = {}

    def write_fresh() -> None:
        write(fresh)
        fresh.clear()

    def keep(key: str, value: T) -> None:
        if not fresh:
            loop.call_later(_TOGETHER_S, write_fresh)
        fresh[key] = value

    try:
        yield keep
    finally:
        write_fresh()


def _checked(score: float, reason: str) -> Verdict:
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"it holds the score {score!r}, which is not from 0 to 1")
    return Verdict(score, reason)


def summary(path: Path) -> Mapping[str, float]:
    """Return the number of `verdicts` or `texts`, the bytes, first and last time (Unix seconds).

    Raises JudgeError when the file is not a cache of verdicts or texts.
    """
    if _is_empty(path):
        return {"verdicts": 0, "bytes": 0}
    with _readable(path), closing(sqlite3.connect(path, timeout=10.0)) as database:
        table = _table(database)
        row = database.execute(f"SELECT COUNT(*), MIN(at), MAX(at) FROM {table}").fetchone()
    times = {} if not row[0] else {"first": row[1], "last": row[2]}
    return {table: row[0], "bytes": path.stat().st_size, **times}


def clear(path: Path) -> int:
    """Forget everything; return how much there was. Raises JudgeError as `summary` does."""
    if _is_empty(path):
        return 0
    with _readable(path), closing(sqlite3.connect(path, timeout=10.0)) as database:
        with database:
            forgotten = database.execute(f"DELETE FROM {_table(database)}").rowcount
        database.execute("VACUUM")
    return forgotten


def _table(database: sqlite3.Connection) -> str:
    known = database.execute("SELECT name FROM sqlite_master WHERE name = 'texts'")
    return "texts" if known.fetchone() else "verdicts"


def _is_empty(path: Path) -> bool:
    return not path.exists() or not path.stat().st_size


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise JudgeError(
            f"{path} is not a judge's cache that can be used: {error}. "
            f"Name another with --path, or delete the file."
        ) from error


def command(arguments: Sequence[str]) -> int:
    """Show or clear the verdicts and texts that models behind an API have given."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf judge-cache", description="Show or clear what models gave, kept on disk."
    )
    parser.add_argument("action", choices=["show", "clear"])
    text = f"default: {default_path()} and, if there is one, {default_path(TEXTS)}"
    parser.add_argument("--path", type=Path, help=text.replace("%", "%%"))
    chosen = parser.parse_args(arguments)
    both = [default_path(), *(path for path in [default_path(TEXTS)] if path.exists())]
    for path in [chosen.path] if chosen.path else both:
        known = summary(path)
        kind = "texts" if "texts" in known else "verdicts"
        if chosen.action == "clear":
            print(f"{path}: {clear(path)} {kind} forgotten")
            continue
        print(f"{path}: {known[kind]:.0f} {kind}, {known['bytes'] / 1e6:.1f} MB")
        for name in ("first", "last"):
            if name in known:
                print(f"{name}: {time.strftime('%Y-%m-%d %H:%M', time.localtime(known[name]))}")
    return 0

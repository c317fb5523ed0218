"""Verdicts on disk, so that a question is paid for once; and `hf-rlhf judge-cache`.

SQLite and JSON: readable by anything, and nothing in it is ever executed. Several processes and
threads may use it at once. Only verdicts enter; a failure is asked again. A cache that cannot be
read or written costs a warning, once, and never a run.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from hf_rlhf.contracts import Verdict
from hf_rlhf.errors import JudgeError

Keep = Callable[[str, Verdict], None]
Write = Callable[[Mapping[str, Verdict]], None]
SCHEMA_VERSION = 1
_KEYS_PER_QUERY = 500
_GIVE_UP = 5
_TOGETHER_S = 0.02
_LOCKED_S = 10.0


def default_path() -> Path:
    """Return `$HF_RLHF_CACHE/judge.sqlite`, by default under the XDG cache folder."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_RLHF_CACHE") or xdg / "hf_rlhf") / "judge.sqlite"


class VerdictCache:
    """Verdicts by key in the SQLite file at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = 0
        """How many reads and writes failed. After a few the file is left alone, for waiting for a
        locked one takes seconds each time, in which no verdict arrives."""

    def read(self, keys: Iterable[str]) -> dict[str, Verdict]:
        """Return what is known of `keys`."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Verdict] = {}
        if self.trouble >= _GIVE_UP:
            return found
        if self._is_new():
            return found
        with self._guarded(), closing(self._open()) as database:
            for start in range(0, len(wanted), _KEYS_PER_QUERY):
                some = wanted[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(some))
                rows = database.execute(
                    f"SELECT key, verdict FROM verdicts WHERE key IN ({marks})", some
                )
                found |= {key: _checked(**json.loads(verdict)) for key, verdict in rows}
        return found

    def write(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict. One without a score is a failure, and is not kept."""
        with self.writing() as write:
            write({key: verdict})

    @contextmanager
    def writing(self) -> Iterator[Write]:
        """Give a function that keeps verdicts, as `write` does, over one connection.

        To open the file and close it costs more than a verdict does: closing flushes it to disk.
        """
        database: sqlite3.Connection | None = None

        def write(verdicts: Mapping[str, Verdict]) -> None:
            nonlocal database
            now = time.time()
            rows = [
                (key, json.dumps({"score": verdict.score, "reason": verdict.reason}), now)
                for key, verdict in verdicts.items()
                if verdict.score is not None
            ]
            if not rows or self.trouble >= _GIVE_UP:
                return
            with self._guarded():
                database = database or self._open()
                with database:
                    database.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", rows)

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
                "CREATE TABLE IF NOT EXISTS verdicts "
                "(key TEXT PRIMARY KEY, verdict TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID"
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
                    f"The judge's cache {self.path} cannot be used ({error}); verdicts are asked "
                    f"anew. Free space, or set HF_RLHF_CACHE to a folder that can be written.",
                    RuntimeWarning,
                    stacklevel=4,
                )


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
async def together(write: Write) -> AsyncIterator[Keep]:
    """Give a function that keeps a verdict: what arrives within a moment is one write.

    Many verdicts arrive at once, and to write each by itself would delay the next requests.
    """
    loop = asyncio.get_running_loop()
    fresh: dict[str, Verdict] = {}

    def write_fresh() -> None:
        write(fresh)
        fresh.clear()

    def keep(key: str, verdict: Verdict) -> None:
        if not fresh:
            loop.call_later(_TOGETHER_S, write_fresh)
        fresh[key] = verdict

    try:
        yield keep
    finally:
        write_fresh()


def _checked(score: float, reason: str) -> Verdict:
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"it holds the score {score!r}, which is not from 0 to 1")
    return Verdict(score, reason)


def summary(path: Path) -> Mapping[str, float]:
    """Return the number of verdicts, the bytes, and the first and last time (Unix seconds).

    Raises JudgeError when the file is not a cache of verdicts.
    """
    if _is_empty(path):
        return {"verdicts": 0, "bytes": 0}
    with _readable(path), closing(sqlite3.connect(path, timeout=10.0)) as database:
        row = database.execute("SELECT COUNT(*), MIN(at), MAX(at) FROM verdicts").fetchone()
    times = {} if not row[0] else {"first": row[1], "last": row[2]}
    return {"verdicts": row[0], "bytes": path.stat().st_size, **times}


def clear(path: Path) -> int:
    """Forget every verdict; return how many there were. Raises JudgeError as `summary` does."""
    if _is_empty(path):
        return 0
    with _readable(path), closing(sqlite3.connect(path, timeout=10.0)) as database:
        with database:
            forgotten = database.execute("DELETE FROM verdicts").rowcount
        database.execute("VACUUM")
    return forgotten


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
    """Show or clear the verdicts that judges have cached."""
    parser = argparse.ArgumentParser(
        prog="hf-rlhf judge-cache", description="Show or clear the verdicts kept on disk."
    )
    parser.add_argument("action", choices=["show", "clear"])
    parser.add_argument("--path", type=Path, default=default_path(), help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    if chosen.action == "clear":
        print(f"{chosen.path}: {clear(chosen.path)} verdicts forgotten")
        return 0
    known = summary(chosen.path)
    print(f"{chosen.path}: {known['verdicts']:.0f} verdicts, {known['bytes'] / 1e6:.1f} MB")
    for name in ("first", "last"):
        if name in known:
            print(f"{name}: {time.strftime('%Y-%m-%d %H:%M', time.localtime(known[name]))}")
    return 0

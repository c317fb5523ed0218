"""Caps on calls to one server that hold for everything on this machine.

Several rewards share a judge, trainers call it from several threads and event loops, and each
process of a launch has its own copy; the server sees the sum. So the caps live outside of any
process, in a folder of the machine's temporary directory named after the server:

* concurrency: one file per permitted call, locked while the call is under way. The kernel frees
  the locks of a process that dies, so nothing leaks and nothing needs a heartbeat.
* requests and tokens per minute: a log of the last minute in SQLite, booked under its write lock.

The temporary directory, not the cache: locks are about this machine, and a home folder may be
shared by several over a network. Machines do not see each other; divide the caps between them.
"""

import asyncio
import fcntl
import hashlib
import os
import random
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hf_rlhf.errors import JudgeError

_SHORTEST_WAIT, _LONGEST_WAIT = 0.005, 0.05
_SEARCH_INTERVAL = 0.02


@dataclass
class Booking:
    """A permitted call. Set `tokens` to what it really used, once that is known."""

    tokens: int


@dataclass(frozen=True)
class Limits:
    """The caps on one server. None for a rate is no cap; two holders may differ in their caps."""

    server: str
    """What the caps are about; equal strings share them."""
    concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    minute: float = 60.0
    """Seconds in the window over which rates hold."""

    @asynccontextmanager
    async def call(self, tokens: int) -> AsyncIterator[Booking]:
        """Wait for permission to make one call of about `tokens` tokens, and hold it.

        Raises JudgeError when the folder of the caps cannot be used: a cap is a promise to the
        server, so without it nothing is called.
        """
        booking = Booking(tokens)
        async with self._slot():
            entry = await self._book(tokens)
            yield booking
            if entry is not None and booking.tokens != tokens:
                self._correct(entry, booking.tokens)

    @property
    def folder(self) -> Path:
        """Where the locks and the log of this server are."""
        return _folder_of(self.server, tempfile.gettempdir())

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        slots = _SLOTS.get(self.folder) or _SLOTS.setdefault(self.folder, _Slots(self.folder))
        wait = _SHORTEST_WAIT
        while (taken := slots.take(self.concurrency)) is None:
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)
        try:
            yield
        finally:
            slots.free(taken)

    async def _book(self, tokens: int) -> int | None:
        """Enter one call in the log as soon as the rates allow; return its row."""
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            return None
        while True:
            entry, wait = self._try_book(tokens)
            if entry is not None:
                return entry
            await asyncio.sleep(wait)

    def _try_book(self, tokens: int) -> tuple[int | None, float]:
        """Return the booked row, or for how many seconds to wait before trying again."""
        with self._log() as log:
            try:
                log.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                return None, _SHORTEST_WAIT
            now = time.time()
            # A clock set back must not leave entries that never expire.
            log.execute("DELETE FROM calls WHERE at <= ? OR at > ?", (now - self.minute, now + 1))
            rows = log.execute("SELECT at, tokens FROM calls ORDER BY at").fetchall()
            if rows and not self._allows(rows, tokens):
                log.commit()
                return None, max(_SHORTEST_WAIT, rows[0][0] + self.minute - now)
            entry = log.execute("INSERT INTO calls VALUES (?, ?)", (now, tokens)).lastrowid
            log.commit()
            return entry, 0.0

    def _allows(self, rows: list[tuple[float, int]], tokens: int) -> bool:
        if self.requests_per_minute is not None and len(rows) >= self.requests_per_minute:
            return False
        used = sum(spent for _, spent in rows)
        return self.tokens_per_minute is None or used + tokens <= self.tokens_per_minute

    def _correct(self, entry: int, tokens: int) -> None:
        with self._log() as log:
            log.execute("UPDATE calls SET tokens = ? WHERE rowid = ?", (tokens, entry))
            log.commit()

    @contextmanager
    def _log(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / "calls.sqlite"
        with _cure(self.folder), closing(sqlite3.connect(path, timeout=1.0)) as log:
            # The log is worth one minute, so a crash of the machine may lose it.
            log.execute("PRAGMA synchronous = OFF")
            log.execute("CREATE TABLE IF NOT EXISTS calls (at REAL, tokens INTEGER)")
            yield log


class _Slots:
    """The places at one server that this process holds; a locked file is a place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, int] = {}
        """The open file of each place, by its number."""
        self._guard = threading.Lock()
        self._full_until = 0.0

    def take(self, count: int) -> int | None:
        """Lock one of the first `count` places and return its number, or None if all are taken.

        What this process holds is known without asking the kernel, and after a search in vain
        the next waits a moment: a hundred waiting tasks must not cost the processor.
        """
        with self._guard:
            open_places = [number for number in range(count) if number not in self._held]
            if not open_places or time.monotonic() < self._full_until:
                return None
            # From a random one on, so that processes rarely try the same file at the same moment.
            first = random.randrange(len(open_places))
            for number in open_places[first:] + open_places[:first]:
                with _cure(self._folder):
                    file = self._locked(self._folder / f"slot-{number}.lock")
                if file is not None:
                    self._held[number] = file
                    return number
            self._full_until = time.monotonic() + _SEARCH_INTERVAL
            return None

    def free(self, number: int) -> None:
        """Give a place back."""
        with self._guard:
            file = self._held.pop(number, None)
            if file is not None:
                # Not by closing alone, which would leave it to a child that was forked meanwhile.
                fcntl.flock(file, fcntl.LOCK_UN)
                os.close(file)
            self._full_until = 0.0

    def leave_to_parent(self) -> None:
        """Hold nothing: called in a forked child, where closing a file does not unlock it."""
        self._guard = threading.Lock()  # another thread may have held it at the fork
        for file in self._held.values():
            os.close(file)
        self._held.clear()

    def _locked(self, path: Path) -> int | None:
        """Return the file, open and locked, or None if it is locked already."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            file = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
        return file


@cache
def _folder_of(server: str, temporary: str) -> Path:
    name = hashlib.sha256(server.encode()).hexdigest()[:16]
    return Path(temporary) / f"hf-rlhf-{os.getuid()}" / f"judge-{name}"


_SLOTS: dict[Path, _Slots] = {}


def _forget_slots() -> None:
    for slots in _SLOTS.values():
        slots.leave_to_parent()
    _SLOTS.clear()


os.register_at_fork(after_in_child=_forget_slots)


@contextmanager
def _cure(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise JudgeError(
            f"The caps on calls to a server cannot be held: {folder} cannot be written ({error}). "
            f"Free space there, or set TMPDIR to a folder on this machine that can be written."
        ) from error

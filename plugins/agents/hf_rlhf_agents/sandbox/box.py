"""Run untrusted programs with bubblewrap: no network, a read-only system, limits on everything.

A box is a folder and, for each program, new namespaces. A program sees `/usr` (read-only), an empty
`/tmp` and its own folder `/box`; it has no capabilities, no network and no other processes. It may
use a bounded amount of time, memory, processes, disk and output. Nothing that it writes is trusted:
callers compare values that never entered the box.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import psutil

from hf_rlhf.errors import HfRlhfError
from hf_rlhf_agents.sandbox.seccomp import seccomp_filter

FIRST_USER, USERS = 61_000, 1_000
"""Range of user ids for boxes; RLIMIT_NPROC counts the processes of a user id over all boxes."""
_PATH = "/usr/bin:/bin"
_WATCH_SECONDS = 0.1


class SandboxError(HfRlhfError):
    """A box could not run the program: nothing about the program itself is known."""


@dataclass(frozen=True)
class Limits:
    """What a program may use. Sizes are in bytes, times in seconds."""

    seconds: float = 10.0
    """Wall clock."""
    memory: int = 1 << 30
    """Of all processes together; a single process may map as much."""
    processes: int = 48
    disk: int = 64 << 20
    """Of the folder `/box`; a single file may have as much."""
    output: int = 1 << 20
    """Of each of stdout and stderr. A program that writes more is stopped."""


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    """Exit status; negative for a signal."""
    stdout: bytes
    stderr: bytes
    stopped: str = ""
    """The limit that stopped it: `time`, `memory`, `disk`, `output`; empty if none did."""


@dataclass
class Box:
    """A folder in which programs run one after the other; a context manager.

    As root, each box has a user id of its own. An ordinary user has only one, so that boxes of one
    process run one at a time.
    """

    limits: Limits = field(default_factory=Limits)
    folder: Path = field(init=False)

    def __enter__(self) -> Self:
        """Make the folder. Raises SandboxError where bubblewrap is missing or cannot start."""
        check()
        self._user = _take_user()
        self.folder = Path(tempfile.mkdtemp(prefix="hf-rlhf-box-")).resolve()
        self._own(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _give_user(self._user)

    def run(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Ended:
        """Run a command until it ends or a limit stops it, with all processes that it started.

        Args:
            command: program and arguments; the program is looked up inside the box.
            stdin: the standard input.
            folder: working folder, relative to `/box`.
            environment: variables, beside PATH and HOME.
            seconds: wall clock instead of the limit.

        Raises:
            SandboxError: the box itself could not start.
        """
        most = seconds if seconds is not None else self.limits.seconds
        with (
            _one_at_a_time(self._user),
            _filter() as filter_file,
            tempfile.TemporaryFile() as given,
        ):
            given.write(stdin)
            given.seek(0)
            inside = str(Path("/box", folder))
            argv = [*self._outside(most), *_bubblewrap(self.folder, inside, filter_file.fileno())]
            for name, value in (environment or {}).items():
                argv += ["--setenv", name, value]
            process = subprocess.Popen(
                [*argv, "--", *command],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[filter_file.fileno()],
                env={"PATH": _PATH},
                start_new_session=True,
            )
            return _watched(process, self.folder, self.limits, most)

    def write(self, name: str, content: bytes) -> None:
        """Write a file under `/box`. Raises PermissionError outside of it."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in [path.parent, *path.parent.parents]:
            if parent == self.folder:
                break
            self._own(parent)
        # A link that appears meanwhile is not followed.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        self._own(path)

    def read(self, name: str) -> bytes:
        """Return a regular file under `/box`, at most `limits.disk` bytes of it.

        Links are resolved here, on the host: one that leaves the folder raises PermissionError.
        """
        path = self.path(name)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PermissionError(f"{name}: no regular file")
            return file.read(self.limits.disk)

    def path(self, name: str) -> Path:
        """Return the path of a file on the host. Raises PermissionError outside of the folder."""
        relative = Path(name).relative_to("/box") if name.startswith("/box") else Path(name)
        path = (self.folder / relative).resolve()
        if not path.is_relative_to(self.folder):
            raise PermissionError(f"{name}: outside of /box")
        return path

    def _own(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _outside(self, seconds: float) -> list[str]:
        """Return the command that limits each process and gives up root."""
        limits = self.limits
        argv = ["/usr/bin/prlimit", f"--as={limits.memory}", f"--fsize={limits.disk}", "--core=0"]
        argv.append(f"--cpu={int(seconds) + 1}")
        if self._user is None:
            # An ordinary user's other processes count too.
            own = sum(each.uids().real == os.getuid() for each in psutil.process_iter())
            return [*argv, f"--nproc={own + limits.processes}"]
        argv.append(f"--nproc={limits.processes}")
        user = [f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"]
        return [*argv, "/usr/bin/setpriv", *user]


def check() -> None:
    """Raise SandboxError, with the cure, where bubblewrap cannot run."""
    if sys.platform != "linux":
        raise SandboxError(f"The sandbox needs Linux and bubblewrap; this is {sys.platform}.")
    for program in ("bwrap", "prlimit", *(("setpriv",) if os.getuid() == 0 else ())):
        if shutil.which(program) is None:
            package = "bubblewrap" if program == "bwrap" else "util-linux"
            raise SandboxError(
                f"The sandbox needs {program}, which is missing: `apt-get install {package}`. "
                "Code of a model never runs without it."
            )


def _bubblewrap(folder: Path, inside: str, filter_file: int) -> list[str]:
    argv = ["/usr/bin/env", "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    argv += ["--cap-drop", "ALL", "--clearenv", "--seccomp", str(filter_file)]
    argv += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in ("bin", "lib", "lib64"):
        argv += ["--symlink", f"usr/{name}", f"/{name}"]
    # Memory of a tmpfs belongs to no process: each has a size, and the others are read-only.
    for name in ("/tmp", "/dev/shm"):
        argv += ["--size", str(16 << 20), "--tmpfs", name]
    argv += ["--bind", str(folder), "/box", "--remount-ro", "/dev", "--remount-ro", "/"]
    argv += ["--chdir", inside, "--setenv", "PATH", _PATH, "--setenv", "HOME", "/box"]
    return argv


@contextmanager
def _filter() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        file.write(seccomp_filter())
        file.seek(0)
        yield file


def _watched(
    process: "subprocess.Popen[bytes]", folder: Path, limits: Limits, seconds: float
) -> Ended:
    """Read the output until the program ends, or stop it at a limit."""
    readers = [_Reader(pipe, limits.output) for pipe in (process.stdout, process.stderr) if pipe]
    end, stopped = time.monotonic() + seconds, ""

    def exceeded() -> str:
        """Return the name of the first exceeded limit, or an empty text."""
        if time.monotonic() > end:
            return "time"
        if any(reader.full for reader in readers):
            return "output"
        if _memory(process.pid) > limits.memory:
            return "memory"
        return "disk" if _size(folder) > limits.disk else ""

    while process.poll() is None and not (stopped := exceeded()):
        with suppress(subprocess.TimeoutExpired):
            process.wait(_WATCH_SECONDS)
    # The end of bubblewrap ends its namespace, and with it every process inside.
    for child in _family(process.pid) if stopped else ():
        with suppress(psutil.Error):
            child.kill()
    code = process.wait()
    output, errors = (reader.result() for reader in readers)
    stopped = stopped or ("output" if any(reader.full for reader in readers) else "")
    if code == 1 and errors.startswith(b"bwrap: ") and not stopped:
        what = errors.decode(errors="replace").strip()
        if not what.startswith("bwrap: execvp"):
            raise SandboxError(f"bubblewrap could not start: {what}")
    return Ended(code, output, errors, stopped)


class _Reader(threading.Thread):
    """Reads a pipe up to a limit, then drops the rest."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        super().__init__(daemon=True)
        self._pipe, self._most, self._read = pipe, most, bytearray()
        self.full = False
        self.start()

    def run(self) -> None:
        while chunk := self._pipe.read1(1 << 16):  # type: ignore[attr-defined]
            room = self._most - len(self._read)
            self._read += chunk[:room]
            self.full |= len(chunk) > room

    def result(self) -> bytes:
        """Return what was read; the pipe is closed at the end of the last process."""
        self.join(timeout=5)
        self._pipe.close()
        return bytes(self._read)


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [*first.children(recursive=True), first]
    except psutil.Error:
        return []


def _memory(pid: int) -> int:
    total = 0
    for each in _family(pid):
        with suppress(psutil.Error):
            total += each.memory_info().rss
    return total


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(root, name)).st_blocks * 512
            except OSError:
                continue
    return total


_lock = threading.Lock()
_ordinary = threading.Lock()
_taken: set[int] = set()


def _take_user() -> int | None:
    """Return a user id that no other box of this machine has, or None without root."""
    if os.getuid() != 0:
        return None
    with _lock:
        in_use = {each.uids().real for each in psutil.process_iter()} | _taken
        # Another process starts elsewhere in the range.
        start = os.getpid() * 37
        for step in range(USERS):
            user = FIRST_USER + (start + step) % USERS
            if user not in in_use:
                _taken.add(user)
                return user
    raise SandboxError(f"All {USERS} user ids from {FIRST_USER} are taken by boxes.")


def _give_user(user: int | None) -> None:
    with _lock:
        _taken.discard(user if user is not None else -1)


@contextmanager
def _one_at_a_time(user: int | None) -> Iterator[None]:
    if user is not None:
        yield
        return
    with _ordinary:
        yield

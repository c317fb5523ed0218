"""Run untrusted programs with bubblewrap: no network, a read-only system, limits on everything.

A box is a folder and, for each program, new namespaces. A program sees `/usr` (read-only), an empty
`/tmp` and its own folder `/box`; it has no capabilities, no network and no other processes. It may
use a bounded amount of time, memory, processes, disk and output. Nothing that it writes is trusted:
callers compare values that never entered the box.
"""

import json
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import psutil

from hf_rlhf.errors import HfRlhfError
from hf_rlhf_agents.sandbox.seccomp import seccomp_filter

FIRST_USER, USERS = 61_000, 1_000
"""Range of user ids for boxes; RLIMIT_NPROC counts the processes of a user id over all boxes."""
_PATH = "/usr/bin:/bin"
_PACKAGE = Path(__file__).resolve().parents[1]
_BLOCK = 4096
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
        if self._user is not None:
            os.chown(self.folder, self._user, self._user)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder, however deep it is and whatever its modes are."""
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, self.folder], stderr=subprocess.DEVNULL, check=False)
        _taken.discard(self._user)

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
        if bad := [name for name in environment or {} if not name or "=" in name]:
            raise ValueError(f"{bad[0]!r} cannot be the name of a variable")
        with (
            _ordinary if self._user is None else nullcontext(),
            _file(seccomp_filter()) as rules,
            _file(stdin) as given,
            _file() as output,
            _file() as errors,
            _file() as status,
        ):
            argv = [*self._outside(most), *_bubblewrap(self.folder, folder, rules, status)]
            for name, value in (environment or {}).items():
                argv += ["--setenv", name, value]
            process = subprocess.Popen(
                [*argv, "--", *command],
                stdin=given,
                stdout=output,
                stderr=errors,
                pass_fds=[rules.fileno(), status.fileno()],
                env={"PATH": _PATH},
                start_new_session=True,
            )
            stopped = self._watch(process, most, (output, errors))
            stdout, stderr = (_content(each, self.limits.output) for each in (output, errors))
            facts = _facts(status)
        # Bubblewrap writes the status, which the program cannot: what it prints decides nothing.
        if "exit-code" not in facts and not stopped and not stderr.startswith(b"bwrap: execvp"):
            said = stderr.decode(errors="replace").strip()
            raise SandboxError(f"bubblewrap could not run: {said}")
        return Ended(process.returncode, stdout, stderr, stopped)

    def write(self, name: str, content: bytes) -> None:
        """Write a file under `/box`. Raises PermissionError outside of it."""
        path = self.path(name)
        with self._opened(path.parent, make=True) as parent:
            with suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(path.name, flags, 0o644, dir_fd=parent), "wb") as file:
                file.write(content)
                self._own(file.fileno())

    def read(self, name: str) -> bytes:
        """Return a regular file under `/box`, at most `limits.disk` bytes of it.

        Links are resolved here, on the host: one that leaves the folder raises PermissionError.
        """
        path = self.path(name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with (
            self._opened(path.parent) as parent,
            os.fdopen(os.open(path.name, flags, dir_fd=parent), "rb") as file,
        ):
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PermissionError(f"{name}: no regular file")
            return file.read(self.limits.disk)

    def path(self, name: str) -> Path:
        """Return the path of a file on the host. Raises PermissionError outside of the folder."""
        relative = Path(name).relative_to("/box") if name.startswith("/box") else Path(name)
        path = (self.folder / relative).resolve()
        if self.folder not in path.parents:
            raise PermissionError(f"{name}: outside of /box")
        return path

    @contextmanager
    def _opened(self, folder: Path, make: bool = False) -> Iterator[int]:
        """Open a folder step by step: a link that a running program puts there is not followed."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        at = os.open(self.folder, flags)
        try:
            for part in folder.relative_to(self.folder).parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=at)
                at, before = os.open(part, flags, dir_fd=at), at
                os.close(before)
                if make:
                    self._own(at)
            yield at
        finally:
            os.close(at)

    def _own(self, file: int) -> None:
        if self._user is not None:
            os.fchown(file, self._user, self._user)

    def _outside(self, seconds: float) -> list[str]:
        """Return the command that limits each process and gives up root."""
        limits = self.limits
        argv = ["/usr/bin/prlimit", f"--as={limits.memory}", f"--fsize={limits.disk}", "--core=0"]
        argv.append("--nofile=256")
        argv.append(f"--cpu={int(seconds) + 1}")
        if self._user is None:
            # An ordinary user's other processes count too.
            own = _users().count(os.getuid())
            return [*argv, f"--nproc={own + limits.processes}"]
        argv.append(f"--nproc={limits.processes}")
        user = [f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"]
        return [*argv, "/usr/bin/setpriv", *user]

    def _watch(
        self, process: "subprocess.Popen[bytes]", seconds: float, outputs: Sequence[IO[bytes]]
    ) -> str:
        """Wait for the end of a program and all that it started; return the limit that stopped it.

        The output is checked once more at the end, which may come between two looks.
        """
        limits, end, stopped = self.limits, time.monotonic() + seconds, ""

        def printed() -> str:
            sizes = [os.fstat(each.fileno()).st_size for each in outputs]
            return "output" if max(sizes) > limits.output else ""

        def exceeded() -> str:
            if time.monotonic() > end:
                return "time"
            family = _family(process.pid)
            if _memory(family) > limits.memory:
                return "memory"
            held = _held(family) - sum(os.fstat(e.fileno()).st_blocks * 512 for e in outputs)
            full = held > limits.disk or _size(self.folder, limits.disk) > limits.disk
            return printed() or ("disk" if full else "")

        while process.poll() is None and not (stopped := exceeded()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_WATCH_SECONDS)
        for child in _family(process.pid) if stopped else ():
            with suppress(psutil.Error):
                child.kill()
        process.wait()
        return stopped or printed()


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


def _bubblewrap(folder: Path, inside: str, rules: IO[bytes], status: IO[bytes]) -> list[str]:
    argv = ["/usr/bin/env", "bwrap", "--unshare-all", "--die-with-parent", "--new-session"]
    argv += ["--cap-drop", "ALL", "--clearenv", "--seccomp", str(rules.fileno())]
    argv += ["--json-status-fd", str(status.fileno())]
    argv += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    if _PACKAGE.is_relative_to("/usr"):
        # It has the answers.
        argv += ["--size", "4096", "--tmpfs", str(_PACKAGE), "--remount-ro", str(_PACKAGE)]
    for name in ("bin", "lib", "lib64"):
        argv += ["--symlink", f"usr/{name}", f"/{name}"]
    # Memory of a tmpfs belongs to no process: each has a size, and the others are read-only.
    for name in ("/tmp", "/dev/shm"):
        argv += ["--size", str(16 << 20), "--tmpfs", name]
    argv += ["--bind", str(folder), "/box", "--remount-ro", "/dev", "--remount-ro", "/"]
    argv += [
        "--chdir",
        str(Path("/box", inside)),
        "--setenv",
        "PATH",
        _PATH,
        "--setenv",
        "HOME",
        "/box",
    ]
    return argv


@contextmanager
def _file(content: bytes = b"") -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file


def _content(file: IO[bytes], most: int = -1) -> bytes:
    file.seek(0)
    return file.read(most)


def _facts(status: IO[bytes]) -> dict[str, int]:
    """Return what bubblewrap reports, after the end of the first process of the box.

    That one ends after all the others, and may do so after bubblewrap itself.
    """
    lines = map(json.loads, _content(status).splitlines())
    facts = {name: value for line in lines for name, value in line.items()}
    with suppress(KeyError, ProcessLookupError):
        handle = os.pidfd_open(facts["child-pid"])
        select.select([handle], [], [], 5.0)
        os.close(handle)
    return facts


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [*first.children(recursive=True), first]
    except psutil.Error:
        return []


def _memory(family: Sequence[psutil.Process]) -> int:
    total = 0
    for each in family:
        with suppress(psutil.Error):
            total += each.memory_info().rss
    return total


def _held(family: Sequence[psutil.Process]) -> int:
    """Return the size of open files that have no name any more."""
    sizes = {}
    for each in family:
        with suppress(OSError):
            for opened in os.scandir(f"/proc/{each.pid}/fd"):
                with suppress(OSError):
                    found = opened.stat()
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                        sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _size(folder: Path, most: int) -> int:
    """Return the size of a folder, or some size above `most`; an empty file counts as a block.

    A folder that cannot be looked into, such as one that is too deep, is too large.
    """
    total = 0

    def closed(error: OSError) -> None:
        nonlocal total
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            total = most + 1

    for root, folders, names in os.walk(folder, onerror=closed):
        for name in (*folders, *names):
            with suppress(OSError):
                total += max(_BLOCK, os.lstat(f"{root}/{name}").st_blocks * 512)
        if total > most:
            break
    return total


_lock = threading.Lock()
_ordinary = threading.Lock()
_taken: set[int | None] = set()


def _users() -> list[int]:
    """Return the user of each process of this machine."""
    found = (each.info["uids"] for each in psutil.process_iter(["uids"]))
    return [uids.real for uids in found if uids]


def _take_user() -> int | None:
    """Return a user id that no other box of this machine has, or None without root."""
    if os.getuid() != 0:
        return None
    with _lock:
        in_use = {*_users(), *_taken}
        # Another process starts elsewhere in the range.
        start = os.getpid() * 37
        for step in range(USERS):
            user = FIRST_USER + (start + step) % USERS
            if user not in in_use:
                _taken.add(user)
                return user
    raise SandboxError(f"All {USERS} user ids from {FIRST_USER} are taken by boxes.")

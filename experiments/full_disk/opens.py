"""Stop a process at the moment it opens a chosen file: Linux's fanotify permission events.

The kernel holds the process inside open() until the watcher answers, so what happens then happens
exactly there: a SIGKILL, or a disk that has become full. Needs root, and a mount of its own.
"""

import ctypes
import os
import select
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FAN_CLASS_CONTENT, FAN_CLOEXEC = 0x4, 0x1
FAN_MARK_ADD, FAN_MARK_MOUNT = 0x1, 0x10
FAN_OPEN_PERM, FAN_ONDIR = 0x10000, 0x40000000
FAN_ALLOW, AT_FDCWD = 1, -100
EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata


@contextmanager
def tmpfs(folder: Path, size: str, *options: str) -> Iterator[Path]:
    """Mount a filesystem of `size` in memory at `folder` for the length of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = ",".join((f"size={size}", *options))
    subprocess.run(["mount", "-t", "tmpfs", "-o", chosen, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def resize(folder: Path, size: int, *options: str) -> None:
    """Give a mounted tmpfs another size, in bytes."""
    chosen = ",".join(("remount", f"size={size}", *options))
    subprocess.run(["mount", "-o", chosen, folder], check=True)


def used(folder: Path) -> int:
    """Return how many bytes of a filesystem are taken."""
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


class Opens:
    """The open() calls of one process on one mount, each held until the next one is asked for."""

    def __init__(self, mount: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.handle = libc.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, os.O_RDONLY)
        mask = ctypes.c_uint64(FAN_OPEN_PERM | FAN_ONDIR)
        flags = FAN_MARK_ADD | FAN_MARK_MOUNT
        if self.handle < 0 or libc.fanotify_mark(
            self.handle, flags, mask, AT_FDCWD, os.fsencode(mount)
        ):
            number = ctypes.get_errno()
            raise OSError(number, f"fanotify: {os.strerror(number)}")

    def of(self, pid: int) -> Iterator[str]:
        """Yield the path of each open of `pid` while it waits there; other processes' pass."""
        exit_of = os.pidfd_open(pid)
        try:
            while True:
                ready, _, _ = select.select([self.handle, exit_of], [], [])
                if self.handle not in ready:
                    return
                yield from self._read(pid)
        finally:
            os.close(exit_of)

    def _read(self, pid: int) -> Iterator[str]:
        content = os.read(self.handle, 65536)
        while content:
            length, *_, descriptor, opener = EVENT.unpack_from(content)
            content = content[length:]
            try:
                if opener == pid:
                    yield os.readlink(f"/proc/self/fd/{descriptor}")
            finally:
                os.write(self.handle, struct.pack("=iI", descriptor, FAN_ALLOW))
                os.close(descriptor)

    def close(self) -> None:
        """Let every process through from now on."""
        os.close(self.handle)

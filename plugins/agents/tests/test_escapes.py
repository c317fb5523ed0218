# ruff: noqa: E501 - programs, one to a line
"""Programs that try to leave the sandbox, to exhaust the machine, or to forge a result."""

import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hf_rlhf_agents.code import passed
from hf_rlhf_agents.sandbox import Box, Limits, SandboxError
from hf_rlhf_agents.tasks import Case, Task

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
LIMITS = Limits(seconds=3, memory=400 << 20, disk=8 << 20, output=100_000)


def run(code: str, limits: Limits = LIMITS) -> str:
    """Return what a program printed, and how it was stopped."""
    with Box(limits) as box:
        ended = box.run(["python3", "-c", code])
        # A full box stays full; after anything else it works on.
        assert ended.stopped == "disk" or box.run(["true"]).code == 0
    assert not box.folder.exists()
    return f"{ended.stopped} {ended.stdout.decode()[-300:]} {ended.stderr.decode()[-300:]}"


ATTEMPT = """
try:
    {0}
    print("ESCAPED")
except BaseException as error:
    print("blocked", type(error).__name__)
"""

REFUSED = {
    "connect": "import socket; socket.create_connection(('1.1.1.1', 53), timeout=1)",
    "own loopback of the host": "import socket; socket.create_connection(('127.0.0.1', PORT), timeout=1)",
    "resolve": "import socket; socket.getaddrinfo('example.org', 80)",
    "raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "write to /usr": "open('/usr/bin/python3', 'wb')",
    "write to /": "open('/evil', 'w')",
    "write to /dev": "open('/dev/evil', 'w')",
    "many files in memory": (
        "import itertools\nfor n in itertools.islice(itertools.count(), 40):\n"
        "  for at in ('/tmp', '/dev/shm'): open(f'{at}/{n}', 'wb').write(b'x' * (4 << 20))"
    ),
    "passwords": "open('/etc/shadow').read()",
    "home of root": "import os; os.listdir('/root')",
    "files of the host": "open('CANARY').read()",
    "root by /proc": "open('/proc/self/root/CANARY').read()",
    "root of init": "open('/proc/1/root/CANARY').read()",
    "memory of init": "open('/proc/1/mem', 'rb').read(1)",
    "processes of the host": "import os; assert [int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) > 50]",
    "signal to the host": "import os; os.kill(HOST, 9)",
    "become root": "import os; os.setuid(0)",
    "mount": "import ctypes, os; assert ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0",
    "unshare": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "ptrace init": "import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
    "ptrace itself": "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "keyrings": "import ctypes; assert ctypes.CDLL(None).syscall(250, 0, -3, 1) >= 0",
    "bpf": "import ctypes; assert ctypes.CDLL(None).syscall(321, 0, 0, 0) >= 0",
    "clone a user namespace": "import ctypes; assert ctypes.CDLL(None).syscall(56, 0x10000011, 0, 0, 0, 0) >= 0",
    "clone3": "import ctypes; assert ctypes.CDLL(None).syscall(435, (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17), 88) >= 0",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 1, (ctypes.c_char * 120)()) >= 0",
    "files of init": "import ctypes, os; assert ctypes.CDLL(None).syscall(438, os.pidfd_open(1), 0, 0) >= 0",
    "compare with init": "import ctypes; assert ctypes.CDLL(None).syscall(312, 1, 1, 1, 0, 0) >= 0",
    "memory file": "import os; os.memfd_create('x')",
    "System V memory": "import ctypes; assert ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600) >= 0",
    "open its input again": "open('/proc/self/fd/0', 'wb')",
    "hard link": "import os; os.link('/usr/bin/env', '/box/env')",
    "unlimited open files": "files = [open('/dev/null') for _ in range(1000)]",
    "kernel log": "open('/dev/kmsg').read(1)",
    "disks": "import os; assert [n for n in os.listdir('/dev') if n.startswith(('sd', 'vd', 'nvme'))]",
    "devices": "import os; os.mknod('/tmp/null', 0o20666, os.makedev(1, 3))",
    "sysctl": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "variables of the host": "import os; os.environ['SECRET_OF_THE_HOST']",
    "raise the limits": "import resource as r; r.setrlimit(r.RLIMIT_NPROC, (10**6, 10**6))",
    "large file": "open('/box/large', 'wb').write(b'x' * (64 << 20))",
    "fill /tmp": "open('/tmp/large', 'wb').write(b'x' * (64 << 20))",
    "shared memory": "open('/dev/shm/large', 'wb').write(b'x' * (512 << 20))",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    canary = tmp_path / "canary"
    canary.write_text("secret")
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            REFUSED[name].replace("CANARY", str(canary)).replace("HOST", str(psutil.Process().pid))
        )
        code = code.replace("PORT", str(server.getsockname()[1]))
        said = run(ATTEMPT.format(code.replace("\n", "\n    ")))
    assert "ESCAPED" not in said
    assert "blocked" in said or said.split()[0] in ("memory", "disk", "time"), said


STOPPED = {
    "sleeps": ("import time; time.sleep(60)", "time"),
    "loops": ("while True: pass", "time"),
    "ignores signals": (
        "import signal, time\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except OSError: pass\ntime.sleep(60)",
        "time",
    ),
    "endless output": ("while True: print('x' * 1000)", "output"),
    "endless errors": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output"),
    "many files": (
        "n = 0\nwhile True:\n  open(f'/box/{n}', 'wb').write(b'x' * (1 << 20)); n += 1",
        "disk",
    ),
    "empty files": ("n = 0\nwhile True: open(f'/box/{n}', 'wb').close(); n += 1", "disk"),
    "empty folders": ("import os\nn = 0\nwhile True: os.mkdir(f'/box/{n}'); n += 1", "disk"),
    "deep folders": (
        "import os\nwhile True: os.mkdir('x' * 200); os.chdir('x' * 200); open('f', 'w').close()",
        "disk",
    ),
    "files without names": (
        "import os, time\nkept = []\nfor _ in range(100):\n  kept.append(open('/box/f', 'wb'))\n"
        "  kept[-1].write(b'x' * (1 << 20)); kept[-1].flush(); os.unlink('/box/f')\ntime.sleep(60)",
        "disk",
    ),
    "memory of many": (
        "import os, time\nfor _ in range(6):\n  if os.fork() == 0:\n    a = bytearray(150 << 20)\n"
        "    time.sleep(30)\ntime.sleep(30)",
        "memory",
    ),
}


@pytest.mark.parametrize("name", STOPPED)
def test_stopped(name: str) -> None:
    code, limit = STOPPED[name]
    begun = time.monotonic()
    assert run(code).split()[0] == limit
    assert time.monotonic() - begun < 15


def test_fork_bomb() -> None:
    said = run(
        "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "    n += 1\nexcept OSError: print('forks', n)"
    )
    assert int(said.split("forks")[1].split()[0]) < LIMITS.processes


@pytest.mark.parametrize("how", ["os.setsid()", "os.fork() and os._exit(0)"])
def test_no_process_outlives_its_command(how: str) -> None:
    mark = f"hf-rlhf-orphan-{time.monotonic_ns()}"
    code = (
        f"import os, sys, time\nif os.fork() == 0:\n  {how}\n"
        f"  os.execvp('sleep', ['{mark}', '50'])\nprint('parent')"
    )
    assert "parent" in run(code)
    assert not [
        each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or ())
    ]


def test_a_writer_in_the_background_leaves_nothing() -> None:
    said = run(
        "import os, itertools\nif os.fork() == 0:\n  os.setsid(); os.closerange(0, 3)\n"
        "  for n in itertools.cycle(range(500)):\n    os.makedirs(f'/box/d/{n}', exist_ok=True)"
    )
    assert said.split() == []


def test_links_that_appear_meanwhile_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("secret")
    swap = f"import os\nos.symlink({str(tmp_path)!r}, 'l')\nos.mkdir('d')\n" + (
        "while True:\n  for a, b in (('d', 'e'), ('l', 'd'), ('d', 'l'), ('e', 'd')): os.rename(a, b)"
    )
    with Box(LIMITS) as box, ThreadPoolExecutor() as pool:
        running = pool.submit(box.run, ["python3", "-c", swap])
        read = set()
        while not running.done():
            with suppress(OSError):
                box.write("d/f", b"1")
                read.add(box.read("d/f"))
    assert read == {b"1"}
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_text() == "secret"


def test_the_answers_of_an_installed_package_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_rlhf_agents.sandbox.box._PACKAGE", Path("/usr/share"))
    assert run("import os; print(os.listdir('/usr/share'))").split() == ["[]"]


@pytest.mark.parametrize("name", ["", "A=B"])
def test_names_of_variables(name: str) -> None:
    with Box(LIMITS) as box, pytest.raises(ValueError, match="variable"):
        box.run(["true"], environment={name: "x"})


def test_link_out_of_the_box(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with Box(LIMITS) as box:
        box.run(["ln", "-s", str(secret), "/box/link"])
        box.run(["ln", "-s", "/", "/box/root"])
        box.run(["mkfifo", "/box/pipe"])
        for name in ("link", f"root{secret}", "../x", "/box/../etc/passwd", "pipe"):
            with pytest.raises((PermissionError, FileNotFoundError, ValueError)):
                box.read(name)
        with pytest.raises(PermissionError):
            box.write("root/tmp/written", b"x")
        box.run(["ln", "-s", str(secret), "/box/out"])
        with pytest.raises(PermissionError):
            box.write("out", b"changed")
    assert secret.read_text() == "secret"


TASK = Task(
    id="t",
    category="c",
    question="q",
    scored="cases",
    function="f",
    code="def f(): pass",
    cases=(Case(expression="f(2)", value=9), Case(expression="f(3)", value=16)),
)
FORGED = {
    "prints and leaves": "print('[{\"value\": 9}]', flush=True); import os; os._exit(0)",
    "all pass": "print('ok 2 passed'); raise SystemExit(0)",
    "equal to everything": "class E:\n  __eq__ = lambda s, o: True\ndef f(x): return E()",
    "a number that is everything": "class E(int):\n  __eq__ = lambda s, o: True\ndef f(x): return E(0)",
    "as if bubblewrap had failed": "import os; os.write(2, b'bwrap: no'); os._exit(1)",
    "patches json": 'import json; json.dumps = lambda *_: \'[{"value": true}, {"value": true}]\'',
    "true is not 1": "def f(x): return True",
    "asks its caller": "import sys\ndef f(x): return sys._getframe(1).f_globals.get('given')",
    "hangs": "while True: pass",
    "no code": "",
    "deep": "print('[' * 100000, flush=True); import os; os._exit(0)",
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_results_pass_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_rlhf_agents.code.SECONDS", 2.0)
    assert passed(TASK, FORGED[name]) == 0


def test_right_code_passes() -> None:
    assert passed(TASK, "def f(x): return (x + 1) ** 2") == 2


def test_users_differ_between_boxes() -> None:
    with Box(LIMITS) as one, Box(LIMITS) as other:
        uids = [box.run(["id", "-u"]).stdout for box in (one, other)]
    assert len(set(uids)) == 2 or psutil.Process().uids().real != 0


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"), Box():
        pass


def test_bubblewrap_that_cannot_start_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_rlhf_agents.sandbox.box._bubblewrap", lambda *_: ["bwrap", "--unknown"])
    with Box(LIMITS) as box, pytest.raises(SandboxError):
        box.run(["true"])


def test_missing_program_is_an_ordinary_failure() -> None:
    with Box(LIMITS) as box:
        assert box.run(["no-such-program"]).code != 0


def test_files_stay_between_commands() -> None:
    with Box(LIMITS) as box:
        box.write("a/b.txt", b"1")
        box.run(["sh", "-c", "cat a/b.txt > c; echo 2 >> a/b.txt"], folder="")
        assert (box.read("c"), box.read("/box/a/b.txt")) == (b"1", b"12\n")
    assert not box.folder.exists()


def test_ordinary_user(tmp_path: Path) -> None:
    if psutil.Process().uids().real != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root to become an ordinary user")
    code = (
        "from hf_rlhf_agents.sandbox import Box\n"
        "with Box() as box: print(box.run(['python3', '-c', 'print(6 * 7)']).stdout)"
    )
    import sys

    got = subprocess.run(
        ["setpriv", "--reuid=61999", "--regid=61999", "--clear-groups", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd="/tmp",
    )
    assert "42" in got.stdout, got.stderr[-500:]

"""The processes of a chain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.steps.jobs import Job, last_error, run_jobs, run_training


def queue(tmp_path: Path, *programs: str) -> Callable[[], Job | None]:
    jobs = [
        Job(f"job {at}", (sys.executable, "-c", program), tmp_path / f"{at}.log")
        for at, program in enumerate(programs)
    ]
    return lambda: jobs.pop(0) if jobs else None


def test_a_run_that_fails_stops_no_other_and_says_why(tmp_path):
    ended = []
    programs = ["raise SystemExit('error: no luck')", "print('{job}')", "print('{job}')"]
    assert run_jobs(queue(tmp_path, *programs), 1, ended.append) is None
    assert [end.status for end in ended] == [1, 0, 0]
    assert [end.error for end in ended] == ["error: no luck", "", ""]
    assert (tmp_path / "1.log").read_text() == "0\n"


LAUNCHERS_END = "subprocess.CalledProcessError: Command '['python']' returned 1."


@pytest.mark.parametrize(
    ("log", "status", "expected"),
    [
        ("error: 1 problem:\n  - lr: is 2.\nbye", 2, "error: 1 problem: - lr: is 2."),
        (f"torch.OutOfMemoryError: none left\n{LAUNCHERS_END}", 1, "torch.OutOfMemoryError: none"),
        (f"[rank3]: ValueError: no\n[rank3]: note\n{LAUNCHERS_END}", 1, "ValueError: no"),
        ("step 3/6", -9, "killed by SIGKILL"),
    ],
)
def test_the_reason_is_that_of_this_attempt(log, status, expected, tmp_path):
    """Not the launcher's, which only says that there was one, nor that of an earlier attempt."""
    earlier = b"error: of an earlier attempt\n"
    path = tmp_path / "log"
    path.write_bytes(earlier + log.encode())
    assert last_error(path, len(earlier), status).startswith(expected)


def test_runs_at_once_have_a_number_each(tmp_path):
    program = (
        "import pathlib, time\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / '{job}.up').touch()\n"
        "until = time.monotonic() + 60\n"
        "while len([*here.glob('*.up')]) < 3 and time.monotonic() < until: time.sleep(0.01)\n"
        "print('{job}' if time.monotonic() < until else 'alone')"
    )
    run_jobs(queue(tmp_path, program, program, program), 3, lambda end: None)
    logs = [(tmp_path / f"{at}.log").read_text().strip() for at in range(3)]
    assert sorted(logs) == ["0", "1", "2"]


def test_a_stop_waits_for_the_launchers_workers_and_starts_no_more(tmp_path):
    """The launcher dies of its SIGTERM at once; the worker saves first."""
    worker = (
        "import signal,sys,time\n"
        "def save(*_):\n"
        f"    time.sleep(0.6); open({str(tmp_path / 'saved')!r}, 'w').close(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({str(tmp_path / 'up')!r}, 'w').close()\n"
        "time.sleep(30)\n"
    )
    launcher = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    code = (
        "import os,time\n"
        f"while not os.path.exists({str(tmp_path / 'up')!r}): time.sleep(0.05)\n"
        f"time.sleep(0.3); os.kill({os.getpid()}, {int(signal.SIGTERM)})"
    )
    stopper = subprocess.Popen([sys.executable, "-c", code])
    ended = []
    programs = [launcher, "import time; time.sleep(30)", "print()"]
    assert run_jobs(queue(tmp_path, *programs), 2, ended.append) == signal.SIGTERM
    stopper.wait()
    assert (tmp_path / "saved").exists()
    assert sorted(end.job.title for end in ended if end.stopped) == ["job 0", "job 1"]
    assert not (tmp_path / "2.log").exists()


def test_a_training_is_started_by_its_launcher_and_says_if_it_cannot_be(tmp_path):
    log = tmp_path / "log"
    words = "import os, sys; print(sys.argv[1:], 'HF_RLHF_LAUNCHED_BY' in os.environ); sys.exit(3)"
    launch = [sys.executable, "-c", words]
    assert run_training(launch, tmp_path / "run.yaml", ["--x", "1"], log=log) == 3
    expected = ["-m", "hf_rlhf.train", "--config", str(tmp_path / "run.yaml"), "--x", "1"]
    assert log.read_text() == f"{expected} True\n"
    with pytest.raises(HfRlhfError, match="no-such-launcher"):
        run_training(["no-such-launcher"], tmp_path / "run.yaml")


def test_ctrl_c_waits_for_the_training_that_it_stops_too(tmp_path):
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    child = (
        "import pathlib, signal, time; signal.signal(signal.SIGINT, lambda *_: None); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(1); pathlib.Path({str(saved)!r}).touch()"
    )
    parent = (
        "from pathlib import Path; from hf_rlhf.steps import run_training; "
        f"run_training([{sys.executable!r}, '-c', {child!r}], Path('run.yaml'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], start_new_session=True, stderr=subprocess.DEVNULL
    )
    while not ready.exists():
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() != 0
    assert saved.exists()

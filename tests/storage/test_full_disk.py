"""Runs on real disks that are too small, fill up, or whose process is killed while it saves.

The whole tables are made by experiments/full_disk/run.py; here is one trial of each kind.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "full_disk" / "run.py"
pytestmark = pytest.mark.slow


def may_mount() -> bool:
    """Return whether this user may mount a tmpfs, and hold processes at their opens."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    watch = "import ctypes, sys; sys.exit(ctypes.CDLL(None).fanotify_init(4, 0) < 0)"
    mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return all(
        subprocess.run(command, check=False, capture_output=True).returncode == 0
        for command in ([sys.executable, "-c", watch], mount)
    )


def test_whatever_the_disk_does_the_same_command_ends_with_the_same_weights():
    if not may_mount():
        pytest.skip("needs root on Linux, to mount filesystems and to watch them (fanotify)")
    # At 9 torch writes a file so small that its error has no words for it; at 25 the manifest is
    # written, which is not yet its name.
    trials = ["filled:0.9", "shorn:9", "kills:8,25"]
    command = [sys.executable, str(SCRIPT), *trials, "--keep", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same weights") == 4, done.stdout


TWO_PROCESSES = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import PartialState

from hf_rlhf.training import checkpoints
from hf_rlhf.training.checkpoints import CheckpointManifestCallback, is_valid, newest_valid
from hf_rlhf.errors import DiskError, RunFolderError

state = PartialState(cpu=True)
assert state.num_processes == 2
folder, rank = Path(sys.argv[1]), state.process_index
args = SimpleNamespace(
    output_dir=str(folder), optim="adamw_torch", ddp_timeout=60, save_strategy="steps"
)
at = SimpleNamespace(is_world_process_zero=rank == 0, global_step=1, max_steps=9)
model = {"model": torch.nn.Linear(2, 2), "processing_class": None}

(folder / "checkpoint-1").mkdir(parents=True, exist_ok=True)
time.sleep(rank)  # its file comes when the other process has long been done
(folder / "checkpoint-1" / f"rng_state_{rank}.pth").write_bytes(b"state")
CheckpointManifestCallback(None).on_save(args, at, None)
state.wait_for_everyone()
assert "rng_state_1.pth" in (folder / "checkpoint-1" / "manifest.json").read_text()
assert newest_valid(folder) == folder / "checkpoint-1"

# Only the main process looks at the disk, but both stop.
if rank == 0:
    checkpoints.free_bytes = lambda _: 0
try:
    control = SimpleNamespace(should_save=True)
    CheckpointManifestCallback(None).on_step_end(args, at, control, **model)
except DiskError:
    os.write(1, f"{rank} stopped\\n".encode())

# A process that does not see the checkpoint may not begin anew beside one that resumes.
if rank == 1:
    checkpoints.is_valid = lambda _: False
try:
    newest_valid(folder)
except RunFolderError:
    os.write(1, f"{rank} refused\\n".encode())
"""


def test_two_processes_seal_stop_and_resume_together(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    done = subprocess.run(
        [*launch, str(script), str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == [
        *("0 refused", "0 stopped", "1 refused", "1 stopped")
    ]

"""A real run whose checkpoints are pushed while it trains, under faults, by the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.config.yaml import dump_yaml
from hf_rlhf.hub.client import connect

local_hub = pytest.importorskip("hf_rlhf_local_hub")
pytestmark = pytest.mark.slow
Fault = local_hub.Fault
REPO = "demo/tiny"
ADAPTER = {"adapter_config.json", "adapter_model.safetensors", "README.md", "run.json"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Any]:
    with local_hub.serve(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def environment(hub: Any, tmp_path: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "OMP_NUM_THREADS") if name in os.environ
    }
    folder = Path(sys.executable).parent
    return kept | {
        "PATH": f"{folder}{os.pathsep}{kept['PATH']}",
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": "any-token-will-do",
        "HF_HOME": str(tmp_path / "home"),
        "HF_RLHF_PATIENCE": "5",
    }  # fmt: skip


@pytest.fixture
def run_file(tiny_run: dict[str, Any], tmp_path: Path) -> Path:
    publish = {"repo_id": REPO, "checkpoints": True, "base_model": "demo/base", "push_base": True}
    tiny_run |= {
        "schema": 1,
        "publish": publish,
        "evaluation": None,
        "save_total_limit": 1,
        "max_steps": 3,
    }
    file = tmp_path / "run.yaml"
    file.write_text(dump_yaml(tiny_run), encoding="utf-8")
    return file


def train(run_file: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hf_rlhf.train", "--config", str(run_file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def tree(hub: Any, revision: str) -> set[str]:
    return set(connect(hub.url, "t").api.list_repo_files(REPO, revision=revision))


def commits(hub: Any, revision: str) -> int:
    return len(connect(hub.url, "t").api.list_repo_commits(REPO, revision=revision)) - 1


@pytest.mark.smoke
def test_published_while_training_and_after_a_kill(
    run_file: Path, environment: dict[str, str], hub: Any, tmp_path: Path
) -> None:
    """Killed while the first push is under way: the next session sends it, and goes on."""
    hub.faults.add(Fault("POST .*/demo/tiny/preupload/", status=None, delay=30))
    command = [sys.executable, "-m", "hf_rlhf.train", "--config", str(run_file)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 240
    while not hub.faults.requests("POST .*/demo/tiny/preupload/") and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.faults.clear()
    result = train(run_file, environment)
    assert result.returncode == 0, result.stderr
    for step in (1, 2, 3):
        assert f"checkpoint of step {step} published: {hub.url}/{REPO}/tree/step-{step}" in (
            result.stdout
        )
        assert tree(hub, f"step-{step}") >= ADAPTER
        assert commits(hub, f"step-{step}") == 1
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert list(record["publish"]["steps"]) == ["1", "2", "3"]
    assert record["publish"]["commit"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert "each on a branch: `step-1`, `step-2`, `step-3`" in card

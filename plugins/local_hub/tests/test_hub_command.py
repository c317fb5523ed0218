"""`hf-rlhf hub serve`, as a script or a person uses it."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hf_rlhf.errors import HfRlhfError
from hf_rlhf_local_hub import command, serve

LAUNCH = [sys.executable, "-c", "import sys; from hf_rlhf_local_hub.command import main; "
          "sys.exit(main(sys.argv[1:]))"]  # fmt: skip


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Start the command, wait until it is ready, and give the environment it says to use."""
    ready = folder.parent / "env.sh"
    arguments = [*LAUNCH, "serve", str(folder), "--env_file", str(ready), *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shown = f". {ready} && env"
        lines = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, check=True)
        pairs = (line.split("=", 1) for line in lines.stdout.splitlines() if "=" in line)
        yield process, {name: value for name, value in pairs if name.startswith("HF_")}
    finally:
        process.kill()
        process.communicate()


def run(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ready_then_stopped(tmp_path: Path) -> None:
    with serving(tmp_path / "hub") as (process, environment):
        assert environment["HF_ENDPOINT"].startswith("http://127.0.0.1:")
        assert (tmp_path / "env.sh").stat().st_mode & 0o077 == 0
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert f"export HF_ENDPOINT={environment['HF_ENDPOINT']}" in out
    assert "unset HF_HUB_OFFLINE" in out
    assert not (tmp_path / "env.sh").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org"])
def test_other_machines_are_kept_out(tmp_path: Path, host: str) -> None:
    with pytest.raises(HfRlhfError, match="allow_remote"), serve(tmp_path / "hub", host=host):
        pass
    with (
        pytest.raises(HfRlhfError, match="token"),
        serve(tmp_path / "hub", host=host, allow_remote=True),
    ):
        pass
    assert not (tmp_path / "hub").exists()


def test_a_port_in_use(tmp_path: Path) -> None:
    with serve(tmp_path / "one") as hub:
        port = int(hub.url.rpartition(":")[2])
        with pytest.raises(HfRlhfError, match="Cannot listen"), serve(tmp_path / "two", port=port):
            pass


def test_the_docs_say_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[3] / "docs/how-to/local-hub.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    quickstart, faults = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(quickstart, names)
    assert Path("pulled/notes.txt").read_bytes() == b"hello"
    with serve("hub-folder") as hub:
        exec(faults, names | {"hub": hub})
    with pytest.raises(SystemExit):
        command.main(["serve", "--help"])
    options = set(re.findall(r"--[a-z_]+", capsys.readouterr().out)) - {"--help"}
    documented = {one for line in text.splitlines() if line.startswith("|")
                  for one in re.findall(r"--[a-z_]+", line)}  # fmt: skip
    assert options == documented


@pytest.mark.slow
def test_datasets_from_the_hub(tmp_path: Path) -> None:
    with serving(tmp_path / "hub") as (_, environment):
        script = """
            from datasets import Dataset, DatasetDict, load_dataset
            rows = {"prompt": [f"q{i}" for i in range(50)], "n": list(range(50))}
            DatasetDict(train=Dataset.from_dict(rows)).push_to_hub("demo/rows")
            assert load_dataset("demo/rows", split="train").to_dict() == rows
            assert next(iter(load_dataset("demo/rows", split="train", streaming=True)))["n"] == 0
            print("ok")
            """
        cache = {"HF_HOME": str(tmp_path / "home")}
        assert run(script, environment | cache).strip().endswith("ok")

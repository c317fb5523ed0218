"""The page on Python and loose files: its code runs and type-checks, its commands work."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hf_rlhf import load_record

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "python.md"
PROGRAMS = {
    "hf-rlhf": ["-m", "hf_rlhf.cli"],
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> Path:
    """Return a folder with the files of the page, and its code as `script.py`."""
    folder = tmp_path_factory.mktemp("reader")
    script = ""
    for title, text in re.findall(
        r'^```\w+(?: title="(\S+)")?\n(.*?)^```', PAGE.read_text(), re.M | re.S
    ):
        if title:
            (folder / title).write_text(text)
    for text in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S):
        script += text
    (folder / "script.py").write_text(script)
    return folder


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_code_runs_and_its_run_is_recorded(reader):
    assert "reward brevity" in run(reader, "script.py")
    record = load_record(reader / "runs" / "exact")
    assert record.status == "finished"
    assert record.data.splits == {"train": 48, "test": 16}
    assert not (reader / "runs" / "two").exists()


def test_the_code_passes_mypy_with_the_types_of_what_is_returned(reader):
    checked = reader / "checked.py"
    checked.write_text(f"{(reader / 'script.py').read_text()}\nreveal_type(record.status)\n")
    options = ["--strict", "--ignore-missing-imports", "--cache-dir", str(reader / "cache")]
    said = run(reader, "-m", "mypy", *options, "checked.py", "my_rewards.py")
    assert "Literal['finished']" in said


def test_the_commands_work_with_the_files_of_the_page(reader):
    commands = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    said = {}
    for line in "".join(commands).splitlines():
        program, *rest = shlex.split(line)
        said[line] = run(reader, *PROGRAMS[program], *rest)
    checked, trained, instead = said.values()
    assert "reward Digits" in checked
    assert "4 steps are done" in trained
    assert "reward Digits" in instead
    assert "reward correct" not in instead
    card = (reader / "runs" / "file" / "README.md").read_text()
    assert "`my_rewards.py:Digits`" in card
    assert "--config run.yaml" in card  # the command, since a run file can name a file

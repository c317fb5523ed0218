"""The pages on plugins work as they stand: commands run, and the code is what they create."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
TUTORIAL = DOCS / "tutorial" / "first-reward.md"
TRAINER = DOCS / "how-to" / "write-a-trainer.md"
pytestmark = pytest.mark.slow


def blocks(language, page=TUTORIAL):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def commands():
    """Yield every command of the page, in order, with lines that end in a backslash joined."""
    for block in blocks("bash"):
        for line in block.replace("\\\n", "").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Run the page from top to bottom; return the folder, and the output of each command."""
    folder = tmp_path_factory.mktemp("reader")
    site = folder / "site"
    env = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    # Beside the environment that the tests run in, not into it; nothing is downloaded.
    pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    programs = {
        "hf-rlhf": ["-m", "hf_rlhf.cli"],
        "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
        "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    }
    said, here = {}, folder
    for words in commands():
        if words[0] == "cd":
            here /= words[1]
            continue
        if words[0] == "pip":
            assert words == ["pip", "install", "-e", ".[dev]"]
            program, rest = ["-m", *pip], ["."]
        else:
            program, rest = programs[words[0]], words[1:]
        done = subprocess.run(
            [sys.executable, *program, *rest],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        said[shlex.join(words)] = done.stdout + done.stderr
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return here, said


def test_every_command_of_the_page_works(reader):
    _, said = reader
    assert re.search(r"\d+ passed", said["pytest"])
    assert "brevity                  brevity 0.1.0" in said["hf-rlhf list rewards"]
    described = said["hf-rlhf describe brevity"]
    assert "words: int = 50" in described
    assert "Words up to which an answer scores 1.0." in described
    (checked,) = (text for command, text in said.items() if "hf-rlhf check" in command)
    assert re.search(r"reward brevity +│ ok +│ 0 to 1 on 12 made-up", checked), checked
    (trained,) = (text for command, text in said.items() if command.startswith("accelerate"))
    assert "step 2/2" in trained


def test_the_trainer_of_the_page_keeps_the_contract(tmp_path, monkeypatch):
    from hf_rlhf.testing import check_trainer

    (trainer,) = blocks("python", TRAINER)
    (tmp_path / "page_trainer.py").write_text(trainer)
    monkeypatch.syspath_prepend(tmp_path)
    from page_trainer import Demonstrations

    check_trainer(Demonstrations)

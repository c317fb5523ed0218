"""docs/plugins.md is run as it stands: its package is built, installed beside ours and used."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
pytestmark = pytest.mark.slow


def test_the_page_works(tmp_path):
    blocks = re.findall(r"```(?:toml|python)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.S)
    assert [name for name, _ in blocks] == ["pyproject.toml", "acme_rewards.py"]
    package = tmp_path / "package"
    package.mkdir()
    for name, content in blocks:
        (package / name).write_text(content)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(package)], check=True)
    env = {**os.environ, "PYTHONPATH": str(site)}

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", *arguments], env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    status, said = run("hf_rlhf.cli", "describe", "brevity")
    assert status == 0, said
    assert "words: int = 50" in said
    assert "How long an answer may be at full marks." in said

    asked = ["--rewards.7", "{name: brevity, words: 20, weight: 0.1}"]
    assert " ".join(asked).replace("{", "'{") + "'" in PAGE.read_text()
    status, said = run("hf_rlhf.cli", "check", "--plugin", "refiner_grpo", *asked)
    assert status == 0, said
    assert re.search(r"reward brevity +│ ok +│ 0 to 1 on 12 made-up", said), said

    status, said = run(
        "hf_rlhf.cli", "check", "--plugin", "refiner_grpo", "--rewards.7", "{name: brevety}"
    )
    assert status == 2
    assert "Did you mean 'brevity'" in said

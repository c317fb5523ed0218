"""The examples as their users have them: scripts that run, and a package that is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGE = EXAMPLES / "third_party_reward"
pytestmark = pytest.mark.slow


def run(*words, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", ["sft", "dpo", "grpo"])
def test_a_script_trains(name, tmp_path):
    script = EXAMPLES / f"{name}.py"
    run(script, "--max_steps", "2", "--evaluation.rows", "8", "--output_dir", tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "finished"


def test_the_package_installs_tests_itself_and_rewards_a_run(tmp_path):
    site, output = tmp_path / "site", tmp_path / "run"
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--target", site, PACKAGE)
    tests = (PACKAGE / "test_language_consistency.py").read_text()
    (tmp_path / "test_it.py").write_text(tests)  # away from the source of what it imports
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib")
    assert "passed" in run("-m", "pytest", *options, tmp_path / "test_it.py", PYTHONPATH=str(site))
    described = run(
        *("-m", "hf_rlhf.cli", "describe", "language_consistency"), PYTHONPATH=str(site)
    )
    assert "columns it needs: language" in described
    rows = [{"prompt": f"{n}?", "language": "en" if n % 2 else None} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    section = {"name": "prompts", "path": str(tmp_path / "rows.jsonl"), "test_rows": 8}
    reward = {"name": "language_consistency", "on_none": "skip"}
    length = {"name": "answer_length", "weight": 0.01}
    sizes = ("--max_steps", "2", "--num_generations", "4", "--per_device_train_batch_size", "8")
    run(
        *("-m", "hf_rlhf.train", "--plugin", "grpo", "--output_dir", output, *sizes),
        *("--dataset", json.dumps(section), "--rewards", json.dumps([reward, length])),
        *("--evaluation.rows", "8"),
        PYTHONPATH=str(site),
    )
    record = json.loads((output / "run.json").read_text())
    brought = {part["name"]: part["package"] for part in record["components"]}
    assert brought["language_consistency"] == "language-consistency"

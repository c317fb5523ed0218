"""examples/third_party_reward as its users have it: installed, tested by itself, run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hf_rlhf.cli.new import new_package

EXAMPLE = Path(__file__).parents[1] / "examples" / "third_party_reward"


def test_it_is_what_new_makes_deepened(tmp_path):
    made = new_package("language_consistency", out=tmp_path)
    theirs = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert [name for name in sorted(theirs) if not (EXAMPLE / name).is_file()] == []
    for part in ("build-system", "tool"):
        ours, new = (
            tomllib.loads((folder / "pyproject.toml").read_text())[part]
            for folder in (EXAMPLE, made)
        )
        assert ours == new
    assert (EXAMPLE / ".gitignore").read_text() == (made / ".gitignore").read_text()


def test_the_readme_has_the_numbers_that_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spec = importlib.util.spec_from_file_location("validate_example", EXAMPLE / "validate.py")
    validate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(validate)
    results = json.loads((EXAMPLE / "results.json").read_text())
    assert validate.table(results) in (EXAMPLE / "README.md").read_text()


@pytest.mark.slow
def test_it_installs_tests_itself_and_runs(tmp_path):
    site, work = tmp_path / "site", tmp_path / "work"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *offline, "--target", site, EXAMPLE], check=True)
    # Its code comes from what was installed: only tests and rows are copied.
    work.mkdir()
    for name in ("tests", "rows.jsonl", "run.yaml"):
        subprocess.run(["cp", "-r", EXAMPLE / name, work / name], check=True)
    env = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    # Without its own run by name, which the run file is too.
    options = ["-p", "no:cacheprovider", "--import-mode=importlib", "-k", "not run_by_name"]
    tests = run("pytest", "-q", *options, "tests")
    assert re.search(r"\d+ passed", tests)
    listed = run("hf_rlhf.cli", "list")
    for name in ("language_consistency", "language_questions"):
        assert re.search(rf"  {name} +language-consistency 0.1.0 ", listed)
    assert "columns it needs: language" in run("hf_rlhf.cli", "describe", "language_consistency")
    assert "step 2/2" in run("hf_rlhf.train", "--config", "run.yaml")
    record = json.loads((work / "runs" / "language_consistency" / "run.json").read_text())
    brought = {part["name"]: part["package"] for part in record["components"]}
    assert brought["language_consistency"] == "language-consistency"
    assert brought["language_questions"] == "language-consistency"

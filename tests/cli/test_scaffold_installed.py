"""A package of each kind as its author and its users have it: built, installed, tested, run."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hf_rlhf.cli.new import KIND_OF, new_package

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A fresh virtual environment that sees what is installed here, and a package of each kind."""
    folder = tmp_path_factory.mktemp("user")
    packages = [new_package(f"acme-{kind}", kind=kind, out=folder) for kind in KIND_OF]
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "seen.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", folder / "dist", *packages], check=True)
    wheels = sorted((folder / "dist").glob("*.whl"))
    assert [wheel.name.split("-")[0] for wheel in wheels] == sorted(f"acme_{k}" for k in KIND_OF)
    install = [*pip, "--python", python, "install", "--no-deps", "--no-index", *wheels]
    subprocess.run(install, check=True)
    return folder, python


def run(user, *arguments, cwd="."):
    folder, python = user
    done = subprocess.run(
        [python, "-m", *arguments],
        cwd=folder / cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    return done.returncode, done.stdout + done.stderr


def test_list_and_describe_show_them(user):
    _, output = run(user, "hf_rlhf.cli", "list", "--check")
    for kind in KIND_OF:
        name = "acme-command" if kind == "command" else f"acme_{kind}"
        assert f"  {name:24} {f'acme-{kind} 0.1.0':24} ok\n" in output
        status, described = run(user, "hf_rlhf.cli", "describe", name)
        assert status == 0, described
        assert f"acme-{kind} 0.1.0" in described
    _, output = run(user, "hf_rlhf.cli", "--help")
    verb = "acme-command Say of each run folder how far it is (from acme-command 0.1.0)"
    assert verb in " ".join(output.split())


def test_they_pass_their_own_tests(user):
    tests = [f"acme-{kind}/tests" for kind in KIND_OF]
    options = ["-q", "--rootdir=.", "--import-mode=importlib", "-p", "no:cacheprovider"]
    status, output = run(user, "pytest", *options, *tests)
    assert status == 0, output
    assert " passed" in output
    assert "skipped" not in output


def test_a_run_by_name_and_the_verb_on_its_folder(user):
    """The new trainer, reward and judge in one run; the dataset is in its own tests' run."""
    changes = ["--rewards.1", "{name: acme_reward, words: 5, weight: 0.1}"]
    changes += ["--judges.main.name", "acme_judge"]
    status, output = run(user, "hf_rlhf.train", "--plugin", "acme_trainer", *changes)
    assert status == 0, output
    folder, _ = user
    record = json.loads(Path(folder, "runs", "acme_trainer", "run.json").read_text())
    assert record["status"] == "finished"
    brought = {part["name"]: part["package"] for part in record["components"]}
    for kind in ("reward", "judge", "trainer"):
        assert brought[f"acme_{kind}"] == f"acme-{kind}"
    assert record["reward"]["judges"][0]["usage"]["calls"] > 0
    status, output = run(user, "hf_rlhf.cli", "acme-command", "runs/acme_trainer")
    assert (status, output) == (0, "runs/acme_trainer: finished, 2 of 2 steps\n")

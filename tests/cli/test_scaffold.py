"""`hf-rlhf new`: which names it takes, what it writes, and that the code is in order."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from hf_rlhf import __version__
from hf_rlhf.cli.new import KIND_OF, core_range, new_package
from hf_rlhf.config import RunFile
from hf_rlhf.errors import HfRlhfError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One package of each kind."""
    folder = tmp_path_factory.mktemp("made")
    return {kind: new_package(f"acme_{kind}", kind=kind, out=folder) for kind in KIND_OF}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../evil", "cannot be the name of a package.*no folders"),
        ("1st", "a letter first"),
        ("größe\n", "ASCII letters"),
        ("", "a letter first"),
        ("x" * 65, "at most 64"),
        ("Class", "'class' is a module, a keyword of Python"),
        ("json", "'json' is a module.*my_json"),
        ("Tests", "'tests' is a module, a keyword of Python, or one of its folders"),
        ("Data.Sets", None),
        ("datasets", "'datasets' is a module"),
    ],
)
def test_names(name, message, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    if message is None:
        assert new_package(name, out=inside) == inside / name
        assert (inside / name / "data_sets" / "reward.py").is_file()
        return
    with pytest.raises(HfRlhfError, match=f"(?s){message}"):
        new_package(name, out=inside)
    assert not list(inside.iterdir())
    assert list(tmp_path.iterdir()) == [inside]


def test_the_range_is_the_one_of_this_core(made):
    assert core_range("0.1.0") == ">=0.1,<0.2"
    assert core_range("0.9.3") == ">=0.9,<0.10"
    assert core_range("2.3.1") == ">=2.3,<3"
    project = tomllib.loads((made["reward"] / "pyproject.toml").read_text())["project"]
    (requirement,) = map(Requirement, project["dependencies"])
    assert requirement.name == "hf-rlhf"
    assert requirement.specifier.contains(__version__)


@pytest.mark.parametrize("kind", KIND_OF)
def test_what_is_written(kind, made):
    folder = made[kind]
    package = f"acme_{kind}"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    run = {"trainer": {f"{package}/runs/tiny.yaml"}, "command": set(), "codec": set()}.get(
        kind, {"run.yaml"}
    )
    assert names == {
        *(".gitignore", "README.md", "pyproject.toml", f"{package}/__init__.py"),
        *(f"{package}/{kind}.py", f"tests/test_{kind}.py"),
        *run,
        *({"rows.jsonl"} if kind == "dataset" else ()),
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"acme-{kind}"
    assert list(project["entry-points"]) == [f"hf_rlhf.{KIND_OF[kind]}"]
    for name in run:
        assert RunFile.read(folder / name).plugin in ("refiner_grpo", "grpo", package)
    texts = {name: (folder / name).read_text() for name in names}
    assert not [name for name, text in texts.items() if re.search(r"\{%|\{\{ |TODO", text)]
    assert not [name for name, text in texts.items() if text and not text.endswith("\n")]


@pytest.mark.parametrize("prefix", ["a", "a_name_of_24_charac"])
def test_the_code_is_in_order(prefix, tmp_path):
    for kind in KIND_OF:
        new_package(f"{prefix}_{kind}", kind=kind, out=tmp_path)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_code_is_typed(made):
    packages = [str(folder / f"acme_{kind}") for kind, folder in made.items()]
    done = subprocess.run(
        # Each has the same settings, so one of them speaks for all.
        [sys.executable, "-m", "mypy", "--config-file", made["reward"] / "pyproject.toml"]
        + ["--cache-dir", os.devnull, *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout

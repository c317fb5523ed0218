"""Where packages came from, by what pip writes beside them and by real repositories."""

import json
import subprocess
import sys
from importlib.metadata import PathDistribution

import pytest

from hf_rlhf.runs.sources import package_sources, source_of
from hf_rlhf.storage.record_schema import Source

COMMIT = "1d5e7c0b9a8f7e6d5c4b3a29181716151413121f"


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that installs a package with one module, as pip would leave it."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))

    def install(direct=None, *, installer="pip", code=site):
        info = site / "acme_rewards-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: acme-rewards\nVersion: 1.0\n")
        if installer:
            (info / "INSTALLER").write_text(f"{installer}\n")
        if direct:
            (info / "direct_url.json").write_text(json.dumps(direct))
        (code / "acme_rewards.py").write_text("")
        monkeypatch.syspath_prepend(str(code))
        return PathDistribution(info)

    return install


@pytest.fixture
def checkout(tmp_path):
    """Return a repository with a package in a subfolder."""
    folder = tmp_path / "plugins"
    project = folder / "rewards"
    project.mkdir(parents=True)
    (project / "pyproject.toml").write_text("")
    (project / "acme_rewards.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a")
    return folder


def requirement(source):
    return source.requirement("acme-rewards", "1.0")


def test_of_an_index(installed):
    source = source_of(installed(), "acme_rewards")
    assert source == Source(kind="index")
    assert requirement(source) == "acme-rewards==1.0"


def test_of_a_repository_without_its_password(installed):
    vcs = {"vcs": "git", "commit_id": COMMIT}
    url = "https://me:secret@example.org/acme/plugins.git"
    source = source_of(
        installed({"url": url, "vcs_info": vcs, "subdirectory": "rewards"}), "acme_rewards"
    )
    where = f"git+https://example.org/acme/plugins.git@{COMMIT}#subdirectory=rewards"
    assert requirement(source) == f"acme-rewards @ {where}"


def test_of_an_archive(installed):
    info = {"url": "https://example.org/a-1.0.whl", "archive_info": {"hashes": {"sha256": "ab"}}}
    source = source_of(installed(info), "acme_rewards")
    assert requirement(source) == "acme-rewards @ https://example.org/a-1.0.whl#sha256=ab"


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://files.example.org/a.whl?X-Signature=abc#b", "https://files.example.org/a.whl"),
        ("https://me:p@ss@example.org:8443/a.whl", "https://example.org:8443/a.whl"),
        ("ssh://git@example.org:2222/a.whl", "https://example.org/a.whl"),
    ],
)
def test_an_address_has_no_secrets_and_its_own_port(installed, url, public):
    assert source_of(installed({"url": url, "archive_info": {}}), "acme_rewards").url == public


@pytest.mark.parametrize(
    "info",
    [
        {"url": "file:///home/me/a-1.0.whl", "archive_info": {}},
        {"url": "file:///home/me/rewards", "dir_info": {}},
        {"url": "file:///home/me/rewards", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
    ],
)
def test_what_lies_on_this_machine_is_no_requirement(installed, info):
    source = source_of(installed(info), "acme_rewards")
    assert requirement(source) is None
    assert "/home/me" not in source.model_dump_json()


@pytest.mark.parametrize("how", ["editable", "python path", "egg-info"])
def test_code_that_is_read_from_a_checkout_has_its_commit(installed, checkout, how):
    editable = {"url": f"file://{checkout}/rewards", "dir_info": {"editable": True}}
    package = installed(
        editable if how == "editable" else None,
        installer=None if how == "egg-info" else "pip",
        code=checkout / "rewards",
    )
    commit = git(checkout, "rev-parse", "HEAD")
    source = source_of(package, "acme_rewards")
    assert source == Source(kind="editable", commit=commit, dirty=False)
    assert requirement(source) is None, "nobody else has that commit"
    (checkout / "elsewhere").write_text("of another package")
    assert source_of(package, "acme_rewards").dirty is False
    (checkout / "rewards" / "new_module.py").write_text("")
    assert source_of(package, "acme_rewards").dirty is True


def test_a_repository_around_ignored_code_is_not_its_own(installed, checkout, monkeypatch):
    (checkout / ".gitignore").write_text("venv\n")
    code = checkout / "venv"
    code.mkdir()
    package = installed({"url": "", "dir_info": {"editable": True}}, code=code)
    assert source_of(package, "acme_rewards") == Source(kind="editable")
    monkeypatch.setenv("PATH", "")
    assert source_of(package, "acme_rewards") == Source(kind="editable"), "without git"


def test_every_package_of_a_component_has_one_whatever_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources = package_sources()
    assert {"hf-rlhf", "hf-rlhf-worlds"} <= sources.keys()
    assert all(source.kind for source in sources.values())

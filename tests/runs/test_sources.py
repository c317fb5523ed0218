"""Where packages came from, by what pip writes beside them and by real repositories."""

import json
import subprocess
import sys
from importlib.metadata import PathDistribution

import pytest

from hf_rlhf.runs.sources import source_of
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


VCS = {"vcs": "git", "commit_id": COMMIT}
HASHES = {"hashes": {"sha256": "ab"}}


@pytest.mark.parametrize(
    ("direct", "expected"),
    [
        (None, "acme-rewards==1.0"),
        (
            {
                **{"url": "https://me:p@ss@example.org/acme/plugins.git", "vcs_info": VCS},
                "subdirectory": "rewards",
            },
            "acme-rewards @ git+https://example.org/acme/plugins.git"
            f"@{COMMIT}#subdirectory=rewards",
        ),
        (
            {"url": "https://example.org:8443/a.whl?X-Signature=abc#b", "archive_info": HASHES},
            "acme-rewards @ https://example.org:8443/a.whl#sha256=ab",
        ),
        ({"url": "file:///home/me/a-1.0.whl", "archive_info": {}}, None),
        ({"url": "file:///home/me/rewards", "dir_info": {}}, None),
        ({"url": "file:///home/me/rewards", "vcs_info": VCS}, None),
    ],
)
def test_what_others_can_install_has_no_secret_and_no_local_path(installed, direct, expected):
    source = source_of(installed(direct), "acme_rewards")
    assert requirement(source) == expected
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

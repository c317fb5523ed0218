"""Names from strangers: nothing is written outside of the folder that was named.

An audit hook sees every file that Python opens to write, makes, moves or removes.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_rlhf.cli.new import new_package
from hf_rlhf.errors import HfRlhfError, PublishError
from hf_rlhf.hub import download as pull_module
from hf_rlhf.hub.client import RemoteFile, RemoteState
from hf_rlhf.hub.download import pull
from hf_rlhf.hub.upload_set import PushedFile, UploadSet

_writes: list[str] | None = None
_CALLS = ("mkdir", "rename", "remove", "rmdir", "symlink", "link", "truncate")
_OF_PATHS = {f"os.{name}" for name in _CALLS}


def _hook(event: str, arguments: tuple) -> None:
    if _writes is None:
        return
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, str | bytes) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _writes.append(os.fsdecode(path))
    elif event in _OF_PATHS:
        _writes.extend(
            os.fsdecode(p) for p in arguments[:2] if isinstance(p, str | bytes | os.PathLike)
        )


sys.addaudithook(_hook)


@contextmanager
def nothing_written_outside(root: Path) -> Iterator[list[str]]:
    """Fail if anything beyond `root` is written meanwhile; yield what was written."""
    global _writes
    _writes = seen = []
    try:
        yield seen
    finally:
        _writes = None
    real = os.path.realpath(root)
    for path in seen:
        if path == os.devnull:
            continue
        where = os.path.realpath(os.path.join(os.getcwd(), path))
        assert where == real or where.startswith(real + os.sep), path


NAMES = [
    *("../evil.json", "a/../../evil.json", "/tmp/evil.json", "..\\evil.json", "a\x00.json"),
    *("C:\\evil.json", "x" * 300 + ".json", "~/evil.json", "a\nb.json", "-rf.json", "a/", ""),
]
PIECES = st.sampled_from(
    ["..", ".", "", "a", "~", "b.json", "\\..", "\x00", "c" * 260, "/etc", "x y"]
)
PATHS = st.sampled_from(NAMES) | st.lists(PIECES, min_size=1, max_size=6).map("/".join)


class NaiveHub:
    """A Hub with one hostile file, and a client that writes wherever the name leads."""

    endpoint = "http://hub"

    def __init__(self, path: str) -> None:
        self.path = path
        content = PushedFile("x", b"{}")
        self.found = RemoteState("0" * 40, {path: RemoteFile(content.git, False, content.size)})

    def state(self, repo_id, revision):
        return self.found

    def record(self, repo_id, found):
        return {}

    def read(self, repo_id, path, state):
        return b"{}"

    def download(self, repo_id, path, state, folder):
        target = os.path.join(folder, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(b"{}")


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(PATHS)
def test_pull_writes_nothing_outside_its_folder(tmp_path, monkeypatch, path):
    monkeypatch.setattr(pull_module, "connect", lambda *_: NaiveHub(path))
    root = tmp_path / "models"
    root.mkdir(exist_ok=True)
    monkeypatch.chdir(root)
    with nothing_written_outside(root):
        try:
            pull("me/model", root / "out", overwrite=True)
        except (HfRlhfError, OSError, ValueError):
            return
    assert ".." not in Path(path).parts


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(PATHS)
def test_new_writes_nothing_outside_its_folder(tmp_path, name):
    root = tmp_path / "packages"
    root.mkdir(exist_ok=True)
    with nothing_written_outside(root):
        try:
            made = new_package(name, out=root)
        except HfRlhfError:
            return
    assert made.parent == root


def test_a_link_that_leads_out_of_a_run_is_not_published(tmp_path):
    run = tmp_path / "run"
    (run / "merged").mkdir(parents=True)
    (tmp_path / "outside.json").write_text("{}")
    (run / "merged" / "config.json").symlink_to("../../outside.json")
    bundle = UploadSet(run)
    with pytest.raises(PublishError, match="outside"):
        bundle.add_file("config.json", run / "merged" / "config.json")
    with pytest.raises(PublishError, match="outside"):
        bundle.add_file("x.png", run / ".." / "outside.json")

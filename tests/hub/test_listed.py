"""Repositories that hold a list of what was pushed, against the local Hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import Hub, connect
from hf_rlhf.hub.ownership import push_listed
from hf_rlhf.hub.upload_set import UploadSet
from hf_rlhf.testing.hubs import forget_secrets, use_hub

local_hub = pytest.importorskip("hf_rlhf_local_hub")
REPO, LIST = "demo/rows", "files.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_hub.serve(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def hub(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    forget_secrets(monkeypatch)
    use_hub(monkeypatch, server.url)
    client = connect(kind="dataset")
    yield client
    client.api.delete_repo(REPO, repo_type="dataset", missing_ok=True)


def push(hub: Hub, root: Path, *, overwrite: bool = False, **files: str) -> tuple[str, Any]:
    upload = UploadSet(root)
    for name, text in files.items():
        upload.add_text(f"{name}.md", text)
    return push_listed(
        hub,
        REPO,
        upload,
        LIST,
        {"datasets": sorted(files)},
        message="rows",
        private=None,
        overwrite=overwrite,
        option="--repo_id",
    )


def change(hub: Hub, name: str, text: str) -> None:
    hub.api.upload_file(
        path_or_fileobj=text.encode(), path_in_repo=name, repo_id=REPO, repo_type="dataset"
    )


def content(state: Any) -> set[str]:
    return set(state.files) - {".gitattributes"}


def test_the_same_files_are_pushed_once(hub: Hub, tmp_path: Path) -> None:
    before, first = push(hub, tmp_path, a="1", b="2")
    assert before != first.commit
    assert content(first) == {"a.md", "b.md", LIST}
    assert push(hub, tmp_path, a="1", b="2")[0] == push(hub, tmp_path, a="1", b="2")[1].commit


def test_of_what_is_left_out_only_own_files_are_deleted(hub: Hub, tmp_path: Path) -> None:
    push(hub, tmp_path, a="1", b="2", c="3")
    change(hub, "theirs.md", "someone's notes")
    change(hub, "c.md", "someone's correction")
    assert content(push(hub, tmp_path, a="1")[1]) == {"a.md", "c.md", "theirs.md", LIST}


def test_a_file_that_was_changed_since_is_kept_until_overwritten(hub: Hub, tmp_path: Path) -> None:
    push(hub, tmp_path, a="1", b="2")
    change(hub, "a.md", "someone's correction")
    with pytest.raises(PublishError, match=r"changed since: a\.md .* another --repo_id"):
        push(hub, tmp_path, a="3", b="2")
    push(hub, tmp_path, a="3", b="2", overwrite=True)
    assert push(hub, tmp_path, a="3", b="2")[1]


def test_a_repository_without_the_list_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.api.create_repo(REPO, repo_type="dataset")
    change(hub, "theirs.md", "text")
    with pytest.raises(PublishError, match=r"not pushed from here, .*: theirs\.md"):
        push(hub, tmp_path, a="1")
    assert content(push(hub, tmp_path, a="1", overwrite=True)[1]) == {"a.md", LIST}

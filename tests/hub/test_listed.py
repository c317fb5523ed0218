"""Repositories that hold a list of what was pushed, against the local Hub."""

from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import Hub, connect
from hf_rlhf.hub.commit import push_listed
from hf_rlhf.hub.upload_set import UploadSet

local_hub = pytest.importorskip("hf_rlhf_local_hub")
REPO, LIST = "demo/rows", "files.json"


@pytest.fixture
def hub(empty_hub: Any) -> Hub:
    return connect(kind="dataset")


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


def test_a_repository_without_the_list_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.api.create_repo(REPO, repo_type="dataset")
    change(hub, "theirs.md", "text")
    with pytest.raises(PublishError, match=r"not pushed from here, .*: theirs\.md"):
        push(hub, tmp_path, a="1")
    assert content(push(hub, tmp_path, a="1", overwrite=True)[1]) == {"a.md", LIST}

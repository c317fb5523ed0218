"""What the real clients push, by Xet and by LFS, is what they pull."""

import os
from pathlib import Path

import httpx
import numpy as np
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationCopy,
    CommitOperationDelete,
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import EntryNotFoundError

from hf_rlhf_local_hub import RunningHub, serve


@pytest.fixture
def big() -> bytes:
    """Content that no hub has seen yet."""
    return os.urandom(300_000)


@pytest.fixture
def folder(tmp_path: Path, big: bytes) -> Path:
    made = tmp_path / "to push"
    (made / "sub folder").mkdir(parents=True)
    (made / "config.json").write_text('{"ä": 1}\n')
    (made / "empty.txt").write_bytes(b"")
    (made / "model.safetensors").write_bytes(big)
    # Shares most of its chunks with the file above.
    (made / "sub folder" / "ünï+#?.bin").write_bytes(big[:200_000] + os.urandom(50_000))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: data for name, data in found.items() if not name.startswith((".git", ".cache"))}


@pytest.mark.parametrize("repo_type", ["model", "dataset"])
def test_a_folder_comes_back_byte_for_byte(
    hub: RunningHub,
    api: HfApi,
    transport: str,
    folder: Path,
    tmp_path: Path,
    repo_type: str,
    big: bytes,
) -> None:
    api.create_repo("demo/thing", repo_type=repo_type)
    api.upload_folder(repo_id="demo/thing", repo_type=repo_type, folder_path=folder)
    pulled = snapshot_download(
        "demo/thing", repo_type=repo_type, endpoint=hub.url, local_dir=tmp_path / "pulled"
    )
    assert contents(Path(pulled)) == contents(folder)
    large = api.get_paths_info("demo/thing", "model.safetensors", repo_type=repo_type)[0]
    assert large.size == len(big)
    assert large.lfs.sha256


@pytest.mark.parametrize("kind", ["random", "floats", "text"])
def test_each_way_in_which_xet_packs(hub: RunningHub, api: HfApi, kind: str) -> None:
    """As it is, by LZ4 of grouped bytes, and by LZ4."""
    assert not constants.HF_HUB_DISABLE_XET
    random = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    content = {
        "random": lambda: os.urandom(300_000),
        "floats": lambda: random.normal(0, 0.02, 100_000).astype("float32").tobytes(),
        "text": lambda: os.urandom(50) * 8_000,
    }[kind]()
    api.create_repo("demo/m")
    api.upload_file(repo_id="demo/m", path_in_repo="w.bin", path_or_fileobj=content)
    assert hub.faults.requests("POST .*/v1/shards")
    assert Path(hf_hub_download("demo/m", "w.bin", endpoint=hub.url)).read_bytes() == content


def test_revisions_stay_what_they_were(
    hub: RunningHub, api: HfApi, tmp_path: Path, big: bytes
) -> None:
    api.create_repo("demo/m")
    first = api.upload_file(
        repo_id="demo/m", path_in_repo="w.bin", path_or_fileobj=big, commit_message="one"
    ).oid
    api.create_tag("demo/m", tag="v1")
    api.create_branch("demo/m", branch="feature/x")
    second = api.create_commit(
        "demo/m",
        [
            CommitOperationAdd("w.bin", big[::-1]),
            CommitOperationAdd("sub/new.txt", b"text"),
            CommitOperationCopy("w.bin", "sub/old.bin", src_revision=first),
        ],
        commit_message="two",
        commit_description="details",
    ).oid
    api.create_commit("demo/m", [CommitOperationDelete("w.bin")], commit_message="three")

    def read(name: str, revision: str) -> bytes:
        cache = tmp_path / "cache"
        path = hf_hub_download("demo/m", name, revision=revision, endpoint=hub.url, cache_dir=cache)
        return Path(path).read_bytes()

    for revision in (first, "v1", "feature/x", first[:7]):
        assert read("w.bin", revision) == big, revision
    assert read("w.bin", second) == big[::-1]
    assert read("sub/old.bin", "main") == big
    with pytest.raises(EntryNotFoundError):
        read("w.bin", "main")
    assert [commit.title for commit in api.list_repo_commits("demo/m")][:2] == ["three", "two"]
    api.delete_folder("sub", "demo/m")
    assert api.list_repo_files("demo/m") == [".gitattributes"]


def test_two_hubs_at_one_address_are_not_confused(tmp_path: Path, big: bytes) -> None:
    """hf_xet remembers what it has uploaded to an address, and does not send it again."""
    port = 0
    for name in ("first", "second"):
        with serve(tmp_path / name, port=port) as hub:
            port = int(hub.url.rpartition(":")[2])
            api = HfApi(endpoint=hub.url, token="t")
            api.create_repo("demo/m")
            api.upload_file(repo_id="demo/m", path_in_repo="w.bin", path_or_fileobj=big)
            assert httpx.get(f"{hub.url}/demo/m/resolve/main/w.bin").content == big

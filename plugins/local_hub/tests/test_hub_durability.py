"""What was committed stays; what was not is not seen. Whatever is pulled out, whenever."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from hf_rlhf.errors import RunFolderError
from hf_rlhf_local_hub import serve
from hf_rlhf_local_hub.store import Entry, Settings, Store, git_oid

# For n = 1, 2, ...: a process that dies by SIGKILL at its n-th rename or fsync while it commits;
# until one comes to its end. Prints how each fared.
KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from hf_rlhf_local_hub.store import Entry, Store, git_oid

    def commit(root, call, left):
        store = Store(root)
        repository = store.get("models", "demo/m")
        real = getattr(os, call)

        def deadly(*args):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        setattr(os, call, deadly)
        content = b"new"
        entry = Entry(git_oid(content), len(content), store.blobs.put(content))
        repository.add_commit("main", lambda old: {**old, "f": entry}, title="new", author="me")

    for root in sorted(Path(sys.argv[1]).iterdir()):
        child = os.fork()
        if child == 0:
            commit(root, sys.argv[2], int(root.name))
            os._exit(0)
        died = os.waitpid(child, 0)[1] != 0
        print(root.name, died)
        if not died:
            break
    """
)


def make(root: Path) -> Store:
    store = Store(root)
    content = b"old"
    first = {"f": Entry(git_oid(content), len(content), store.blobs.put(content))}
    store.create("models", "demo/m", Settings(), "me", lambda _: first)
    return store


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_kill_9_anywhere_in_a_commit(tmp_path: Path, call: str) -> None:
    for left in range(1, 20):
        make(tmp_path / f"{left:02d}")
    arguments = [sys.executable, "-c", KILLED, str(tmp_path), call]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    fates = [line.split() for line in done.stdout.splitlines()]
    assert [died for _, died in fates] == ["True"] * (len(fates) - 1) + ["False"]
    assert len(fates) > 3
    for name, died in fates:
        store = Store(tmp_path / name)
        repository = store.get("models", "demo/m")
        commits = list(repository.history("main"))
        entry = commits[0].files["f"]
        content = store.blobs.path(entry.sha256).read_bytes()
        assert (len(commits), content) in ((1, b"old"), (2, b"new"))
        assert died == "True" or content == b"new"
        assert git_oid(content) == entry.oid
        assert not list(store.blobs.incoming.iterdir())
        # And the repository still takes commits.
        repository.add_commit("main", lambda old: old, title="after", author="me")
        assert next(repository.history("main")).title == "after"


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    big = os.urandom(300_000)
    with serve(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token="t")
        api.create_repo("demo/m", private=True)
        api.upload_file(repo_id="demo/m", path_in_repo="w.bin", path_or_fileobj=big)
        api.create_tag("demo/m", tag="v1")
        before = api.model_info("demo/m", files_metadata=True)
    with serve(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token="t")
        assert api.model_info("demo/m", files_metadata=True) == before
        path = api.hf_hub_download("demo/m", "w.bin", revision="v1", cache_dir=tmp_path / "c")
        assert Path(path).read_bytes() == big


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with serve(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token="t")
        api.create_repo("demo/m")
        for name, content in (("w.bin", b"\0\1" * 50_000), ("a.txt", b"text")):
            operations = [CommitOperationAdd(name, content)]
            monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
            with monkeypatch.context() as patched:
                patched.setattr(os, call, full)
                with pytest.raises((HfHubHTTPError, RuntimeError)) as error:
                    api.create_commit("demo/m", operations, commit_message="m")
            assert "No space left" in f"{error.value} {error.value.__cause__}"
            assert api.list_repo_files("demo/m") == [".gitattributes"]
            assert not list((hub.root / "blobs" / "incoming").iterdir())
        api.create_commit("demo/m", operations, commit_message="m")
        assert api.list_repo_files("demo/m") == [".gitattributes", "a.txt"]


def test_one_server_at_a_time(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "hub"),
        pytest.raises(RunFolderError, match="already served"),
        serve(tmp_path / "hub"),
    ):
        pass
    with serve(tmp_path / "hub"):
        pass


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not a local hub"), serve(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "lock") == ["thesis.txt"]


def test_a_hub_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "hub.json").write_text('{"schema": 99}')
    with pytest.raises(RunFolderError, match="schema 99"), serve(tmp_path):
        pass


def test_concurrent_commits_all_land(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with serve(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token="t")
        api.create_repo("demo/m")

        def push(number: int) -> None:
            name = f"{number}.txt"
            api.upload_file(
                repo_id="demo/m", path_in_repo=name, path_or_fileobj=str(number).encode()
            )

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(push, range(16)))
        assert len(api.list_repo_files("demo/m")) == 17
        assert len(api.list_repo_commits("demo/m")) == 17

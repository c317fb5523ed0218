"""What the Hub allows, refuses and says; in the clients' own exceptions."""

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hf_rlhf_local_hub import RunningHub
from hf_rlhf_local_hub.access import Access
from hf_rlhf_local_hub.hub import open_hub
from hf_rlhf_local_hub.store import Settings

CARD = """---
license: apache-2.0
base_model: acme/base
pipeline_tag: text-generation
library_name: transformers
datasets: [acme/rows]
tags: [grpo]
language: en
---
# Model
"""


def status(error: pytest.ExceptionInfo[HfHubHTTPError]) -> int:
    return error.value.response.status_code


def as_user(hub: RunningHub, token: str | bool) -> HfApi:
    return HfApi(endpoint=hub.url, token=token)


def send_commit(hub: RunningHub, *lines: Any, raw: bytes | None = None) -> httpx.Response:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines) if raw is None else raw
    return httpx.post(
        f"{hub.url}/api/models/demo/m/commit/main",
        content=body,
        headers={"Authorization": "Bearer writer"},
    )


HEADER = {"key": "header", "value": {"summary": "s"}}


def test_creating_and_deleting(api: HfApi) -> None:
    url = api.create_repo("demo/m")
    assert (url.repo_id, url.repo_type) == ("demo/m", "model")
    with pytest.raises(HfHubHTTPError) as error:
        api.create_repo("demo/m")
    assert status(error) == 409
    assert api.create_repo("demo/m", exist_ok=True).repo_id == "demo/m"
    assert api.create_repo("short").repo_id == "demo/short"
    assert api.create_repo("team/m").repo_id == "team/m"
    with pytest.raises(HfHubHTTPError) as error:
        api.create_repo("strangers/m")
    assert status(error) == 403
    assert api.create_repo("demo/m", repo_type="dataset").repo_type == "dataset"
    api.delete_repo("demo/m")
    assert not api.repo_exists("demo/m")
    assert api.repo_exists("demo/m", repo_type="dataset")
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo("demo/m")
    api.delete_repo("demo/m", missing_ok=True)


def test_a_token_that_only_reads(hub: RunningHub, api: HfApi) -> None:
    api.create_repo("demo/m", private=True)
    looker = as_user(hub, "looker")
    assert looker.model_info("demo/m").private
    attempts = [
        lambda: looker.create_repo("demo/other"),
        lambda: looker.upload_file(repo_id="demo/m", path_in_repo="a", path_or_fileobj=b"a"),
        lambda: looker.update_repo_settings("demo/m", private=False),
    ]
    for attempt in attempts:
        with pytest.raises(HfHubHTTPError) as error:
            attempt()
        assert status(error) == 403
        assert "only read" in str(error.value)
    assert send_commit(hub).status_code == 400
    assert len(api.list_repo_commits("demo/m")) == 1


def test_private_repositories(hub: RunningHub, api: HfApi) -> None:
    api.create_repo("demo/secret", private=True)
    api.upload_file(repo_id="demo/secret", path_in_repo="a.txt", path_or_fileobj=b"a")
    anyone = as_user(hub, False)
    with pytest.raises(RepositoryNotFoundError) as hidden:
        anyone.model_info("demo/secret")
    with pytest.raises(RepositoryNotFoundError) as absent:
        anyone.model_info("demo/absent")
    assert hidden.value.response.status_code == absent.value.response.status_code == 401
    with pytest.raises(RepositoryNotFoundError) as missing:
        api.model_info("demo/absent")
    assert missing.value.response.status_code == 404
    for path in ("demo/secret/resolve/main/a.txt", "api/models/demo/secret/tree/main"):
        assert httpx.get(f"{hub.url}/{path}").status_code == 401
    assert list(anyone.list_models()) == []
    api.update_repo_settings("demo/secret", private=False)
    assert anyone.model_info("demo/secret").private is False
    assert [model.id for model in anyone.list_models(author="demo")] == ["demo/secret"]
    assert not [*anyone.list_models(author="other")]
    with pytest.raises(HfHubHTTPError, match="not by search"):
        [*anyone.list_models(search="secret")]


def test_gated_repositories(hub: RunningHub, api: HfApi) -> None:
    api.create_repo("demo/m")
    api.update_repo_settings("demo/m", gated="manual")
    anyone = as_user(hub, False)
    assert anyone.model_info("demo/m").gated == "manual"
    assert httpx.get(f"{hub.url}/demo/m/resolve/main/.gitattributes").status_code == 401


def test_branches_and_tags(api: HfApi) -> None:
    api.create_repo("demo/m")
    api.create_branch("demo/m", branch="dev/1")
    pushed = api.upload_file(
        repo_id="demo/m", path_in_repo="a.txt", path_or_fileobj=b"a", revision="dev/1"
    )
    api.create_tag("demo/m", tag="v1.0", revision="dev/1", tag_message="first")
    refs = api.list_repo_refs("demo/m")
    assert {ref.name: ref.target_commit == pushed.oid for ref in refs.branches} == {
        "dev/1": True,
        "main": False,
    }
    assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v1.0", pushed.oid)]
    assert api.file_exists("demo/m", "a.txt", revision="v1.0")
    assert not api.file_exists("demo/m", "a.txt")
    with pytest.raises(HfHubHTTPError) as error:
        api.create_branch("demo/m", branch="dev/1")
    assert status(error) == 409
    api.delete_branch("demo/m", branch="dev/1")
    with pytest.raises(RevisionNotFoundError):
        api.list_repo_files("demo/m", revision="dev/1")
    with pytest.raises(HfHubHTTPError) as error:
        api.delete_branch("demo/m", branch="main")
    assert status(error) == 403
    # Its commits are still there for who wrote them down.
    assert api.file_exists("demo/m", "a.txt", revision=pushed.oid)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("license: apache-2.0", "license: mine"), "license"),
        (("language: en", "language: English"), "language"),
        (("tags: [grpo]", "tags: ["), "YAML"),
    ],
)
def test_bad_cards(api: HfApi, change: tuple[str, str], said: str) -> None:
    bad = CARD.replace(*change)
    assert bad != CARD
    api.create_repo("demo/m")
    with pytest.raises((BadRequestError, ValueError), match=said):
        api._validate_yaml(bad)
    with pytest.raises((BadRequestError, ValueError), match=said):
        api.create_commit(
            "demo/m", [CommitOperationAdd("README.md", bad.encode())], commit_message="card"
        )
    assert api.list_repo_files("demo/m") == [".gitattributes"]
    api._validate_yaml(CARD)


def test_secrets_do_not_get_in(hub: RunningHub, api: HfApi) -> None:
    api.create_repo("demo/m")
    secret = b'{"token": "hf_' + b"a1B2" * 9 + b'"}'
    with pytest.raises(BadRequestError, match="secrets"):
        api.upload_file(repo_id="demo/m", path_in_repo="config.json", path_or_fileobj=secret)
    stored = [path for path in hub.root.rglob("*") if path.is_file()]
    assert not any(b"hf_a1B2" in path.read_bytes() for path in stored)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "empty"),
        ([{"key": "file", "value": {}}], "first line"),
        ([HEADER, {"key": "file", "value": {"path": "a", "content": "?", "encoding": "base64"}}],
         "not readable"),
        ([HEADER, {"key": "file", "value": {"path": "../a", "content": ""}}], "path"),
        ([HEADER, {"key": "lfsFile", "value": {"path": "a", "oid": "0" * 64, "size": 1}}],
         "does not exist"),
        ([HEADER, {"key": "file", "value": {"path": ".gitattributes/a", "content": ""}}], "both"),
    ],
)  # fmt: skip
def test_commits_that_make_no_sense(
    hub: RunningHub, api: HfApi, lines: list[Any], said: str
) -> None:
    api.create_repo("demo/m")
    answer = send_commit(hub, *lines)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert len(api.list_repo_commits("demo/m")) == 1


def test_an_upload_that_was_altered(
    hub: RunningHub, api: HfApi, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    """By LFS the upload itself is refused, by Xet the commit: nobody can pull wrong bytes."""
    api.create_repo("demo/m")
    operation = CommitOperationAdd("w.bin", b"\0" * 100_000)
    operation.upload_info.sha256 = hashlib.sha256(b"something else").digest()
    with pytest.raises((HfHubHTTPError, RuntimeError)) as error:
        api.create_commit("demo/m", [operation], commit_message="m")
    cause = error.value if transport == "xet" else error.value.__cause__
    assert isinstance(cause, BadRequestError)
    assert api.list_repo_files("demo/m") == [".gitattributes"]


def test_uploads_need_a_right(hub: RunningHub) -> None:
    """Contents go to addresses that only one who may write is told."""
    before = sorted((hub.root / "blobs").rglob("*"))
    digest = hashlib.sha256(b"x").hexdigest()
    assert httpx.put(f"{hub.url}/lfs/{digest}", content=b"x").status_code == 403
    assert httpx.put(f"{hub.url}/lfs/{digest}?ticket=1.2", content=b"x").status_code == 403
    identity = json.loads((hub.root / "hub.json").read_text())
    for path in (f"v1/xorbs/default/{digest}", "v1/shards"):
        answer = httpx.post(
            f"{hub.url}/xet/{identity['id']}/{path}",
            content=b"x",
            headers={"Authorization": "Bearer writer"},
        )
        assert answer.status_code == 401
    assert sorted((hub.root / "blobs").rglob("*")) == before


def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "hub"
    root.mkdir(mode=0o755)
    for _ in range(1):
        with open_hub(root, Access()) as opened:
            opened.store.blobs.put(b"private")
            opened.store.create("models", "demo/m", Settings(private=True), "demo", lambda _: {})
            files = [path for path in root.rglob("*") if path.is_file() and path.name != "lock"]
            assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
            assert {"hub.json", "repo.json", "refs.json"} <= {path.name for path in files}
            assert root.stat().st_mode & 0o777 == 0o700
            opened.store.delete(opened.store.get("models", "demo/m"))


def test_tickets_are_for_one_thing_and_for_a_while(tmp_path: Path) -> None:
    with open_hub(tmp_path / "hub", Access()) as hub:
        assert hub.check_ticket(hub.ticket("read", 60), "read")
        assert not hub.check_ticket(hub.ticket("read", 60), "write")
        assert not hub.check_ticket(hub.ticket("read", -1), "read")
        assert not hub.check_ticket("9" * 12 + ".0", "read")
        assert not hub.check_ticket("", "read")

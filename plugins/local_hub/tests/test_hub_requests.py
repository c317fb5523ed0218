"""Requests that no client of the Hub makes: each is refused with a status of 4xx."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from huggingface_hub import HfApi

from hf_rlhf_local_hub import RunningHub

WRITER = {"Authorization": "Bearer writer"}
REPO = "/api/models/demo/m"


@pytest.fixture(scope="module")
def client(_server: RunningHub) -> Iterator[httpx.Client]:
    HfApi(endpoint=_server.url, token="writer").create_repo("demo/m", exist_ok=True)
    with httpx.Client(base_url=_server.url, timeout=100) as client:
        yield client


def repository(**fields: Any) -> tuple[str, str, Any]:
    return "POST", "/api/repos/create", fields


def card(head: str) -> tuple[str, str, Any]:
    return "POST", "/api/validate-yaml", {"content": f"---\n{head}\n---\n"}


DEEP = b"[" * 3000
BATCH = "/demo/m.git/info/lfs/objects/batch"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        repository(name=["x"]), repository(),
        ("POST", "/api/repos/create", DEEP),
        ("PUT", REPO + "/settings", {"gated": [1]}),
        ("POST", REPO + "/branch/b", {"startingPoint": 5}),
        ("POST", REPO + "/paths-info/main", {"paths": None}),
        ("POST", REPO + "/preupload/main", b'{"files": [{"path": "a", "size": Infinity}]}'),
        ("POST", BATCH, {"objects": [{"oid": "0" * 64, "size": "x"}]}),
        ("POST", "/lfs/verify", {"oid": "0" * 64, "size": {}}),
        ("POST", REPO + "/commit/main", b'{"key": "header", "value": {"summary": NaN}}'),
        card("license: {a: b}"), card("a: &a [*a]"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_refused(
    client: httpx.Client, method: str, path: str, body: Any
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.request(method, path, content=content, headers=WRITER)
    assert 400 <= answer.status_code < 500, answer.text
    said = answer.json()
    assert said.get("error") or said.get("errors")


def test_who_sends_much_without_a_right_sees_the_refusal(client: httpx.Client) -> None:
    answer = client.post(f"{REPO}/commit/main", content=b"x" * 3_000_000)
    assert answer.status_code == 401

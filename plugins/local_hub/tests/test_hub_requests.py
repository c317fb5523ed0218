"""Requests that no client of the Hub makes: each is refused with a status of 4xx."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from huggingface_hub import HfApi
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_rlhf_local_hub import RunningHub

WRITER = {"Authorization": "Bearer writer"}
JSON = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, 10**400, "", "x", "main", "model", "\ud800", "\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
VALUES = JSON | st.sampled_from(["0" * 64, "a", ["a"], [{"path": "a"}], "../x", "[" * 9])
KEYS = (
    *("name", "type", "organization", "private", "visibility", "sdk", "gated", "content", "tag"),
    *("startingPoint", "paths", "expand", "files", "objects", "oid", "size", "path", "sample"),
    *("encoding", "summary", "description", "parentCommit", "operation", "message"),
)
FIELDS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
ITEMS = st.fixed_dictionaries({}, optional={
    "path": VALUES, "size": VALUES, "sample": VALUES, "oid": VALUES, "content": VALUES,
    "encoding": VALUES,
})  # fmt: skip
BODIES = (
    FIELDS
    | JSON
    | st.fixed_dictionaries({"files": st.lists(ITEMS | VALUES, max_size=2)})
    | st.fixed_dictionaries({"objects": st.lists(ITEMS | VALUES, max_size=2)})
).map(lambda value: json.dumps(value).encode())
LINES = st.lists(
    st.fixed_dictionaries({
        "key": st.sampled_from(["header", "file", "lfsFile", "deletedFile", "deletedFolder"])
        | VALUES,
        "value": ITEMS | FIELDS | VALUES,
    })
    | VALUES,
    max_size=3,
).map(
    lambda lines: b"\n".join(
        json.dumps(line).encode()
        for line in [{"key": "header", "value": {"summary": "s"}}, *lines]
    )
)  # fmt: skip
RAW = st.binary(max_size=20) | st.sampled_from(
    [b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe", b"{}" * 2, b"1" * 10_000, b"name=x&type=\xff"]
)
PIECES = st.sampled_from(
    ["main", "demo", "m", "a", "..", "%2F", "%00", "%ff", "0" * 40, "0" * 64, "a" * 7, "é"]
    + ["x" * 300, ".git", "*", "[", "?", "%ED%A0%80", "a%0Ab", "config.json"]
)
REPO = "/api/models/demo/m"
ROUTES = (
    ("GET", "/api/whoami-v2"), ("POST", "/api/validate-yaml"), ("POST", "/api/repos/create"),
    ("DELETE", "/api/repos/delete"), ("GET", "/api/models"), ("GET", "/api/models/{}"),
    ("GET", "/api/models/{}/{}"), ("GET", REPO + "/revision/{}"), ("PUT", REPO + "/settings"),
    ("GET", REPO + "/refs"), ("POST", REPO + "/branch/{}"), ("DELETE", REPO + "/branch/{}"),
    ("POST", REPO + "/tag/{}"), ("GET", REPO + "/commits/{}"),
    ("GET", REPO + "/tree/{}"), ("GET", REPO + "/tree/main/{}"),
    ("POST", REPO + "/paths-info/main"), ("POST", REPO + "/preupload/main"),
    ("POST", REPO + "/commit/main"),
    ("POST", REPO + "/commit/{}"), ("POST", "/demo/m.git/info/lfs/objects/batch"),
    ("POST", "/lfs/verify"), ("PUT", "/lfs/{}"), ("GET", "/demo/m/resolve/{}/{}"),
    ("GET", "/demo/m/resolve/main/{}"), ("HEAD", "/demo/m/resolve/main/w.bin"),
    ("GET", "/demo/m/resolve/main/w.bin"), ("GET", "/demo/m/resolve/main/.gitattributes"),
    ("POST", "/xet/{cas}/v1/xorbs/default/{}"), ("POST", "/xet/{cas}/v1/shards"),
    ("POST", "/v1/telemetry"),
)  # fmt: skip
QUERY = st.dictionaries(
    st.sampled_from(["limit", "filter", "author", "search", "sort", "direction", "expand"]
                    + ["recursive", "blobs", "ticket", "create_pr", "pipeline_tag", "cursor"]),
    st.sampled_from(["", "1", "-1", "²", "9" * 5000, "true", "x", "\x00", "a,b", "1.2"]),
    max_size=2,
)  # fmt: skip
HEADERS = st.fixed_dictionaries({}, optional={
    "Range": st.sampled_from(
        ["bytes=0-", "bytes=-1", "bytes=5-1", "bytes=-", "bytes=a-b", "x", "bytes=0-0,2-3"]
        + ["bytes=9999999-", "bytes=-0", f"bytes=0-{'9' * 5000}", f"bytes={'9' * 5000}-"]
    ),
    "Content-Type": st.sampled_from(["application/x-www-form-urlencoded", "text/html", ""]),
    "Authorization": st.sampled_from(["", "Bearer", "Basic eA==", "Bearer é", "Bearer x"]),
    "If-Range": st.sampled_from(["x", "Wed, 21 Oct 2015"]),
})  # fmt: skip


@pytest.fixture(scope="module")
def parts(_server: RunningHub) -> Iterator[dict[str, Any]]:
    """The addresses of a repository with content that came by Xet, and of the Xet service."""
    api = HfApi(endpoint=_server.url, token="writer")
    api.create_repo("demo/m", exist_ok=True)
    api.upload_file(repo_id="demo/m", path_in_repo="w.bin", path_or_fileobj=b"\0\1" * 50_000)
    token = httpx.get(f"{_server.url}{REPO}/xet-write-token/main", headers=WRITER).json()
    with httpx.Client(base_url=_server.url, timeout=100) as client:
        yield {
            "client": client,
            "cas": token["casUrl"].rpartition("/")[2],
            "ticket": token["accessToken"],
        }


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
    parts: dict[str, Any], method: str, path: str, body: Any
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = parts["client"].request(method, path, content=content, headers=WRITER)
    assert 400 <= answer.status_code < 500, answer.text
    said = answer.json()
    assert said.get("error") or said.get("errors")


def test_who_sends_much_without_a_right_sees_the_refusal(parts: dict[str, Any]) -> None:
    answer = parts["client"].post(f"{REPO}/commit/main", content=b"x" * 3_000_000)
    assert answer.status_code == 401


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_request_ends_in_an_error_of_the_server(parts: dict[str, Any], data: Any) -> None:
    method, template = data.draw(st.sampled_from(ROUTES))
    count = template.count("{}")
    path = template.format(*(data.draw(PIECES) for _ in range(count)), cas=parts["cas"])
    headers = {**WRITER, **data.draw(HEADERS)}
    if "/xet/" in path and data.draw(st.booleans()):
        headers["Authorization"] = f"Bearer {parts['ticket']}"
    body = data.draw(LINES | RAW if "/commit/" in path else BODIES | RAW)
    raw = {name: value.encode("utf-8") for name, value in headers.items()}
    if method == "DELETE" and path == "/api/repos/delete" and b"demo" in body:
        return
    answer = parts["client"].request(
        method, path, params=data.draw(QUERY), headers=raw, content=body
    )
    assert answer.status_code < 500, (method, path, body[:200], headers, answer.text)

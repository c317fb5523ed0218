"""Whatever a client calls things, nothing is written outside the hub's folder."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_rlhf_local_hub import serve

TRICKS = [
    *("..", ".", "", "/", "\\", "\0", "%2e%2e", "%2F", "~", "C:", "/etc/passwd", "a" * 300),
    *(".git", "a--b", "-a", "a.git", "\n", "ü", "\ud800", "CON", "a/../../b", "refs.json"),
]
PIECES = st.one_of(st.sampled_from(TRICKS), st.text(string.printable, max_size=8))
NAMES = st.lists(PIECES, min_size=1, max_size=4).map("/".join)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, httpx.Client]]:
    outside = tmp_path_factory.mktemp("outside")
    headers = {"Authorization": "Bearer t", "Content-Type": "application/json"}
    with (
        serve(outside / "in" / "hub") as hub,
        httpx.Client(base_url=hub.url, headers=headers) as client,
    ):
        body = {"name": "m", "organization": "demo"}
        client.post("/api/repos/create", json=body).raise_for_status()
        yield outside, client


def everything_outside(outside: Path) -> list[Path]:
    hub = outside / "in" / "hub"
    return [path for path in outside.rglob("*") if path != hub and hub not in path.parents]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=NAMES, other=NAMES)
def test_names_over_http(site: tuple[Path, httpx.Client], name: str, other: str) -> None:
    outside, client = site
    wire = quote(name.encode("utf-8", "surrogatepass"), safe="/.\\~:-")
    segment = quote(name.encode("utf-8", "surrogatepass"), safe="")
    header = {"key": "header", "value": {"summary": f"s {name}"}}
    line = {"key": "file", "value": {"path": name, "content": "aGk=", "encoding": "base64"}}

    def send(method: str, path: str, *lines: object) -> httpx.Response:
        # Escaped, so that no surrogate stops at this side.
        return client.request(method, path, content="\n".join(map(json.dumps, lines)).encode())

    answers = [
        send("POST", "/api/repos/create", {"name": name, "organization": "demo"}),
        send("POST", "/api/repos/create", {"name": "x", "organization": other}),
        send("DELETE", "/api/repos/delete", {"name": f"../{name}"}),
        send("POST", "/api/models/demo/m/commit/main", header, line),
        send("POST", f"/api/models/demo/m/branch/{segment}", {}),
        send("POST", "/api/models/demo/m/tag/main", {"tag": name}),
        send("PUT", f"/lfs/{segment}"),
        send("GET", f"/demo/m/resolve/main/{wire}"),
        send("GET", f"/api/models/demo/{segment}/tree/{segment}"),
        send("GET", "/api/models/demo/m/commits/main"),
    ]
    assert all(answer.status_code < 500 for answer in answers), [a.text for a in answers]
    assert everything_outside(outside) == [outside / "in"]
    assert (outside / "in" / "hub" / "repos" / "models" / "demo" / "m" / "refs.json").is_file()

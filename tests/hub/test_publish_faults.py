"""Pushes under faults: wrong answers in this process, the cases of benchmarks/publish_faults.py."""

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hf_rlhf.cli import main
from hf_rlhf.errors import PublishError
from hf_rlhf.hub import retries as retries_module
from hf_rlhf.hub.commit import Overtaken, or_finish
from hf_rlhf.hub.publishing import publish
from hf_rlhf.testing.hubs import forget_secrets, use_hub

local_hub = pytest.importorskip("hf_rlhf_local_hub")
Fault = local_hub.Fault
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "publish_faults.py"
EVER = 10**6
LISTING = "GET .*/tree/"
COMMIT = "POST .*/commit/"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish_faults", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(bench: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_hub.serve(tmp_path_factory.mktemp("server") / "hub") as running:
        bench.prepare(running)
        yield running


@pytest.fixture
def hub(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    forget_secrets(monkeypatch)
    use_hub(monkeypatch, server.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    server.faults.clear()
    yield server
    server.faults.clear()


@pytest.fixture
def run(bench: ModuleType, tmp_path: Path) -> Path:
    made: Path = bench.make_run(tmp_path / "run", shards=1, size=4000)
    return made


def repo_of(run: Path) -> str:
    return f"demo/{run.parent.name.replace('_', '-').rstrip('-')}"


def unfinished(run: Path) -> str:
    """Push, which has to fail; return what is said."""
    with pytest.raises(PublishError) as caught:
        publish(run, repo_id=repo_of(run))
    return str(caught.value)


def test_an_answer_that_drips_is_given_up(
    hub: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then keeps every timeout of the client's from passing."""
    monkeypatch.setenv("HF_RLHF_PATIENCE", "0")
    monkeypatch.setattr(retries_module, "LAST_TRY_S", 0.2)
    hub.faults.add(Fault("GET /api/whoami", status=None, drip=0.01, times=EVER))
    message = unfinished(run)
    assert "not finished within" in message
    assert "To finish:" in message


@pytest.mark.parametrize(
    ("request_name", "body"),
    [
        ("whoami", '{"name": null}'),
        ("listing", '[{"type": "file", "path": 5, "size": 1, "oid": "0"}]'),
        ("LFS batch", '{"objects": [5]}'),
    ],
)
def test_json_that_is_no_answer_of_a_hub_ends_in_the_list_and_the_command(
    bench: ModuleType, hub: Any, run: Path, request_name: str, body: str
) -> None:
    match = {**bench.REQUESTS, **bench.TRANSPORTS["lfs"]}[request_name]
    name = repo_of(run).removeprefix("demo/")
    hub.faults.add(Fault(match.format(repo=name), 200, body=body, times=EVER))
    message = unfinished(run)
    assert f"{repo_of(run)}/README.md" in message
    assert message.splitlines()[-1].startswith("  hf-rlhf publish ")


def test_the_status_says_so_and_the_command_finishes_it(
    hub: Any, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.faults.add(Fault(COMMIT, 200, body="[]", times=EVER))
    assert main(["publish", str(run), "--repo_id", repo_of(run)]) == 3
    said = capsys.readouterr().err
    assert "the response is not in the form of the Hub's API" in said
    hub.faults.clear()
    assert main(shlex.split(said.splitlines()[-1])[1:]) == 0


def test_a_commit_whose_files_are_not_listed_is_noticed(hub: Any, run: Path) -> None:
    hub.faults.add(Fault(LISTING, 200, body="[]", times=EVER))
    assert "accepted the commit" in unfinished(run)


def test_what_fails_beside_a_run_ends_in_its_command_too() -> None:
    with (
        pytest.raises(PublishError, match=r"me/index is incomplete on http://h.*\n.*\n  again$"),
        or_finish(SimpleNamespace(endpoint="http://hub"), "me/index", "again"),  # type: ignore[arg-type]
    ):
        raise Overtaken("another commit")


@pytest.mark.slow
def test_a_push_lands_once_or_says_what_is_missing(bench: ModuleType) -> None:
    cases = [
        bench.Case(bench.HF_RLHF, transport, fault, request)
        for transport in bench.TRANSPORTS
        for fault, request in [
            ("lands, then 504", "commit"),
            (bench.FOR_EVER, "everything"),
            ("200, {}", "commit"),
            ("200, []", "Xet token" if transport == "xet" else "LFS batch"),
        ]
    ]
    bad = [one for one in bench.play_all(cases, jobs=2, patience=60) if not one.good]
    assert bad == []


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["xet", "lfs"])
def test_a_killed_push_is_finished_by_the_same_command(bench: ModuleType, transport: str) -> None:
    killed = bench.kill_midway(transport, files=80)
    assert killed.sent_before > 0
    assert killed.visible == 0, "a reader sees nothing of it"
    assert (killed.status, killed.commits, killed.wrong, killed.sent_twice) == (0, 1, 0, 0)
    assert killed.stored_share < 1.05


REASON = "tags must be texts"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, json.dumps({"errors": [{"message": REASON}]})),
        (422, f"<Error><Code>BadDigest</Code><Message>{REASON}</Message></Error>"),
    ],
)
def test_a_refusal_keeps_its_reason(
    bench: ModuleType, hub: Any, run: Path, status: int, body: str
) -> None:
    for match in (bench.TRANSPORTS["lfs"]["LFS upload"], COMMIT):
        hub.faults.clear()
        hub.faults.add(Fault(match, status=status, times=EVER, body=body))
        first = unfinished(run).splitlines()[0]
        assert REASON in first
        assert ":.:" not in first


def test_an_answer_cut_short_is_asked_for_again(
    bench: ModuleType, hub: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for match in (LISTING, bench.REQUESTS["preupload"].format(repo=".*")):
        hub.faults.add(Fault(match, status=200, body='[{"type":"file","path":".gita', times=1))
    assert publish(run, repo_id=repo_of(run)).new_commits == 1
    monkeypatch.setenv("HF_RLHF_PATIENCE", "0.2")
    hub.faults.add(Fault(LISTING, status=200, body='{"type":"fi', times=EVER))
    assert "the answer is not JSON but" in unfinished(run)

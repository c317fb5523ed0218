"""Which failures of the Hub are tried again, how often, and for how long."""

import threading
import time
from importlib import import_module
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from hf_rlhf.errors import PublishError
from hf_rlhf.hub import retries as retries_module
from hf_rlhf.hub.retries import (
    RetryPolicy,
    Stalled,
    UnexpectedAnswer,
    failures,
    is_transient,
    retry_seconds,
)

httpx = import_module(HTTPError.__module__)


def answer(status: int, **headers: str) -> HfHubHTTPError:
    request = httpx.Request("POST", "http://hub/commit")
    response = httpx.Response(status, headers=headers, request=request)
    return HfHubHTTPError(f"{status}", response=response)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which do not happen."""
    seconds: list[float] = []
    monkeypatch.setattr(RetryPolicy, "_sleep", lambda self, pause: seconds.append(pause))
    return seconds


def call(seconds: float, *errors: Exception, say: Any = lambda line: None) -> str:
    """Run a step that fails with these errors before it succeeds."""
    left = list(errors)

    def step() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return RetryPolicy(seconds, say=say).call("commit", step)


def test_a_hub_that_asks_for_a_wait_gets_it(waits: list[float]) -> None:
    lines: list[str] = []
    errors = (
        answer(429, **{"Retry-After": "7"}),
        answer(503, **{"Retry-After": "Wed, 21 Oct 2115 07:28:00 GMT"}),
        answer(429, ratelimit='"api";r=0;t=55'),
    )
    assert call(100.0, *errors, say=lines.append) == "done"
    assert waits[::2] == [7.0, 55.0]
    assert waits[1] < 2, "a date is not read"
    assert lines[0] == "commit: 429; trying again in 7.0 s (HF_RLHF_PATIENCE: 100 s)"


def test_a_wait_longer_than_the_limit_ends_the_push(waits: list[float]) -> None:
    with pytest.raises(HfHubHTTPError):
        call(100.0, answer(429, **{"Retry-After": "100"}))
    assert waits == []


def test_a_step_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries_module, "LAST_TRY_S", 0.05)
    let_go = threading.Event()
    with pytest.raises(Stalled, match="HF_RLHF_PATIENCE"):
        RetryPolicy(0.0).call("listing", let_go.wait)
    policy = RetryPolicy()
    policy.ended.set_result(None)  # the run is to end
    with pytest.raises(Stalled):
        policy.call("listing", let_go.wait)
    let_go.set()
    assert RetryPolicy(0.0).call("upload", lambda: time.sleep(0.1), size=10**6) is None


@pytest.mark.parametrize("wrong", [lambda: {}["name"], lambda: [].items(), lambda: dict(1)])  # type: ignore
def test_json_of_another_form_is_a_failure_and_no_error_of_ours(wrong: Any) -> None:
    with pytest.raises(UnexpectedAnswer, match="HF_ENDPOINT") as caught:
        RetryPolicy(5.0).call("reading the account", wrong)
    assert isinstance(caught.value, failures())
    assert not is_transient(caught.value)


def caused(status: int) -> RuntimeError:
    error = RuntimeError("Error while uploading 'x' to the Hub.")
    error.__cause__ = answer(status)
    return error


XET = "Network error: Request error: HTTP status {} error ({}), domain: http://cas/xorbs"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        *((answer(status), True) for status in (429, 500, 522)),
        *((answer(status), False) for status in (400, 401, 412)),
        (caused(503), True),
        (caused(403), False),
        (ConnectionError(XET.format("client", "403 Forbidden")), False),
        (ConnectionError(XET.format("server", "503 Service Unavailable")), True),
        (ConnectionResetError("reset by peer"), True),
        (httpx.ReadTimeout("nothing came"), True),
        (httpx.RemoteProtocolError("disconnected"), True),
        (httpx.UnsupportedProtocol("missing http://"), False),
        (RuntimeError("Error while uploading"), True),
        (FileNotFoundError("model.safetensors"), False),
        (OSError(28, "No space left on device"), False),
        (ValueError("bad metadata"), False),
        (Stalled("too long"), False),
    ],
)
def test_what_may_pass(error: Exception, passes: bool) -> None:
    assert is_transient(error) is passes


def test_the_environment_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_RLHF_PATIENCE", "12.5")
    assert retry_seconds() == 12.5
    for wrong in ("soon", "-1", "inf"):
        monkeypatch.setenv("HF_RLHF_PATIENCE", wrong)
        with pytest.raises(PublishError, match="HF_RLHF_PATIENCE"):
            retry_seconds()

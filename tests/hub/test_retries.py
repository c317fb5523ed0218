"""What is said while a Hub that does not answer is asked again."""

import email.utils
import re
import threading
import time
from importlib import import_module
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_line_says_who_does_not_answer_and_for_how_long_it_is_asked(monkeypatch):
    monkeypatch.setattr(RetryPolicy, "_pause", lambda self, seconds: None)
    asked = httpx.Request("GET", "http://someone:secret@hub:9/api/models?token=1")
    answers = [httpx.ConnectError("refused", request=asked), httpx.ConnectError("refused")]
    lines: list[str] = []

    def step() -> str:
        if answers:
            raise answers.pop(0)
        return "there"

    assert RetryPolicy(seconds=4000.0, say=lines.append).call("listing demo/chat", step) == "there"
    known, unknown = (re.sub(r"\d\.\d s", "N s", line) for line in lines)
    assert known == (
        "listing demo/chat: refused (http://hub:9); trying again in N s, for 4000 s more "
        "(HF_RLHF_PATIENCE)"
    )
    assert unknown.startswith("listing demo/chat: refused; trying again in N s, for ")


def answer(status: int, **headers: str) -> HfHubHTTPError:
    request = httpx.Request("POST", "http://hub/commit")
    response = httpx.Response(status, headers=headers, request=request)
    return HfHubHTTPError(f"{status}", response=response)


class Clock:
    """Time that passes only when somebody waits, or says that a step takes some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        monkeypatch.setattr(
            retries_module, "_in_time", lambda step, seconds: self.run(step, seconds)
        )
        monkeypatch.setattr(retries_module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(RetryPolicy, "_pause", lambda _, seconds: self.wait(seconds))

    def run(self, step: Any, seconds: float) -> Any:
        began = self.now
        try:
            result = step()
        finally:
            if self.now - began > seconds:
                self.now = began + seconds
                raise Stalled("took longer")
        return result

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)

    def failing(self, seconds: float, error: Exception | None = None) -> Any:
        """Return a step that takes so long, then fails or returns."""

        def step() -> str:
            self.now += seconds
            if error is not None:
                raise error
            return "done"

        return step


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def patient(seconds: float) -> RetryPolicy:
    return RetryPolicy(seconds, say=lambda line: None)


def test_429_is_waited_out_for_as_long_as_it_says(clock: Clock) -> None:
    when = email.utils.formatdate(time.time() + 30, usegmt=True)
    errors = [
        answer(429, **{"Retry-After": "7"}),
        answer(503, **{"Retry-After": when}),
        answer(429, ratelimit='"api";r=0;t=55'),
    ]

    def step() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert patient(100.0).call("commit", step) == "done"
    assert clock.waits == [7.0, pytest.approx(29, abs=2), 55.0]


def test_who_asks_for_more_than_is_left_is_not_waited_for(clock: Clock) -> None:
    with pytest.raises(HfHubHTTPError):
        patient(100.0).call("commit", clock.failing(1.0, answer(429, **{"Retry-After": "100"})))
    assert clock.waits == []


def test_the_seconds_are_those_of_all_steps_together(clock: Clock) -> None:
    policy = patient(30.0)
    for _ in range(2):
        with pytest.raises(HfHubHTTPError):
            policy.call("listing", clock.failing(4.0, answer(503)))
    assert 30.0 <= clock.now <= 30.0 + 2 * 4.0 + 4.0
    policy.restart()
    assert policy.left == 30.0


def test_a_step_that_takes_longer_than_what_is_left_is_given_up(clock: Clock) -> None:
    policy = patient(30.0)
    assert policy.call("listing", clock.failing(25.0)) == "done"
    with pytest.raises(Stalled):
        policy.call("listing", clock.failing(25.0))
    assert clock.now == 25.0 + retries_module.SINGLE_TRY_S
    with pytest.raises(Stalled):
        policy.once(clock.failing(25.0))
    assert clock.now <= 30.0 + retries_module.SINGLE_TRY_S


def test_content_may_take_its_time(clock: Clock) -> None:
    """An upload of an hour is not given up at its first failure, nor because it takes an hour."""
    policy = patient(30.0)
    assert policy.call("upload", clock.failing(3600.0), content_s=3600.0) == "done"
    assert policy.left == 30.0
    tries = iter([clock.failing(3500.0, answer(503)), clock.failing(3600.0)])
    assert policy.call("upload", lambda: next(tries)(), content_s=3600.0) == "done"
    assert policy.left > 29.0
    with pytest.raises(Stalled):
        policy.call("upload", clock.failing(9000.0), content_s=3600.0)


def test_a_step_that_hangs_is_left_behind() -> None:
    let_go = threading.Event()
    with pytest.raises(Stalled, match="HF_RLHF_PATIENCE"):
        retries_module._in_time(let_go.wait, 0.05)
    let_go.set()


@pytest.mark.parametrize(
    "wrong",
    [lambda: {}["name"], lambda: [].items(), lambda: dict(1)],  # type: ignore
)
def test_json_of_another_form_is_a_failure_and_no_error_of_ours(wrong: Any) -> None:
    with pytest.raises(UnexpectedAnswer, match="HF_ENDPOINT") as caught:
        patient(5.0).call("reading the account", wrong)
    assert isinstance(caught.value, failures())
    assert not is_transient(caught.value)


@given(st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=40))
def test_any_date_to_come_back_at_is_seconds_or_nothing(text: str) -> None:
    for said in (text, f"Wed, 21 Oct {text} 07:28:00", f"Wed, 21 Oct 2015 {text}"):
        seconds = retries_module._seconds_until(said)
        assert seconds is None or seconds >= 0


@pytest.mark.parametrize("zone", ["", " -0000", " GMT", " +0000"])
def test_a_date_without_a_zone_is_utc(zone: str) -> None:
    when = time.strftime("%a, %d %b %Y %H:%M:%S", time.gmtime(time.time() + 3600))
    assert 3500 < (retries_module._seconds_until(when + zone) or 0) <= 3600


def test_waits_grow_and_stay_short_enough_for_twenty_failures(clock: Clock) -> None:
    errors = [answer(500)] * 20

    def step() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert patient(180.0).call("commit", step) == "done"
    assert clock.waits[0] < 1
    assert max(clock.waits) <= 10


XET = "Network error: Request error: HTTP status {} error ({}), domain: http://cas/xorbs"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        *((answer(status), True) for status in (408, 429, 500, 502, 503, 504, 522)),
        *((answer(status), False) for status in (400, 401, 403, 404, 409, 412, 413)),
        (ConnectionError(XET.format("client", "403 Forbidden")), False),
        (ConnectionError(XET.format("server", "503 Service Unavailable")), True),
        (ConnectionError(XET.format("client", "429 Too Many Requests")), True),
        (ConnectionResetError("reset by peer"), True),
        (httpx.ReadTimeout("nothing came"), True),
        (httpx.RemoteProtocolError("disconnected"), True),
        (httpx.UnsupportedProtocol("missing http://"), False),
        (RuntimeError("Error while uploading"), True),
        (FileNotFoundError("model.safetensors"), False),
        (OSError(28, "No space left on device"), False),
        (ValueError("bad metadata"), False),
    ],
)
def test_what_may_pass(error: Exception, passes: bool) -> None:
    assert is_transient(error) is passes


def test_the_cause_of_a_failed_upload_decides() -> None:
    for status, passes in ((503, True), (403, False)):
        error = RuntimeError("Error while uploading 'x' to the Hub.")
        error.__cause__ = answer(status)
        assert is_transient(error) is passes


def test_the_environment_says_how_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_RLHF_PATIENCE", "12.5")
    assert retry_seconds() == 12.5
    for wrong in ("soon", "-1", "inf"):
        monkeypatch.setenv("HF_RLHF_PATIENCE", wrong)
        with pytest.raises(PublishError, match="HF_RLHF_PATIENCE"):
            retry_seconds()


def test_content_that_fails_again_and_again_does_count(clock: Clock) -> None:
    with pytest.raises(HfHubHTTPError):
        patient(30.0).call("upload", clock.failing(20.0, answer(503)), content_s=3600.0)
    assert clock.now < 65.0  # the first try, and two that are counted

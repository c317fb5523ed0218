"""Retry requests that a busy Hub or a lost connection made fail, in bounded time.

The client of the Hub retries some requests by itself (uploads, listings) and others not at all:
whoami, making a repository or a branch, the description of a model, and the commit. Here every
step of a push is retried, whatever its requests are.
"""

import email.utils
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hf_rlhf.errors import PublishError
from hf_rlhf.storage.secrets import redact_secrets

RETRY_VARIABLE = "HF_RLHF_PATIENCE"
"""Environment variable: total seconds that a push may spend on anything but moving content."""
RETRY_S = 330.0
"""Longer than the Hub's rate-limit window of five minutes."""
FIRST_WAIT_S = 0.5
"""Before the second try; then twice as long each time, or as long as the Hub asks for."""
LONGEST_WAIT_S = 10.0
SINGLE_TRY_S = 10.0
"""Seconds for a step when no time is left, so that a working Hub still gets a chance."""
SLOWEST_BYTES_S = 50_000
"""Content that moves more slowly has stalled."""
SILENCE_S = 600.0
"""How long a connection may be silent. The client itself would wait for ever."""
LONGEST_REASON = 500
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
"""The last five are how a proxy reports a server that does not answer."""
_XET_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3})")
"""hf_xet raises ConnectionError for every refused answer, with the status in its text."""

T = TypeVar("T")


class UnexpectedAnswer(ValueError):
    """A response is JSON, but not in the form of the Hub's API."""


class Stalled(TimeoutError):
    """A step was abandoned because it exceeded its time limit."""


def failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions of the client when the Hub or the network fails, and `more`."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    # hf_xet raises RuntimeError and OSError; huggingface_hub ValueError for refused metadata.
    return (HTTPError, OSError, RuntimeError, ValueError, *more)


def is_transient(error: BaseException) -> bool:
    """Say whether trying again may help: a busy or broken server, a lost connection."""
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HTTPError,
        OfflineModeIsEnabled,
    )

    if (answer := _broken_json(error)) is not None and answer.startswith(("{", "[")):
        return True  # cut short on its way
    status = status_of(error)
    if status is not None:
        return status in _TRANSIENT
    for cause in _causes(error):
        if isinstance(cause, OfflineModeIsEnabled):
            return False
        if isinstance(cause, HTTPError):
            # An address without http:// stays without.
            return type(cause).__name__ != "UnsupportedProtocol"
        if isinstance(cause, (ConnectionError, TimeoutError)):
            return True
    # As hf_xet reports its internal failures.
    return isinstance(error, RuntimeError)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error, if the Hub gave one."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if response is not None:
            return int(response.status_code)
        if isinstance(cause, (ConnectionError, RuntimeError)):
            match = _XET_STATUS.search(str(cause))
            if match is not None:
                return int(match[1])
    return None


def of_xet(error: BaseException) -> bool:
    """Say whether content that Xet sent was refused as damaged."""
    by_xet = any(_XET_STATUS.search(str(cause)) for cause in _causes(error))
    return status_of(error) in (400, 422) and (by_xet or "Xet" in _reason(error))


def describe_error(error: BaseException) -> str:
    """Return an error as one line: what failed, the server's reason, a proxy's page as such."""
    if (answer := _broken_json(error)) is not None:
        if answer.startswith(("{", "[")):
            return f"the answer is JSON that was cut short after {len(answer)} characters"
        return (
            f"the answer is not JSON but begins with {answer[:60]!r}: a proxy or a sign-in page "
            "answered instead of the Hub. Check HF_ENDPOINT and the proxy settings"
        )
    status = status_of(error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    inner = str(error.__cause__ or "").split("\n")[0]
    if isinstance(error, RuntimeError) and inner and inner not in text:
        text = f"{text} {inner}"
    if _is_page(error):
        text += f" (the answer, of status {status}, is a web page: from a proxy, not the Hub?)"
    elif (reason := _reason(error)) and reason not in text:
        text = f"{text.rstrip('.: ')}: {reason}"
    # The address of an upload carries its signature.
    return str(redact_secrets(text.rstrip(".: "))) or type(error).__name__


def _broken_json(error: BaseException) -> str | None:
    """Return the answer behind an error that should have been JSON and is not; else None."""
    broken = (cause for cause in _causes(error) if type(cause).__name__ == "JSONDecodeError")
    return next((str(getattr(cause, "doc", "")).strip() for cause in broken), None)


def _reason(error: BaseException) -> str:
    """Return why the server refused, on one line; empty if it gave no reason."""
    reasons = [getattr(cause, "server_message", None) for cause in _causes(error)]
    if (response := _response(error)) is not None:
        reasons += [response.headers.get("X-Error-Message"), _message_in(response)]
    texts = [" ".join(str(reason).split()) for reason in reasons if reason]
    new = [text for n, text in enumerate(texts) if not any(text in each for each in texts[:n])]
    return "; ".join(new)[:LONGEST_REASON]


def _message_in(response: Any) -> Any:
    """Return the reason in a JSON answer, under a key that the client does not read."""
    try:
        content = response.json()
        return content.get("message")
    except (ValueError, RuntimeError, AttributeError):  # no JSON, not read, not a mapping
        return None


def _server(error: BaseException) -> str:
    """Return the address of the server, without the path; empty if it is unknown."""
    for cause in _causes(error):
        try:
            request = getattr(cause, "request", None)
        except RuntimeError:  # as httpx says that there was none
            continue
        if request is not None:
            url = urlsplit(str(request.url))
            return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
    return ""


def _is_page(error: BaseException) -> bool:
    response = _response(error)
    return response is not None and response.headers.get("content-type", "").startswith("text/html")


def _response(error: BaseException) -> Any:
    """Return the first response behind an error, if there is one."""
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    return next((response for response in responses if response is not None), None)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and its causes: the client hides some behind errors of its own."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


@dataclass
class RetryPolicy:
    """How long to try, and an event that ends it. `say` gets one line for each wait."""

    seconds: float = field(default_factory=lambda: retry_seconds())
    abandoned: threading.Event = field(default_factory=threading.Event)
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    _spent: float = field(default=0.0, init=False, repr=False)

    @property
    def left(self) -> float:
        """The seconds left: `seconds`, less those that steps took since `restart`."""
        return self.seconds - self._spent

    def restart(self) -> None:
        """Reset the count, for another push."""
        self._spent = 0.0

    def call(self, action: str, step: Callable[[], T], *, content_s: float = 0.0) -> T:
        """Return `step()`, retried after transient errors while time is left.

        Waits and tries count, but not the `content_s` seconds that a step may take because it moves
        content (of the first try, or of the one that succeeds). Raises the last error,
        UnexpectedAnswer, or Stalled. `step` must be safe to repeat, even when it took effect
        and its answer was lost. It runs in a thread of its own, which is left behind if it stalls.
        """
        from tenacity import Retrying, retry_if_exception

        def report(state: Any) -> None:
            error, pause = state.outcome.exception(), state.next_action.sleep
            message, server = describe_error(error), _server(error)
            at = f" ({server})" if server and server not in message else ""
            self.say(
                f"{action}: {message}{at}; trying again in {pause:.1f} s, "
                f"for {self.left:.0f} s more ({RETRY_VARIABLE})"
            )

        tries = Retrying(
            retry=retry_if_exception(is_transient),
            stop=self._stops,
            wait=lambda state: min(_wait(state), self.left),
            sleep=self._sleep,
            before_sleep=report,
            reraise=True,
        )
        for attempt in tries:
            with attempt:
                _limit_silence()
                began, free = time.monotonic(), content_s
                try:
                    return _in_time(step, max(self.left, SINGLE_TRY_S) + content_s)
                except BaseException:
                    free = content_s if attempt.retry_state.attempt_number == 1 else 0.0
                    raise
                finally:
                    self._spend(time.monotonic() - began - free)
        raise AssertionError("tenacity returns or raises")

    def once(self, step: Callable[[], T]) -> T:
        """Return `step()`, tried once within the time left plus a little: for a final check."""
        began = time.monotonic()
        try:
            return _in_time(step, max(self.left + SINGLE_TRY_S, 1.0))
        finally:
            self._spend(time.monotonic() - began)

    def _stops(self, state: Any) -> bool:
        error = state.outcome.exception()
        pause = _requested_wait(error) or 0.0
        return self.abandoned.is_set() or isinstance(error, Stalled) or pause >= self.left

    def _sleep(self, seconds: float) -> None:
        self._pause(seconds)
        self._spend(seconds)

    def _spend(self, seconds: float) -> None:
        self._spent += max(seconds, 0.0)

    def _pause(self, seconds: float) -> None:
        self.abandoned.wait(seconds)


def content_s(size: int, bytes_s: float = SLOWEST_BYTES_S) -> float:
    """Return the seconds that moving `size` bytes may take."""
    return size / bytes_s


def _in_time(step: Callable[[], T], seconds: float) -> T:
    """Return `step()`; Stalled if it takes longer than `seconds`.

    In a thread, because no timeout of the client's bounds an answer that comes byte by byte, nor
    how long the client sleeps between tries of its own. A daemon: a process need not wait for it.
    """
    outcome: Future[T] = Future()
    context = copy_context()

    def work() -> None:
        try:
            outcome.set_result(context.run(_checked_form, step))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=work, name="hub-request", daemon=True).start()
    if not wait([outcome], seconds).done:
        raise Stalled(f"not finished within {seconds:.0f} s (limit: {RETRY_VARIABLE})")
    return outcome.result()


def _checked_form(step: Callable[[], T]) -> T:
    """Return `step()`; raise UnexpectedAnswer if the client fails on JSON of another form."""
    try:
        return step()
    except (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise UnexpectedAnswer(
            f"the response is not in the form of the Hub's API ({type(error).__name__}: {error}): "
            "a proxy or another kind of server answered, or another version of the Hub. "
            "Check HF_ENDPOINT and the proxy settings"
        ) from error


def retry_seconds() -> float:
    """Return the seconds that the environment sets, or RETRY_S."""
    text = os.environ.get(RETRY_VARIABLE)
    if text is None:
        return RETRY_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise PublishError(f"{RETRY_VARIABLE} is {text!r}; expected a number of seconds.")
    return seconds


def _limit_silence() -> None:
    """Give the client's connections a timeout where they have none."""
    from huggingface_hub import get_session

    session = get_session()
    if all(value is None for value in session.timeout.as_dict().values()):
        session.timeout = SILENCE_S


def _wait(state: Any) -> float:
    from tenacity import wait_exponential, wait_random

    requested = _requested_wait(state.outcome.exception())
    if requested is not None:
        return requested
    grown = wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)(state)
    # Many clients must not come back at the same moment.
    return float(grown * wait_random(0.75, 1.0)(state))


def _requested_wait(error: BaseException) -> float | None:
    """Return the seconds that the answer asks to wait for: Retry-After, or the Hub's rate limit."""
    response = _response(error)
    if response is None:
        return None
    text = response.headers.get("Retry-After")
    if text is not None:
        return _seconds_until(text.strip())
    if response.status_code == 429:
        left = re.search(r"\bt=(\d+)", response.headers.get("ratelimit", ""))
        return float(left[1]) if left else None
    return None


def _seconds_until(text: str) -> float | None:
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    if when.tzinfo is None:  # without a zone it is UTC, as every date of HTTP is
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())

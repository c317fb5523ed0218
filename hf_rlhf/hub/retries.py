"""Try again what a busy Hub or a lost connection made fail; say so; end in bounded time.

The client of the Hub retries some requests by itself (uploads, listings) and others not at all:
whoami, making a repository or a branch, the description of a model, and the commit. Here every
step of a push is tried again, whatever its requests are.
"""

import email.utils
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hf_rlhf.errors import PublishError
from hf_rlhf.storage.secrets import redact_secrets

PATIENCE_NAME = "HF_RLHF_PATIENCE"
"""Environment variable: total seconds that a push may spend on anything but moving content."""
PATIENCE_S = 330.0
"""Longer than the Hub's rate-limit window of five minutes."""
FIRST_WAIT_S = 0.5
"""Before the second try; then twice as long each time, or what the Hub asks for."""
LONGEST_WAIT_S = 10.0
SINGLE_TRY_S = 10.0
"""Seconds for a step when no patience is left, so that a working Hub still gets a chance."""
SLOWEST_BYTES_S = 50_000
"""Content that moves more slowly has stalled."""
SILENCE_S = 600.0
"""For how long a connection may be silent. The client itself would wait for ever."""
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
"""The last five are a proxy's words for a server that does not answer."""
_XET_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3})")
"""hf_xet raises ConnectionError for every answer that it does not like, and tells which in text."""

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
    # The last is how hf_xet reports what went wrong within itself.
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


def describe_error(error: BaseException) -> str:
    """Return an error as one line: what failed, and the page of a proxy named as such."""
    from json import JSONDecodeError

    for cause in _causes(error):
        if isinstance(cause, JSONDecodeError) or type(cause).__name__ == "JSONDecodeError":
            return (
                "the answer is not JSON but begins with "
                f"{getattr(cause, 'doc', '')[:60].strip()!r}: a proxy or a sign-in page answered "
                "instead of the Hub. Check HF_ENDPOINT and the proxy settings"
            )
    status = status_of(error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    inner = str(error.__cause__ or "").split("\n")[0]
    if isinstance(error, RuntimeError) and inner and inner not in text:
        text = f"{text} {inner}"
    if _is_page(error):
        text += f" (the answer, of status {status}, is a web page: from a proxy, not the Hub?)"
    # The address of an upload carries its signature.
    return str(redact_secrets(text.rstrip("."))) or type(error).__name__


def _server(error: BaseException) -> str:
    """Return the address of the server that was asked, without the path; empty if not known."""
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
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if response is not None:
            kind: str = response.headers.get("content-type", "")
            return kind.startswith("text/html")
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from: the client hides some behind errors of its own."""
    visited: set[int] = set()
    item: BaseException | None = error
    while item is not None and id(item) not in visited:
        visited.add(id(item))
        yield item
        item = item.__cause__ or item.__context__


@dataclass(frozen=True)
class RetryPolicy:
    """How long to try, and how to be told to stop. `say` gets one line for each wait."""

    seconds: float = field(default_factory=lambda: retry_seconds())
    given_up: threading.Event = field(default_factory=threading.Event)
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    _spent: list[float] = field(default_factory=lambda: [0.0], init=False, repr=False)

    @property
    def left(self) -> float:
        """The seconds that are left: of `seconds`, less what steps took since `restart`."""
        return self.seconds - self._spent[0]

    def restart(self) -> None:
        """Reset the count, for another push."""
        self._spent[0] = 0.0

    def call(self, what: str, step: Callable[[], T], *, content_s: float = 0.0) -> T:
        """Return `step()`, retried after transient errors while patience is left.

        Waits and tries count, but not the `content_s` seconds that a step may take because it moves
        content (of the first try, or of the one that succeeds). Raises the last error,
        UnexpectedAnswer, or Stalled. `step` must be safe to repeat, even when it took effect
        unheard. It runs in a thread of its own, which is left behind when it stalls.
        """
        from tenacity import Retrying, retry_if_exception

        tries = 0

        def attempt() -> T:
            nonlocal tries
            tries += 1
            began, free = time.monotonic(), content_s
            _bound_silence()
            try:
                return _in_time(step, max(self.left, SINGLE_TRY_S) + content_s)
            except BaseException:
                free = content_s if tries == 1 else 0.0
                raise
            finally:
                self._spend(time.monotonic() - began - free)

        def stop(state: Any) -> bool:
            error = state.outcome.exception()
            pause = _requested_wait(error) or 0.0
            return self.given_up.is_set() or isinstance(error, Stalled) or pause >= self.left

        def tell(state: Any) -> None:
            error, pause = state.outcome.exception(), state.next_action.sleep
            message, server = describe_error(error), _server(error)
            at = f" ({server})" if server and server not in message else ""
            self.say(
                f"{what}: {message}{at}; trying again in {pause:.1f} s, "
                f"for {self.left:.0f} s more ({PATIENCE_NAME})"
            )

        def sleep(seconds: float) -> None:
            self._sleep(seconds)
            self._spend(seconds)

        return Retrying(
            retry=retry_if_exception(is_transient),
            stop=stop,
            wait=lambda state: min(_wait(state), self.left),
            sleep=sleep,
            before_sleep=tell,
            reraise=True,
        )(attempt)

    def once(self, step: Callable[[], T]) -> T:
        """Return `step()`, tried once within the time left plus a little: for a final check."""
        began = time.monotonic()
        try:
            return _in_time(step, max(self.left + SINGLE_TRY_S, 1.0))
        finally:
            self._spend(time.monotonic() - began)

    def _spend(self, seconds: float) -> None:
        self._spent[0] += max(seconds, 0.0)

    def _sleep(self, seconds: float) -> None:
        self.given_up.wait(seconds)


def content_s(size: int, bytes_s: float = SLOWEST_BYTES_S) -> float:
    """Return how long it may take to move `size` bytes."""
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
            outcome.set_result(context.run(_understood, step))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome.set_exception(error)

    threading.Thread(target=work, name="hub-request", daemon=True).start()
    if not wait([outcome], seconds).done:
        raise Stalled(f"not done within {seconds:.0f} s (limit: {PATIENCE_NAME})")
    return outcome.result()


def _understood(step: Callable[[], T]) -> T:
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
    """Return the patience that the environment asks for, or the usual."""
    text = os.environ.get(PATIENCE_NAME)
    if text is None:
        return PATIENCE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise PublishError(f"{PATIENCE_NAME} is {text!r}; expected a number of seconds.")
    return seconds


def _bound_silence() -> None:
    """Give the client's connections a timeout where nobody gave them one."""
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
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if response is None:
            continue
        text = response.headers.get("Retry-After")
        if text is not None:
            return _seconds_until(text.strip())
        if response.status_code == 429:
            left = re.search(r"\bt=(\d+)", response.headers.get("ratelimit", ""))
            return float(left[1]) if left else None
        return None
    return None


def _seconds_until(said: str) -> float | None:
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        when = email.utils.parsedate_to_datetime(said)
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
    if when.tzinfo is None:  # without a zone it is UTC, as every date of HTTP is
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())

"""Retry requests that failed by a busy Hub or a lost connection, in bounded time.

The client retries some requests (uploads, listings) but not others (whoami, repository creation,
commits). Here every step of a push is retried.
"""

import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import Any, TypeVar, cast

from hf_rlhf.errors import PublishError, causes
from hf_rlhf.storage.secrets import redact_secrets

RETRY_VARIABLE = "HF_RLHF_PATIENCE"
"""Environment variable: seconds for which a step of a push is retried."""
RETRY_S = 330.0
"""Longer than the Hub's rate-limit window of five minutes."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
LAST_TRY_S = 10.0
"""Seconds for a try that starts with no time left, so that a working Hub gets a chance."""
SLOWEST_BYTES_S = 50_000
"""Slower transfers count as stalled."""
LONGEST_REASON = 500
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)
"""The last five are proxy statuses for an unresponsive server."""
_XET_STATUS = re.compile(r"HTTP status (?:client|server) error \((\d{3})")
"""hf_xet raises ConnectionError for every refused request, with the status in its text."""

T = TypeVar("T")


class UnexpectedAnswer(ValueError):
    """A response is JSON, but not in the Hub API's format."""


class Stalled(TimeoutError):
    """A step was abandoned because it exceeded its time limit or the run must end."""


def failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the client's exceptions for failures of the Hub or the network, and `more`."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    # hf_xet raises RuntimeError and OSError; huggingface_hub ValueError for refused metadata.
    return (HTTPError, OSError, RuntimeError, ValueError, *more)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may help: a busy or broken server, a lost connection."""
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HTTPError,
        OfflineModeIsEnabled,
    )

    if (status := status_of(error)) is not None:
        return status in _TRANSIENT
    for cause in causes(error):
        if isinstance(cause, OfflineModeIsEnabled | Stalled):
            return False
        if isinstance(cause, HTTPError):
            return type(cause).__name__ != "UnsupportedProtocol"  # an address without http://
        if isinstance(cause, JSONDecodeError):
            return not cause.doc.lstrip().startswith("<")  # truncated; but a proxy's page stays
        if isinstance(cause, ConnectionError | TimeoutError):
            return True
    # hf_xet's internal failures.
    return isinstance(error, RuntimeError)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error, if the Hub gave one."""
    for cause in causes(error):
        if (response := getattr(cause, "response", None)) is not None:
            return int(response.status_code)
        if (match := _XET_STATUS.search(str(cause))) is not None:
            return int(match[1])
    return None


def describe_error(error: BaseException) -> str:
    """Return an error as a line with the server's reason."""
    lines = [line.strip() for cause in causes(error) for line in str(cause).splitlines()]
    if isinstance(error, JSONDecodeError):
        lines = [f"the answer is not JSON but {error.doc.strip()[:60]!r}: check HF_ENDPOINT, proxy"]
    texts = [text for n, text in enumerate(lines) if text and text not in lines[:n]]
    # The address of an upload has a signature.
    text = str(redact_secrets("; ".join(texts)))[:LONGEST_REASON].rstrip(".: ")
    return text or type(error).__name__


@dataclass(frozen=True)
class RetryPolicy:
    """The seconds for which a step is retried. `say` prints a line for each wait."""

    seconds: float = field(default_factory=lambda: retry_seconds())
    ended: "Future[Any]" = field(default_factory=Future)
    """Once set, no step is waited for."""
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)

    def call(self, action: str, step: Callable[[], T], *, size: int = 0) -> T:
        """Return `step()`, retried after transient errors while time is left.

        A step that transfers `size` bytes has more time. Raises the last error, UnexpectedAnswer or
        Stalled. `step` must be safe to repeat, even if it took effect and its response was lost. It
        runs in a thread, which is abandoned if it stalls.
        """
        from tenacity import Retrying, retry_if_exception

        def report(state: Any) -> None:
            error, pause = state.outcome.exception(), state.next_action.sleep
            self.say(
                f"{action}: {describe_error(error)}; trying again in {pause:.1f} s "
                f"({RETRY_VARIABLE}: {self.seconds:.0f} s)"
            )

        tries = Retrying(
            retry=retry_if_exception(is_transient),
            stop=self._stops,
            wait=_wait,
            sleep=self._sleep,
            before_sleep=report,
            reraise=True,
        )
        limit = self.seconds + LAST_TRY_S + size / SLOWEST_BYTES_S
        return self._in_time(lambda: cast(T, tries(_checked_form, step)), limit)

    def _stops(self, state: Any) -> bool:
        # Only waits count, since a try may transfer content for an hour.
        waited: float = state.idle_for + state.upcoming_sleep
        return self.ended.done() or waited >= self.seconds

    def _sleep(self, seconds: float) -> None:
        wait([self.ended], seconds)

    def _in_time(self, step: Callable[[], T], seconds: float) -> T:
        # In a thread, because no client timeout bounds a response that trickles in. A daemon, so
        # that the process can exit.
        outcome: Future[T] = Future()
        context = copy_context()

        def work() -> None:
            try:
                outcome.set_result(context.run(step))
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                outcome.set_exception(error)

        threading.Thread(target=work, name="hub-request", daemon=True).start()
        either: list[Future[Any]] = [outcome, self.ended]
        wait(either, seconds, FIRST_COMPLETED)
        if not outcome.done():
            raise Stalled(f"not finished within {seconds:.0f} s (limit: {RETRY_VARIABLE})")
        return outcome.result()


def _checked_form(step: Callable[[], T]) -> T:
    """Return `step()`; raise UnexpectedAnswer if the client fails on unexpected JSON."""
    try:
        return step()
    except (LookupError, TypeError, AttributeError, ArithmeticError, AssertionError) as error:
        raise UnexpectedAnswer(
            f"the response is not in the form of the Hub's API ({type(error).__name__}: {error}): "
            "a proxy or another kind of server answered. Check HF_ENDPOINT and the proxy settings"
        ) from error


def retry_seconds() -> float:
    """Return the seconds that the environment sets, or RETRY_S."""
    text = os.environ.get(RETRY_VARIABLE, str(RETRY_S))
    if not re.fullmatch(r"\d+(\.\d*)?", text):
        raise PublishError(f"{RETRY_VARIABLE} is {text!r}; expected a number of seconds.")
    return float(text)


def _wait(state: Any) -> float:
    """Return the seconds before the next try: as the Hub requests, or exponential backoff."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]
    from tenacity import wait_exponential, wait_random

    error = state.outcome.exception()
    headers: Any = next((c.response.headers for c in causes(error) if hasattr(c, "response")), {})
    if (text := headers.get("Retry-After", "").strip()).isdecimal():  # else a date, from a proxy
        return float(text)
    if (limit := parse_ratelimit_headers(headers)) is not None and status_of(error) == 429:
        return float(limit.reset_in_seconds)
    # Jitter: many clients must not return at the same moment.
    grown = wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S) + wait_random(0, 0.25)
    return float(grown(state))

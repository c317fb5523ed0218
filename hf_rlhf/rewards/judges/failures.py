"""Classify and describe the errors of requests."""

import re
import ssl
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from tenacity import RetryCallState

from hf_rlhf.errors import JudgeError

_DOWN = (429, 502, 503, 504, *range(520, 525), 529, 530)
"""Statuses of a server that is busy or starting, and of a proxy (52x: Cloudflare's) without one."""
_REFUSED = (401, 403, 404, 405, 501)
"""Statuses that neither waiting nor another prompt would change."""


class Failed(Exception):
    """A request failed; the message is the cause."""


class Unreadable(Exception):
    """The body of a 200 response is not a completion; the message is the body."""


def kind(error: BaseException) -> Literal["down", "transient", "refused", "failed"]:
    """Classify an error: wait for the server, retry, stop the run, or give up."""
    status, root = status_of(error), _root(error)
    if not isinstance(error, Exception):
        return "failed"  # tenacity also passes cancellations
    if not status:
        if isinstance(root, ssl.SSLCertVerificationError) or _is_page(error):
            return "refused"
        no_server = isinstance(root, OSError) and not isinstance(error, TimeoutError)
        return "down" if no_server else "transient"
    if status in _DOWN:
        return "refused" if _has_no_quota(error) else "down"
    if status in _REFUSED or 300 <= status < 400:
        return "refused"
    return "transient" if status in (408, 409) or status >= 500 else "failed"


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status of an error of the openai package, 0 if there is none."""
    return getattr(error, "status_code", 0)


def cause(error: BaseException | None) -> str:
    """Describe an error. The text may have many lines, and quote the server and the key."""
    response = getattr(error, "response", None)
    if response is not None:
        host = response.headers.get("location", "")
        return f"HTTP {status_of(error)}: {f'redirect to {host}' if host else response.text}"
    if isinstance(error, Unreadable):
        what = "a web page" if _is_page(error) else str(error) or "an empty body"
        return f"the answer is not a completion: {what}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return f"no connection: {_root(error)}"


def cure(error: BaseException, api_key_env: str) -> str:
    """Return the fix for an error of the kind `refused`."""
    status = status_of(error)
    if _has_no_quota(error):
        return "The key has no quota left."
    if status in (401, 403):
        return f"It refused the key: put a valid one in the environment variable {api_key_env}."
    if isinstance(_root(error), ssl.SSLCertVerificationError):
        return "Its certificate is not trusted; SSL_CERT_FILE names certificates of your own."
    return (
        "Set base_url to where an OpenAI-compatible API is served, usually ending in /v1, and "
        "model to a name that it serves (GET /v1/models)."
    )


def first_cause(errors: ExceptionGroup[Exception]) -> BaseException:
    """Return an error of a task group, preferably a JudgeError."""
    cause: BaseException = errors.subgroup(JudgeError) or errors
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


def requested_wait(state: RetryCallState) -> float | None:
    """Return the seconds of Retry-After, or None."""
    response = getattr(error_of(state), "response", None)
    text = response.headers.get("retry-after", "") if response is not None else ""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return None


def error_of(state: RetryCallState) -> BaseException | None:
    """Return the last try's error."""
    return state.outcome.exception() if state.outcome is not None else None


def _root(error: BaseException | None) -> BaseException | None:
    while error is not None and error.__cause__ is not None and not isinstance(error, TimeoutError):
        error = error.__cause__  # that of a timeout is a cancellation
    return error


def _is_page(error: BaseException) -> bool:
    return isinstance(error, Unreadable) and str(error).lstrip()[:1] == "<"


def _has_no_quota(error: Any) -> bool:
    return status_of(error) == 429 and "insufficient_quota" in error.response.text

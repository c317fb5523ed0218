"""One chat completion of an OpenAI-compatible server, and what each kind of failure means.

A call ends in one of four ways: a `Reply`; `Failed`, which concerns this call, and says whether
trying again may help; `Unavailable`, where there is no server, or one that is too busy; or
JudgeError, for what will not heal by itself (a refused key, an unknown model, a wrong address),
with the cure.
"""

import asyncio
import contextlib
import difflib
import email.utils
import json
import math
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from hf_rlhf.data.messages import text_of
from hf_rlhf.errors import JudgeError
from hf_rlhf.formatting import visible
from hf_rlhf.rewards.judges import transport
from hf_rlhf.rewards.judges.transport import Answer

if TYPE_CHECKING:
    from aiohttp import ClientSession

TRANSIENT = frozenset({408, 409})
"""Statuses, beside 5xx, that another try of this request may heal."""
BUSY = 429
NO_CHAT = frozenset({405, 501})
"""Statuses by which a server says that it takes no such request at all."""
GONE = frozenset({502, 503, 504, 520, 521, 522, 523, 524, 529, 530})
"""Statuses by which a proxy (52x: Cloudflare's) or a starting server says that nobody is there."""
NO_KEY = "EMPTY"
ACCOUNT = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""What OpenAI bills, where a key has several; as its own clients name them."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Where servers put thinking, beside the content."""
_MOST_TOKENS = 10**12
_QUOTED_CHARACTERS = 200
_WRONG = "(?:invalid|not valid|incorrect|expired|missing)"
_REFUSES_KEY = re.compile(
    rf"{_WRONG}[^.]{{0,30}}api[ _-]?key|api[ _-]?key[^.]{{0,30}}{_WRONG}", re.IGNORECASE
)
"""What a 400 says of a bad key, as Google's API answers it."""


class Failed(Exception):
    """One call failed; the message is the cause."""

    def __init__(self, cause: str, *, again: bool) -> None:
        super().__init__(cause)
        self.again = again
        """Whether another try may succeed."""


class Unavailable(Failed):
    """Nobody answered, or the server asked to be left alone; the message is the cause."""

    def __init__(
        self,
        cause: str,
        *,
        sent: float,
        retry_after: float | None = None,
        busy: bool = False,
        no_listener: bool = False,
        wrong_address: str = "",
    ) -> None:
        super().__init__(cause, again=True)
        self.sent = sent
        """When the request was sent, by `time.monotonic()`."""
        self.retry_after = retry_after
        """For how many seconds the server asked to be left alone."""
        self.busy = busy
        """It is there, but takes no more requests for now."""
        self.no_listener = no_listener
        """Nothing takes connections at the address."""
        self.wrong_address = wrong_address
        """What to say if no request was ever answered there; afterwards it is an outage."""


class Silent(Unavailable):
    """The request was taken, as far as can be told, and not answered in time."""


@dataclass(frozen=True)
class Reply:
    """What a model wrote, and what it cost."""

    text: str
    truncated: bool
    """It reached the limit on tokens."""
    only_thought: bool
    """It has thinking and no content; `text` is empty, for a thought is no reply."""
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served. Holds the name of the key's variable, never the key."""

    base_url: str
    model: str
    api_key_env: str
    name: str
    """What the user calls the model, for messages: `judge`."""

    path: ClassVar = "/chat/completions"
    content_type: ClassVar = "application/json"
    product: ClassVar = "chat completion"
    """What the server is asked for, in the singular."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["ClientSession"]:
        """Open a client for the running event loop.

        A client's connections belong to one loop, and trainers call from several, so it is not
        kept. Redirects are not followed: they would carry prompts and key to another host.
        """
        async with transport.session(self.base_url, self._headers()) as client:
            yield client

    async def complete(
        self, client: "ClientSession", body: Mapping[str, Any], timeout: float
    ) -> Reply:
        """Request one completion, within `timeout` seconds.

        Raises Unavailable, Failed or JudgeError.
        """
        sent = monotonic()
        answer = await self._answer(client, "POST", self.path, timeout, self.encode(body))
        if not 200 <= answer.status < 300:
            raise await self._failure(client, answer, sent)
        if not answer.complete:
            limit = transport.MAX_REPLY_BYTES // 2**20
            raise Failed(f"the answer is longer than {limit} MiB", again=True)
        return self._reply(answer.text, sent)

    async def _answer(
        self,
        client: "ClientSession",
        method: str,
        path: str,
        timeout: float,
        body: bytes | None = None,
    ) -> Answer:
        """Send one request. Raises Unavailable, Failed or JudgeError when no answer comes."""
        import aiohttp

        sent = monotonic()
        try:
            async with asyncio.timeout(timeout):
                return await transport.fetch(client, method, self.base_url + path, body)
        except aiohttp.InvalidURL:  # whose text, like the next one's, may hold a proxy's password
            cause = f"{self.base_url}, or the environment's proxy for it, is not an address"
            raise Failed(cause, again=False) from None
        except aiohttp.ClientHttpProxyError as error:
            cause = f"no connection: the proxy answers {error.status} {self.quote(error.message)}"
            raise Unavailable(cause, sent=sent) from None
        except aiohttp.ClientError as error:
            raise self._unconnected(error, sent) from None
        except TimeoutError:
            raise Silent(f"no answer within {timeout:g} s", sent=sent) from None
        except OSError as error:
            raise self._unconnected(error, sent) from None
        except ValueError as error:
            raise Failed(self.quote(error), again=False) from None

    def quote(self, text: object) -> str:
        """Return a short line of text that came from outside, without the key."""
        line = visible(" ".join(str(text).split()))
        if key := os.environ.get(self.api_key_env):
            line = line.replace(key, "[key]")
        return line if len(line) <= _QUOTED_CHARACTERS else line[: _QUOTED_CHARACTERS - 1] + "…"

    def _key(self) -> str:
        key = os.environ.get(self.api_key_env) or None
        if key is None and self.api_key_env != "OPENAI_API_KEY":
            raise JudgeError(
                f"The {self.name}'s key should be in the environment variable {self.api_key_env}, "
                f"which is not set. Set it, or leave out api_key_env for "
                f"a server without keys."
            )
        if key and not (key.isascii() and key.isprintable()):
            raise JudgeError(
                f"The {self.name}'s key in the environment variable {self.api_key_env} holds a "
                f"line break or another character that no header can carry. Set it again."
            )
        return key or NO_KEY

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Authorization": f"Bearer {self._key()}",
            "Content-Type": self.content_type,
            "User-Agent": "hf-rlhf",
        }
        accounts = {header: os.environ.get(variable) for header, variable in ACCOUNT.items()}
        return headers | {header: account for header, account in accounts.items() if account}

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """Return the body of a request. Raises JudgeError for what cannot be sent."""
        fields = {name: value for name, value in body.items() if name != "extra_body"}
        fields |= body.get("extra_body", {})
        try:
            text = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise JudgeError(
                f"The {self.name}'s extra_body cannot be sent as JSON: {error}."
            ) from None
        return text.encode("utf-8", "replace")

    def _reply(self, text: str, sent: float) -> Reply:
        """Read the body of a 200 answer; should it quote the key, without it."""
        if key := os.environ.get(self.api_key_env):
            text = text.replace(json.dumps(key)[1:-1], "[key]")
        if _is_page(text):
            # Of a wrong address, or of a gateway whose server is away.
            what = "with a web page, not with an OpenAI-compatible API"
            wrong = f"The {self.name}'s base_url {self.base_url} answers {what}."
            raise Unavailable(
                f"it answers {what}", sent=sent, wrong_address=f"{wrong} It usually ends in /v1."
            )
        try:
            return self.read(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            body = self.quote(text) or "an empty body"
            raise Failed(f"the answer is not a {self.product}: {body}", again=True) from None

    def read(self, answer: Any) -> Reply:
        """Return the reply in the JSON of an answer. Raises LookupError, TypeError and the like."""
        choice = answer["choices"][0]
        message = choice["message"]
        content = text_of([message])
        usage = answer.get("usage") or {}
        return Reply(
            text=content,
            truncated=choice.get("finish_reason") == "length",
            only_thought=not content.strip() and any(map(message.get, _THOUGHTS)),
            prompt_tokens=_count(usage, "prompt_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
        )

    def _unconnected(self, error: BaseException, sent: float) -> Unavailable | JudgeError:
        import aiohttp

        no_listener = isinstance(error, aiohttp.ClientConnectorError)
        while (cause := error.__cause__ or error.__context__) is not None:
            error = cause
        if isinstance(error, ssl.SSLCertVerificationError):
            return JudgeError(
                f"The {self.name}'s server {self.base_url} has a certificate that is not trusted "
                f"here: {self.quote(error)}. SSL_CERT_FILE names certificates of your own."
            )
        message = f"no connection: {self.quote(error)}"
        return Unavailable(message, sent=sent, no_listener=no_listener)

    async def _failure(
        self, client: "ClientSession", answer: Answer, sent: float
    ) -> Failed | JudgeError:
        """Turn an HTTP status into what it means for the run."""
        status, text = answer.status, answer.text
        cause = f"HTTP {status}: {self.quote(text)}"
        busy = status == BUSY
        if status in GONE or (busy and "insufficient_quota" not in text):
            wait = _retry_after(answer.headers)
            return Unavailable(cause, sent=sent, retry_after=wait, busy=busy)
        if status in TRANSIENT or (status >= 500 and status not in NO_CHAT):
            return Failed(cause, again=True)
        return await self._refusal(client, answer)

    async def _refusal(self, client: "ClientSession", answer: Answer) -> Failed | JudgeError:
        """Explain a status that waiting will not change."""
        status = answer.status
        message = self.quote(answer.text)
        server = f"The {self.name} at {self.base_url}"
        if status == BUSY:
            return JudgeError(f"{server} has no quota left for this key ({status}: {message}).")
        if status in (401, 403) or (status == 400 and _REFUSES_KEY.search(answer.text)):
            return JudgeError(
                f"{server} refused the key ({status}: {message}). "
                f"Put a valid one in the environment variable {self.api_key_env}."
            )
        if status == 404:
            return JudgeError(
                f"{server} answered 404 for the model {self.model!r}: {message}. "
                f"{await self._models(client)}"
            )
        if 300 <= status < 400:
            try:
                host = urlsplit(answer.headers.get("location", "")).hostname or "another path"
            except ValueError:
                host = "a malformed address"
            return JudgeError(
                f"{server} redirects to {self.quote(host)}, which is not followed. "
                f"Set base_url to where it is served."
            )
        if status in NO_CHAT or _is_page(answer.text):
            return JudgeError(
                f"{server} takes no {self.product}s ({status}: {message}): it is no "
                f"OpenAI-compatible API, or not under this path. base_url usually ends in /v1."
            )
        hint = ""
        if "response_format" in message or "json_schema" in message:
            hint = " (the server may not know schemas: set structured to false)"
        return Failed(f"HTTP {status}: {message}{hint}", again=False)

    async def _models(self, client: "ClientSession") -> str:
        """Return a sentence on which models the server has, nearest names first."""
        try:
            answer = await self._answer(client, "GET", "/models", timeout=5)
            names = [str(entry["id"]) for entry in json.loads(answer.text)["data"]]
        except (Failed, JudgeError, ValueError, LookupError, TypeError, RecursionError):
            return "It lists no models either; base_url usually ends in /v1."
        near = difflib.get_close_matches(self.model, names, n=3, cutoff=0.4)
        listed = near + [name for name in names if name not in near]
        return f"It serves: {self.quote(', '.join(listed[:8]))}." if listed else "It serves none."


def checked_url(base_url: str, name: str) -> str:
    """Return a base URL without its trailing slash. Raises JudgeError when it must not be used.

    Credentials and queries are refused, not cut off: a run file is recorded as it was written.
    """
    setting = f"The {name}'s base_url"
    hint = "is not an address. It should look like http://localhost:8000/v1."
    try:
        parts = urlsplit(base_url.strip())
        host = parts.hostname or ""
        _ = parts.port  # raises for a port that is none
    except ValueError:  # whose text may hold a key
        raise JudgeError(f"{setting} {hint}") from None
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if parts.scheme not in ("http", "https") or not host:
        raise JudgeError(f"{setting} {bare!r} {hint}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise JudgeError(
            f"{setting} {bare} carries a user, a query or a fragment, which would be written to "
            f"the record. Leave them out; a key goes in an environment variable that "
            f"api_key_env names."
        )
    return bare.rstrip("/")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, which a server gives in seconds or as an HTTP date.

    None for what is no wait: below 0, or without end.
    """
    for header, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with contextlib.suppress(TypeError, ValueError):
            seconds = float(headers.get(header, "")) * scale
            return seconds if 0 <= seconds < math.inf else None
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, date.timestamp() - time.time())
    return None


def _is_page(text: str) -> bool:
    return text.lstrip()[:1] == "<"


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and 0 < value < _MOST_TOKENS else 0

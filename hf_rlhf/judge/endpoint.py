"""One OpenAI-compatible server: is its URL safe, one chat completion, and what went wrong.

A call ends in one of three ways: a `Reply`; `Failed`, which concerns this call, and says whether
trying again may help; or JudgeError, for what will not heal by itself (a refused key, an unknown
model, a wrong address), with the cure.
"""

import asyncio
import contextlib
import difflib
import email.utils
import ipaddress
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from hf_rlhf.errors import JudgeError
from hf_rlhf.messages import text_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAIError

TRANSIENT = frozenset({408, 409, 429})
"""Statuses, beside all of 5xx, that another try may heal."""
NO_KEY = "EMPTY"
_METADATA_HOSTS = frozenset({"metadata.google.internal", "metadata.goog", "instance-data"})
_METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192"))
)
_SHOWN = 200


class Failed(Exception):
    """One call failed; the message is the cause."""

    def __init__(self, cause: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(cause)
        self.again = again
        """Whether another try may succeed."""
        self.after = after
        """For how many seconds the server asked to be left alone."""


@dataclass(frozen=True)
class Reply:
    """What a model said, and what it cost."""

    text: str
    truncated: bool
    """It reached the limit on tokens before its end."""
    only_thought: bool
    """It has no content; `text` is its thinking."""
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Endpoint:
    """Where a judge model is served. Holds the name of the key's variable, never the key."""

    base_url: str
    model: str
    api_key_env: str

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["AsyncOpenAI"]:
        """Open a client for the running event loop. Raises JudgeError for an unsafe address.

        A client's connections belong to one loop, and trainers call from several, so it is not
        kept. Redirects are not followed: they would carry prompts and key to another host.
        """
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        await _refuse_internal(self.base_url)
        client = AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._key(),
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(follow_redirects=False),
        )
        async with client:
            yield client

    async def complete(
        self, client: "AsyncOpenAI", body: Mapping[str, Any], timeout: float
    ) -> Reply:
        """Ask for one chat completion, within `timeout` seconds. Raises Failed or JudgeError."""
        import openai

        try:
            async with asyncio.timeout(timeout):
                raw = await client.chat.completions.with_raw_response.create(
                    **body, timeout=timeout
                )
        except openai.APIStatusError as error:
            raise await self._diagnosed(client, error) from None
        except (TimeoutError, openai.APITimeoutError):
            raise Failed(f"no answer within {timeout:g} s", again=True) from None
        except openai.APIConnectionError as error:
            raise Failed(f"no connection: {self.shown(_root_cause(error))}", again=True) from None
        except openai.OpenAIError as error:
            raise Failed(self.shown(error), again=False) from None
        return self._reply(raw.http_response.text)

    def shown(self, text: object) -> str:
        """Return a short line of text that came from outside, without the key."""
        line = " ".join(str(text).split())
        key = self._key_or_none()
        if key:
            line = line.replace(key, "[key]")
        return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"

    def _key(self) -> str:
        key = self._key_or_none()
        if key is None and self.api_key_env != "OPENAI_API_KEY":
            raise JudgeError(
                f"The judge's key is to be in the environment variable {self.api_key_env}, which "
                f"is not set. Set it, or leave out api_key_env for a server without keys."
            )
        return key or NO_KEY

    def _key_or_none(self) -> str | None:
        return os.environ.get(self.api_key_env) or None

    def _reply(self, text: str) -> Reply:
        """Read the body of a 200 answer."""
        if text.lstrip()[:1] == "<":
            raise JudgeError(
                f"The judge's base_url {self.base_url} answers with a web page, not with an "
                f"OpenAI-compatible API. It usually ends in /v1."
            )
        try:
            answer = json.loads(text)
            choice = answer["choices"][0]
            message = choice["message"]
            content = text_of([message])
        except (ValueError, LookupError, TypeError, AttributeError):
            found = self.shown(text) or "an empty body"
            raise Failed(f"the answer is not a chat completion: {found}", again=True) from None
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        usage = answer.get("usage") or {}
        return Reply(
            text=content if content.strip() else str(thought),
            truncated=choice.get("finish_reason") == "length",
            only_thought=not content.strip() and bool(thought),
            prompt_tokens=_count(usage, "prompt_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
        )

    async def _diagnosed(self, client: "AsyncOpenAI", error: Any) -> Failed | JudgeError:
        """Turn an HTTP status into what it means for the run."""
        status = error.status_code
        said = self.shown(error.response.text)
        where = f"The judge at {self.base_url}"
        if status in TRANSIENT or status >= 500:
            return Failed(f"HTTP {status}: {said}", again=True, after=retry_after(error.response))
        if status in (401, 403):
            return JudgeError(
                f"{where} refused the key ({status}: {said}). "
                f"Put a valid one in the environment variable {self.api_key_env}."
            )
        if status == 404:
            return JudgeError(
                f"{where} answered 404 for the model {self.model!r}: {said}. "
                f"{await self._models(client)}"
            )
        if 300 <= status < 400:
            host = urlsplit(error.response.headers.get("location", "")).hostname or "another path"
            return JudgeError(
                f"{where} redirects to {self.shown(host)}, which is not followed. "
                f"Set base_url to where it is served."
            )
        hint = ""
        if "response_format" in said or "json_schema" in said:
            hint = " (the server may not know schemas: set structured to false)"
        return Failed(f"HTTP {status}: {said}{hint}", again=False)

    async def _models(self, client: "AsyncOpenAI") -> str:
        """Say which models the server has, nearest names first."""
        import openai

        try:
            async with asyncio.timeout(5):
                raw = await client.models.with_raw_response.list(timeout=5)
            names = [str(entry["id"]) for entry in json.loads(raw.http_response.text)["data"]]
        except (openai.OpenAIError, TimeoutError, ValueError, LookupError, TypeError):
            return "It lists no models either; base_url usually ends in /v1."
        near = difflib.get_close_matches(self.model, names, n=3, cutoff=0.4)
        listed = near + [name for name in names if name not in near]
        return f"It serves: {self.shown(', '.join(listed[:8]))}." if listed else "It serves none."


def checked_url(base_url: str) -> str:
    """Return a base URL without its trailing slash. Raises JudgeError when it must not be used.

    Credentials and queries are refused, not cut off: a run file is recorded as it was written.
    """
    try:
        parts = urlsplit(base_url.strip())
        host = parts.hostname or ""
        _ = parts.port  # raises for a port that is none
    except ValueError:  # whose text may hold a key
        raise JudgeError(
            "The judge's base_url is not an address. It should look like http://localhost:8000/v1."
        ) from None
    bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if parts.scheme not in ("http", "https") or not host:
        raise JudgeError(
            f"The judge's base_url {bare!r} is not an address. It should look like "
            f"http://localhost:8000/v1."
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise JudgeError(
            f"The judge's base_url {bare} carries a user, a query or a fragment, which would be "
            f"written to the record. Leave them out; a key goes in an environment variable that "
            f"api_key_env names."
        )
    _refuse_host(host, host)
    with contextlib.suppress(OSError):  # 0xA9FEA9FE and 2852039166 are addresses to a resolver
        _refuse_host(socket.inet_ntoa(socket.inet_aton(host)), host)
    return bare.rstrip("/")


async def _refuse_internal(base_url: str) -> None:
    host = urlsplit(base_url).hostname or ""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return  # A proxy may know the name; if not, the call itself says so.
    for *_, address in found:
        _refuse_host(str(address[0]), host)


def _refuse_host(address: str, host: str) -> None:
    """Refuse where clouds hand out credentials: what a URL from elsewhere would be aimed at."""
    refused = address.rstrip(".").casefold() in _METADATA_HOSTS
    with contextlib.suppress(ValueError):
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        refused = ip.is_link_local or ip in _METADATA_ADDRESSES
    if refused:
        raise JudgeError(
            f"The judge's base_url names {host}, a link-local or cloud metadata address, where no "
            f"judge is served. Use the server's own name or address."
        )


def retry_after(response: Any) -> float | None:
    """Return the seconds that a response asks to wait, given in seconds or as an HTTP date."""
    for header, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with contextlib.suppress(TypeError, ValueError):
            seconds = float(response.headers.get(header)) * scale
            return max(0.0, seconds) if seconds == seconds else None
    with contextlib.suppress(TypeError, ValueError):
        date = email.utils.parsedate_to_datetime(response.headers.get("retry-after"))
        return max(0.0, date.timestamp() - time.time())
    return None


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _root_cause(error: "OpenAIError") -> BaseException:
    cause: BaseException = error
    while (deeper := cause.__cause__ or cause.__context__) is not None:
        cause = deeper
    return cause

"""A model behind an OpenAI-compatible API: settings, retries, outages, limit, cache, cost.

Judges request verdicts (`hf_rlhf.rewards.judges.openai`), writers texts
(`hf_rlhf.rewards.judges.text_generation`). The openai package handles HTTP, proxies and
certificates, tenacity the retries. The file exceeds 400 lines because a call, its retries and the
outage that they wait for share one state.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from hf_rlhf.config.yaml import leaves
from hf_rlhf.data.messages import text_of
from hf_rlhf.distributed import processes
from hf_rlhf.errors import JudgeError
from hf_rlhf.formatting import duration, visible
from hf_rlhf.rewards.judges import failures
from hf_rlhf.rewards.judges.cache import DiskCache, Keep, default_path
from hf_rlhf.rewards.judges.failures import Failed, Unreadable
from hf_rlhf.storage.secrets import SECRET_HINT, misplaced_secrets

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Messages = Sequence[Mapping[str, str]]
"""A conversation: `role` and `content` of each turn."""
_WAIT = wait_random_exponential(multiplier=0.5, max=15.0)
_PING_S = 20.0
"""Timeout of `ping`, for which a user waits, and of a connection to a host that is up."""
_NOTICE_S, _NOTICE_EVERY_S = 5.0, 30.0
_MOST_TOKENS = 10**12
_TOTALS = (
    *("calls", "cached", "failed", "requests"),
    *("prompt_tokens", "completion_tokens", "cost", "seconds"),
)
CUT_OFF = "cut off at max_tokens, which counts thinking too; extra_body may turn it off."
_QUOTED_CHARACTERS = 200
_places: WeakKeyDictionary[Any, dict[tuple[str, int], asyncio.Semaphore]] = WeakKeyDictionary()
"""Limits by event loop. The rewards of a run share a loop."""
_noticed: dict[str, float] = {}
"""Time of the last message on an outage, by server."""


@dataclass(frozen=True)
class Reply:
    """A model's reply and its cost."""

    text: str
    """Without thinking."""
    truncated: bool = False
    """Whether it reached the token limit."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class ChatClient:
    """Send requests to a model until they are answered; count the cost, cache the result.

    Picklable; it holds no key and no connection. Raises JudgeError for settings that cannot work.
    """

    model: str
    """The model's name on the server."""
    base_url: str = "http://localhost:8000/v1"
    """Address of the API, without a key."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable with the key. The default may be unset for local servers."""
    revision: str = ""
    """Revision of the served weights, for the card and the cache; the API does not report it."""
    temperature: float | None = 0.0
    """None omits it for models that refuse it."""
    max_tokens: int | None = 512
    """Limit on a reply, including thinking. A truncated reply is requested once more with twice as
    many."""
    seed: int | None = 0
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request, e.g. `{chat_template_kwargs: {enable_thinking: false}}`."""
    timeout: float = 120.0
    """Seconds for one request."""
    patience: float = 900.0
    """Seconds to wait for a server that is down (no connection, 502, 503, 504, 52x) or asks for a
    pause (429, Retry-After); then the run stops. In a distributed run the other processes wait too:
    keep it below the trainer's `ddp_timeout` (1800)."""
    retries: int = 5
    """Retries of any other failed request: 408, 409, other 5xx, a lost connection, a timeout, an
    unreadable reply."""
    max_concurrency: int = 32
    """Concurrent requests to this base_url, by all processes of the run together."""
    cache: bool = True
    """Cache replies on disk. With a temperature above 0 this freezes the first draw."""
    cache_path: str = ""
    """The cache's file; by default `judge.sqlite` in `$HF_RLHF_CACHE` or under the XDG cache
    folder."""
    price_per_million_input: float = 0.0
    """For the cost in `usage()`, in any currency."""
    price_per_million_output: float = 0.0
    display_name: str = field(default="judge", init=False, repr=False)
    """The model's name in messages."""
    _usage: dict[str, float] = field(init=False, repr=False, compare=False)
    _cache: DiskCache = field(init=False, repr=False, compare=False)
    _was_answered: bool = field(default=False, init=False, repr=False, compare=False)

    waits_for_start: ClassVar = True
    """Whether to wait for a server that never answered."""

    def __post_init__(self) -> None:
        self.base_url = _checked_url(self.base_url, self.display_name)
        self._check()
        self._usage = dict.fromkeys(_TOTALS, 0.0)
        self._cache = DiskCache(
            Path(self.cache_path or default_path()), self.decode, enabled=self.cache
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of an unused client: copies count from zero, and digests are equal."""
        usage = dict.fromkeys(_TOTALS, 0.0)  # not by `replace`: a copy is not checked again
        return {**vars(self), "_usage": usage, "_failed": {}, "_was_answered": False}

    @staticmethod
    def decode(value: Any) -> Any:
        """Return the verdict or text of a JSON value in the cache."""
        raise NotImplementedError

    def describe(self) -> Mapping[str, Any]:
        """Return all settings that replies depend on, except messages."""
        server = {"revision": self.revision or None, "base_url": self.base_url}
        return {"model": self.model, **server, **self._sampling()}

    def usage(self) -> Mapping[str, float]:
        """Return totals since construction.

        `calls` counts questions, `cached` questions without a request, `failed` questions without
        an answer, `requests` all requests including retries; `cache_errors` above 0 means that the
        cache could not be used. Tokens are counted by the server.
        """
        return {**self._usage, "cache_errors": float(self._cache.failures)}

    def count(self, **amounts: float) -> None:
        """Add to the totals of `usage`."""
        for name, amount in amounts.items():
            self._usage[name] += amount

    async def ping(self) -> str:
        """Request a token, uncached and without retries. Raises JudgeError with a fix."""
        from openai import OpenAIError

        started = monotonic()
        limit = {"max_tokens": 1} if self.max_tokens is not None else {}
        async with self.connect() as client:
            try:
                async with asyncio.timeout(_PING_S):
                    await self._send(client, {**self.probe(), **limit})
            except (OpenAIError, Unreadable, TimeoutError) as error:
                if failures.kind(error) == "refused":
                    raise self._stopped(error) from None
                raise JudgeError(
                    f"{self._server} gave no answer: {self._cause(error)}. Is the server running "
                    f"and base_url right? For vLLM: vllm serve {self.model}"
                ) from None
        return f"{self.model} at {self.base_url} answered in {monotonic() - started:.2f} s"

    def probe(self) -> dict[str, Any]:
        """Return a request that a server answers quickly."""
        return self.body([{"role": "user", "content": "Say yes."}])

    @asynccontextmanager
    async def session(self) -> AsyncIterator[tuple["AsyncOpenAI", asyncio.TaskGroup, Keep]]:
        """Open a client, a group of tasks, and the cache for their replies; count the time.

        Raises the first error of the tasks.
        """
        started = monotonic()
        try:
            with self._cache.writer() as keep:
                async with self.connect() as client, asyncio.TaskGroup() as group:
                    yield client, group, keep
        except ExceptionGroup as errors:
            raise failures.first_cause(errors) from None
        finally:
            self.count(seconds=monotonic() - started)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["AsyncOpenAI"]:
        """Open a client for the running event loop, to which its connections belong.

        Redirects are not followed: they would send prompts and key to another host.
        """
        from openai import AsyncOpenAI, Timeout

        from hf_rlhf.rewards.judges.transport import BoundedClient

        async with AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._key(),
            max_retries=0,
            timeout=Timeout(None, connect=_PING_S),
            http_client=BoundedClient(follow_redirects=False),
        ) as client:
            yield client

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the request that sends `messages`."""
        # Lone surrogates from a tokenizer's broken bytes cannot be sent.
        sendable = [
            {name: text.encode("utf-8", "replace").decode() for name, text in message.items()}
            for message in messages
        ]
        return {**self._sampling(), "messages": sendable}

    def cache_key(self, **request: Any) -> str:
        """Hash everything that a reply depends on: request, server and weights."""
        request |= {"base_url": self.base_url, "revision": self.revision}
        text = json.dumps({"version": 1, **request}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    async def request_with_retries(self, client: "AsyncOpenAI", body: Mapping[str, Any]) -> Reply:
        """Send a request until it is answered.

        Raises Failed when the retries run out, and JudgeError if the server refuses the request or
        is down for longer than `patience`.
        """
        from openai import OpenAIError

        through_outages = AsyncRetrying(
            retry=retry_if_exception(lambda error: failures.kind(error) == "down"),
            stop=self._is_out_of_patience,
            wait=lambda state: failures.requested_wait(state) or _WAIT(state),
            before_sleep=self._notify,
            reraise=True,
        )
        tries = AsyncRetrying(
            retry=retry_if_exception(lambda error: failures.kind(error) == "transient"),
            stop=stop_after_attempt(self.retries + 1),
            wait=_WAIT,
            reraise=True,
        )
        try:
            reply: Reply = await tries(through_outages, self._send, client, body)
        except (OpenAIError, Unreadable, TimeoutError) as error:
            if failures.kind(error) in ("down", "refused"):
                raise self._stopped(error) from None
            raise Failed(self._cause(error)) from None
        return reply

    async def post(self, client: "AsyncOpenAI", fields: dict[str, Any]) -> str:
        """Send a request, and return the body of the response."""
        return await client.post("/chat/completions", cast_to=str, body=fields)

    def read(self, answer: Any) -> Reply:
        """Parse the reply in a response's JSON. Raises LookupError, TypeError and the like."""
        choice = answer["choices"][0]
        message, usage = choice["message"], answer.get("usage") or {}
        return Reply(
            text=text_of([message]),
            truncated=choice.get("finish_reason") == "length",
            prompt_tokens=_count(usage, "prompt_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
        )

    async def _send(self, client: "AsyncOpenAI", body: Mapping[str, Any]) -> Reply:
        """Send a request within the concurrency limit, and count its cost."""
        fields = {name: value for name, value in body.items() if name != "extra_body"}
        async with self._place():
            self.count(requests=1)
            async with asyncio.timeout(self.timeout):
                text = await self.post(client, {**fields, **self.extra_body})
        if key := os.environ.get(self.api_key_env):
            text = text.replace(json.dumps(key)[1:-1], "[key]")
        try:
            reply = self.read(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise Unreadable(text) from None
        self._was_answered = True
        read, written = reply.prompt_tokens, reply.completion_tokens
        cost = read * self.price_per_million_input + written * self.price_per_million_output
        self.count(prompt_tokens=read, completion_tokens=written, cost=cost / 1e6)
        return reply

    def _place(self) -> asyncio.Semaphore:
        share = max(1, self.max_concurrency // processes())  # a pickled client is not checked
        places = _places.setdefault(asyncio.get_running_loop(), {})
        return places.setdefault((self.base_url, share), asyncio.Semaphore(share))

    def _is_out_of_patience(self, state: RetryCallState) -> bool:
        has_status = failures.status_of(failures.error_of(state))
        if not (self.waits_for_start or self._was_answered or has_status):
            return True
        if state.attempt_number == 1:  # an outage begins here, not in the queue before it
            state.start_time = state.outcome_timestamp or 0
        waited, requested = state.seconds_since_start or 0, failures.requested_wait(state) or 0
        return waited + requested >= self.patience

    def _notify(self, state: RetryCallState) -> None:
        """Print occasional messages during an outage."""
        waited, now = state.seconds_since_start or 0, monotonic()
        if waited > _NOTICE_S and now - _noticed.get(self.base_url, -math.inf) > _NOTICE_EVERY_S:
            _noticed[self.base_url] = now
            text = f"{self._server} has not answered for {duration(waited)} "
            text += f"({self._cause(failures.error_of(state))}); waiting up to "
            print(f"{text}{duration(self.patience)}.", file=sys.stderr, flush=True)

    def _stopped(self, error: BaseException) -> JudgeError:
        """Return the error that stops the run, with its fix."""
        cause = self._cause(error)
        if failures.kind(error) == "down":
            kept = "; what was answered is in the cache" * self.cache
            return JudgeError(
                f"{self._server} is down or busy for longer than its patience of "
                f"{self.patience:g} s: {cause}. Start it again and repeat the same command{kept}."
            )
        cure = failures.cure(error, self.api_key_env)
        return JudgeError(f"{self._server} refuses the request: {cause}. {cure}")

    @property
    def _server(self) -> str:
        return f"The {self.display_name} {self.model} at {self.base_url}"

    def _cause(self, error: BaseException | None) -> str:
        return self._quote(failures.cause(error))

    def _quote(self, text: str) -> str:
        """Return external text as a short line without the key."""
        line = visible(" ".join(text.split()))
        if key := os.environ.get(self.api_key_env):
            line = line.replace(key, "[key]")
        return line if len(line) <= _QUOTED_CHARACTERS else f"{line[:_QUOTED_CHARACTERS]}…"

    def _key(self) -> str:
        key = os.environ.get(self.api_key_env) or ""
        needs = f"The {self.display_name}'s key in the environment variable {self.api_key_env}"
        if not key and self.api_key_env != "OPENAI_API_KEY":
            raise JudgeError(f"{needs} is not set. Leave out api_key_env if there are no keys.")
        if not (key.isascii() and key.isprintable()):
            raise JudgeError(f"{needs} holds a character that no header can carry. Set it again.")
        return key or "EMPTY"

    def _sampling(self) -> dict[str, Any]:
        """Return the fields of a request for the model and its sampling."""
        names = ("model", "temperature", "max_tokens", "seed", "extra_body")
        fields = {name: getattr(self, name) for name in names}
        return {name: value for name, value in fields.items() if value not in (None, {})}

    def _check(self) -> None:
        written = {"api_key_env": self.api_key_env, "extra_body": self.extra_body}
        for path, problem in misplaced_secrets(leaves(written)):
            setting = ".".join(map(str, path))
            raise JudgeError(f"{self.display_name}: {setting} {problem} {SECRET_HINT}")
        try:
            json.dumps(self.extra_body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise JudgeError(f"{self.display_name}: extra_body is no JSON: {error}.") from None
        self._require("model", bool(self.model.strip()), "a name that the server knows")
        self._require("timeout", 0 < self.timeout < math.inf, "above 0")
        least = f"at least {processes()}, one for each process"
        self._require("max_concurrency", self.max_concurrency >= processes(), least)
        limit = self.max_tokens is None or self.max_tokens >= 1
        self._require("max_tokens", limit, "at least 1, or null")
        for name in ("retries", "patience", "temperature"):
            self._require(name, 0 <= (getattr(self, name) or 0) < math.inf, "at least 0")

    def _require(self, setting: str, holds: bool, expected: str) -> None:
        if not holds:
            value = getattr(self, setting)
            raise JudgeError(f"{self.display_name}: {setting} must be {expected}, not {value!r}.")


def with_more_tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request whose reply was truncated again with twice the tokens."""
    return {**body, "max_tokens": 2 * body["max_tokens"]} if "max_tokens" in body else {**body}


def _checked_url(url: str, name: str) -> str:
    """Return a base URL without its trailing slash. Raise JudgeError, without the URL, if invalid.

    Credentials and queries are refused, not removed: a run file is recorded as written.
    """
    try:
        parts = urlsplit(url.strip())
        _ = parts.port  # raises for an invalid port
    except ValueError:
        parts = urlsplit("")
    plain = not ("@" in parts.netloc or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise JudgeError(
            f"The {name}'s base_url is not an address such as http://localhost:8000/v1, without "
            "a user, a query or a fragment. api_key_env names the environment variable of a key."
        )
    return url.strip().rstrip("/")


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and 0 < value < _MOST_TOKENS else 0

"""One model behind an OpenAI-compatible API: its settings, retries, outages, limits, cache, cost.

Judges ask it for verdicts (`hf_rlhf.rewards.judges.openai`), writers for texts
(`hf_rlhf.rewards.judges.text_generation`).
"""

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hf_rlhf.config.yaml import leaves
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.cache import DiskCache, default_path
from hf_rlhf.rewards.judges.endpoint import (
    Endpoint,
    Failed,
    Reply,
    Silent,
    Unavailable,
    checked_url,
)
from hf_rlhf.rewards.judges.outage import Outage, Waiting, outage_of
from hf_rlhf.rewards.judges.rate_limits import Limits
from hf_rlhf.rewards.judges.usage import UsageCounter
from hf_rlhf.storage.secrets import SECRET_HINT, misplaced_secrets

if TYPE_CHECKING:
    from aiohttp import ClientSession

Messages = Sequence[Mapping[str, str]]
"""A conversation: `role` and `content` of each turn."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
"""At most so long before a request is repeated; the first wait is doubled each time."""
_CHARACTERS_PER_TOKEN = 3
"""Low for English, so that a booking under the token cap rather errs on the safe side."""
_PROBE_S = 60.0
_PING_S = 20.0
"""Of `ping`, at the end of which somebody waits."""
_SCHEMA_VERSION = 1


@dataclass
class ChatClient:
    """Send requests to one model until they are answered; count what it costs, cache the outcome.

    Picklable; it holds no key and no connection. Raises JudgeError for settings that cannot work.
    """

    model: str
    """The model's name on the server."""
    base_url: str = "http://localhost:8000/v1"
    """Address of the API, without a key. Link-local and metadata addresses are refused."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. The default one may be unset: local servers
    need none."""
    revision: str = ""
    """Revision of the served weights, for the card and the cache; the API does not report it."""
    temperature: float | None = 0.0
    """None omits it, for models that refuse it."""
    max_tokens: int | None = 512
    """Limit on a reply, thinking included. A reply cut off here is requested again with twice as
    many, once."""
    seed: int | None = 0
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request, e.g. `{chat_template_kwargs: {enable_thinking: false}}`."""
    timeout: float = 120.0
    """Seconds for one request."""
    patience: float = 900.0
    """Seconds to wait for a server that is down (no connection, 502, 503, 504, no answer to
    any request) or asks for a pause (429, Retry-After); then the run stops. In a distributed run
    the other processes wait too: keep it below the trainer's `ddp_timeout` (1800)."""
    retries: int = 5
    """How often a failed request is sent again while the server answers others: 408, 409,
    other 5xx, a lost connection, a timeout."""
    max_concurrency: int = 32
    """Concurrent requests to this base_url, by all judges and processes of the run together."""
    requests_per_minute: int | None = None
    """Limit for the run; None is no limit."""
    tokens_per_minute: int | None = None
    """Limit for the run on prompt and completion tokens; None is no limit."""
    cache: bool = True
    """Cache replies on disk. With a temperature above 0 this freezes the first draw."""
    cache_path: str = ""
    """The cache's file; by default `judge.sqlite`, or `texts.sqlite` for texts, in
    `$HF_RLHF_CACHE` or under the XDG cache folder."""
    price_per_million_input: float = 0.0
    """For the cost in `usage()`, in any currency."""
    price_per_million_output: float = 0.0
    display_name: str = field(default="judge", init=False, repr=False)
    """What messages call the model."""
    _usage: UsageCounter = field(init=False, repr=False, compare=False)
    _cache: DiskCache = field(init=False, repr=False, compare=False)

    kind: ClassVar[Literal["verdict", "text"]]
    """What is cached."""
    endpoint_class: ClassVar[type[Endpoint]] = Endpoint
    probe: ClassVar[Messages] = ({"role": "user", "content": "Say yes."},)
    """What a server that is up answers at once."""

    def __post_init__(self) -> None:
        self.base_url = checked_url(self.base_url, self.display_name)
        self._check()
        self._usage = UsageCounter()
        path = Path(self.cache_path) if self.cache_path else default_path(self.kind)
        self._cache = DiskCache(path, self.kind, self.decode, enabled=self.cache)

    @staticmethod
    def decode(value: Any) -> Any:
        """Return the verdict or text that a JSON value of the cache stands for."""
        raise NotImplementedError

    def describe(self) -> Mapping[str, Any]:
        """Return what the replies depend on, except the messages."""
        server = {"revision": self.revision or None, "base_url": self.base_url}
        return {"model": self.model, **server, **self._sampling()}

    def usage(self) -> Mapping[str, float]:
        """Return totals since construction.

        `calls` counts what was asked for, `cached` what needed no request, `failed` what came to
        nothing, `requests` what was sent, retries included; `cache_errors` above 0 says that the
        cache could not be used. Tokens are the server's.
        """
        return {**self._usage.totals(), "cache_errors": float(self._cache.failures)}

    async def ping(self) -> str:
        """Request one token, once and uncached. Raises JudgeError with the cause and a cure."""
        started = monotonic()
        try:
            async with self.endpoint.connect() as client:
                await self._probe(client, _PING_S)
        except Failed as failure:
            if isinstance(failure, Unavailable) and failure.wrong_address:
                raise JudgeError(failure.wrong_address) from None
            raise JudgeError(
                f"The {self.display_name} at {self.base_url} gave no answer: {failure}. Is the "
                f"server running and base_url right? For vLLM: vllm serve {self.model}"
            ) from None
        return f"{self.model} at {self.base_url} answered in {monotonic() - started:.2f} s"

    @property
    def endpoint(self) -> Endpoint:
        """Where the model is served."""
        return self.endpoint_class(self.base_url, self.model, self.api_key_env, self.display_name)

    @property
    def outage(self) -> Outage:
        """What this process knows of the server."""
        # A router serves many models at one address, each up or down by itself.
        return outage_of(f"{self.base_url} {self.model}")

    def waiting(self, started: float, *, from_start: bool = True) -> Waiting:
        """Return how long a call that began then, by `monotonic()`, waits for the server."""
        server = f"The {self.display_name} {self.model} at {self.base_url}"
        return Waiting(server, self.patience, started, from_start, self.cache)

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the request that sends `messages`."""
        return {**self._sampling(), "messages": [dict(message) for message in messages]}

    def cache_key(self, **request: Any) -> str:
        """Hash the request with the server and the weights, so all that a reply depends on."""
        request |= {"base_url": self.base_url, "revision": self.revision}
        text = json.dumps({"version": _SCHEMA_VERSION, **request}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    async def request_with_retries(
        self, client: "ClientSession", body: Mapping[str, Any], waiting: Waiting
    ) -> Reply:
        """Send a request until it is answered.

        Raises Failed when its own tries run out, and JudgeError for what will not heal or when
        the server is away for too long.
        """
        tries, longest = 0, FIRST_WAIT_S
        while True:
            try:
                return await self._send_through_outages(client, body, waiting)
            except Failed as failure:
                if not failure.again or tries >= self.retries:
                    raise
            await asyncio.sleep(random.uniform(0.0, longest))
            tries, longest = tries + 1, min(2 * longest, LONGEST_WAIT_S)

    async def _send_through_outages(
        self, client: "ClientSession", body: Mapping[str, Any], waiting: Waiting
    ) -> Reply:
        """Send one request, again after each outage. Raises Failed for what is its own fault."""
        while True:
            async with self.outage.turn(waiting) as alone:
                sent = monotonic()
                try:
                    reply = await self._send(client, body, self.timeout)
                except Unavailable as failure:
                    self.outage.check_start(failure, waiting)
                    if not self.outage.failed(failure):
                        raise
                    # Or a question that it never answers would look like an outage for good.
                    silent = alone and isinstance(failure, Silent)
                    if silent and await self._answers_others(client, waiting):
                        raise
                except Failed:
                    self.outage.answered(sent, waiting.server)
                    raise
                else:
                    self.outage.answered(sent, waiting.server)
                    return reply

    async def _answers_others(self, client: "ClientSession", waiting: Waiting) -> bool:
        sent = monotonic()
        try:
            await self._probe(client)
        except Unavailable:
            return False
        except Failed:
            pass  # which is an answer
        self.outage.answered(sent, waiting.server)
        return True

    async def _probe(self, client: "ClientSession", longest: float = _PROBE_S) -> None:
        """Send a request that a server which is up answers at once."""
        limit = {"max_tokens": 1} if self.max_tokens is not None else {}
        await self._send(client, {**self.body(self.probe), **limit}, min(self.timeout, longest))

    async def _send(
        self, client: "ClientSession", body: Mapping[str, Any], timeout: float
    ) -> Reply:
        """Send one request when the limits allow it, and count what it cost."""
        caps = (self.max_concurrency, self.requests_per_minute, self.tokens_per_minute)
        characters = sum(len(message["content"]) for message in body["messages"])
        estimate = characters // _CHARACTERS_PER_TOKEN + body.get("max_tokens", 0)
        async with Limits(self.base_url, *caps).call(estimate) as booking:
            self._usage.add(requests=1)
            reply = await self.endpoint.complete(client, body, timeout)
            booking.tokens = reply.prompt_tokens + reply.completion_tokens or estimate
        cost = (
            reply.prompt_tokens * self.price_per_million_input
            + reply.completion_tokens * self.price_per_million_output
        )
        self._usage.add(
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cost=cost / 1e6,
        )
        return reply

    def _sampling(self) -> dict[str, Any]:
        """Return the fields of a request that say which model draws, and how."""
        names = ("model", "temperature", "max_tokens", "seed", "extra_body")
        fields = {name: getattr(self, name) for name in names}
        return {name: value for name, value in fields.items() if value not in (None, {})}

    def _check(self) -> None:
        self._refuse_secrets()
        self._require("model", bool(self.model.strip()), "a name that the server knows")
        for name in ("timeout", "max_concurrency"):
            self._require(name, 0 < getattr(self, name) < math.inf, "above 0")
        for name in ("max_tokens", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            self._require(name, value is None or value >= 1, "at least 1, or null")
        for name in ("retries", "patience"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "at least 0")
        temperature = self.temperature is None or 0 <= self.temperature < math.inf
        self._require("temperature", temperature, "at least 0, or null")

    def _require(self, setting: str, holds: bool, expected: str) -> None:
        if not holds:
            value = getattr(self, setting)
            raise JudgeError(f"{self.display_name}: {setting} must be {expected}, not {value!r}.")

    def _refuse_secrets(self) -> None:
        written = {"api_key_env": self.api_key_env, "extra_body": self.extra_body}
        for path, problem in misplaced_secrets(leaves(written)):
            setting = ".".join(map(str, path))
            raise JudgeError(f"{self.display_name}: {setting} {problem} {SECRET_HINT}")


def with_more_tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that repeats one whose reply was cut off, with twice the tokens."""
    return {**body, "max_tokens": 2 * body["max_tokens"]} if "max_tokens" in body else {**body}

"""How one model behind an API is asked, whatever it is asked for: caps, repeats, outages, cost.

Judges ask for verdicts (`hf_rlhf.rewards.judges.openai`), writers for texts
(`hf_rlhf.rewards.judges.text_generation`).
"""

import asyncio
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from hf_rlhf.config.values import leaves
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.display_name import DisplayName
from hf_rlhf.rewards.judges.endpoint import Endpoint, Failed, Reply, Silent, Unavailable
from hf_rlhf.rewards.judges.outage import Outage, Waiting, outage_of
from hf_rlhf.rewards.judges.rate_limits import Limits
from hf_rlhf.rewards.judges.usage import UsageCounter
from hf_rlhf.storage.secrets import SECRET_HINT, misplaced_secret

if TYPE_CHECKING:
    from aiohttp import ClientSession

_LETTERS_PER_TOKEN = 3
"""Low for English, so that a booking under the token cap rather errs on the safe side."""
_GREETING_S = 60.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0


class Connection(Protocol):
    """The settings that everything which asks a model has; `OpenAIJudge` says what they mean."""

    model: str
    base_url: str
    api_key_env: str
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    extra_body: dict[str, Any]
    timeout: float
    patience: float
    retries: int
    max_concurrency: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    price_per_million_input: float
    price_per_million_output: float


@dataclass(frozen=True)
class ChatClient:
    """Send requests to one model until they are answered, and count what it costs."""

    settings: Connection
    called: DisplayName
    tally: UsageCounter
    greeting: Mapping[str, Any]
    """The body of a request that a server which is up answers at once."""
    first_wait: float = FIRST_WAIT_S
    """Seconds before a request is repeated, at most; doubled each time."""

    @property
    def endpoint(self) -> Endpoint:
        """Where it is served."""
        settings = self.settings
        return Endpoint(settings.base_url, settings.model, settings.api_key_env, self.called)

    @property
    def outage(self) -> Outage:
        """What this process knows of the server."""
        # A router serves many models at one address, each up or down by itself.
        return outage_of(f"{self.settings.base_url} {self.settings.model}")

    def waiting(self, started: float, *, from_start: bool = True) -> Waiting:
        """Return how long a call that began then, by `monotonic()`, waits for the server."""
        settings = self.settings
        name = f"The {self.called} {settings.model} at {settings.base_url}"
        return Waiting(name, settings.patience, started, from_start, self.called)

    async def ping(self) -> str:
        """Ask for one token. Raises JudgeError with the cause and a cure."""
        started = monotonic()
        settings = self.settings
        try:
            async with self.endpoint.connect() as client:
                await self._greet(client)
        except Failed as failure:
            raise JudgeError(
                f"The {self.called} at {settings.base_url} gave no answer: {failure}. Is the "
                f"server running and {self.called.setting('base_url')} right? For vLLM: vllm serve "
                f"{settings.model}"
            ) from None
        return f"{settings.model} at {settings.base_url} answered in {monotonic() - started:.2f} s"

    async def request_with_retries(
        self, client: "ClientSession", body: Mapping[str, Any], waiting: Waiting
    ) -> Reply:
        """Send a request until it is answered.

        Raises Failed when its own tries run out, and JudgeError for what will not heal or when
        the server is away for too long.
        """
        tries, longest = 0, self.first_wait
        while True:
            try:
                return await self._send_through_outages(client, body, waiting)
            except Failed as failure:
                if not failure.again or tries >= self.settings.retries:
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
                    reply = await self._send(client, body, self.settings.timeout)
                except Unavailable as failure:
                    self.outage.check_start(failure, waiting)
                    if not self.outage.failed(failure):
                        raise
                    # Or a question that it never answers would look like an outage for good.
                    silent = alone and isinstance(failure, Silent)
                    if silent and await self._answers_others(client, waiting):
                        raise
                except Failed:
                    self.outage.answered(sent, waiting.name)
                    raise
                else:
                    self.outage.answered(sent, waiting.name)
                    return reply

    async def _answers_others(self, client: "ClientSession", waiting: Waiting) -> bool:
        sent = monotonic()
        try:
            await self._greet(client)
        except Failed as failure:
            if isinstance(failure, Unavailable):
                return False
        self.outage.answered(sent, waiting.name)
        return True

    async def _greet(self, client: "ClientSession") -> None:
        brief = {"max_tokens": 1} if self.settings.max_tokens is not None else {}
        body = {**self.greeting, **brief}
        await self._send(client, body, min(self.settings.timeout, _GREETING_S))

    async def _send(
        self, client: "ClientSession", body: Mapping[str, Any], timeout: float
    ) -> Reply:
        """Send one request when the caps allow it, and count what it cost."""
        settings = self.settings
        caps = (settings.max_concurrency, settings.requests_per_minute, settings.tokens_per_minute)
        letters = sum(len(message["content"]) for message in body["messages"])
        estimate = letters // _LETTERS_PER_TOKEN + body.get("max_tokens", 0)
        async with Limits(settings.base_url, *caps).call(estimate) as booking:
            self.tally.add(requests=1)
            reply = await self.endpoint.complete(client, body, timeout)
            booking.tokens = reply.prompt_tokens + reply.completion_tokens or estimate
        self.tally.add(
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cost=(
                reply.prompt_tokens * settings.price_per_million_input
                + reply.completion_tokens * settings.price_per_million_output
            )
            / 1e6,
        )
        return reply


def sampling(settings: Connection) -> dict[str, Any]:
    """Return the fields of a request that say which model draws, and how."""
    fields = {
        "model": settings.model,
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
        "extra_body": settings.extra_body,
    }
    return {name: value for name, value in fields.items() if value not in (None, {})}


def with_more_tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that asks again for a reply that was cut off, with twice the tokens."""
    return {**body, "max_tokens": 2 * body["max_tokens"]} if "max_tokens" in body else {**body}


def check(settings: Connection, who: DisplayName, *more: str) -> None:
    """Raise JudgeError for settings that cannot work; `more` must be above 0, too."""
    _refuse_secrets(settings, who)
    if not settings.model.strip():
        name = who.setting("model")
        raise JudgeError(f"{who}: {name} is empty; name a model that the server has.")
    for name in ("timeout", "max_concurrency", *more):
        if not (math.isfinite(getattr(settings, name)) and getattr(settings, name) > 0):
            raise JudgeError(f"{who}: {who.setting(name)} must be above 0.")
    for name in ("max_tokens", "requests_per_minute", "tokens_per_minute"):
        if getattr(settings, name) is not None and getattr(settings, name) < 1:
            raise JudgeError(f"{who}: {who.setting(name)} must be at least 1, or null.")
    for name in ("retries", "patience"):
        if not 0 <= getattr(settings, name) < math.inf:
            raise JudgeError(f"{who}: {who.setting(name)} must be at least 0.")
    if settings.temperature is not None and not 0 <= settings.temperature < math.inf:
        name = who.setting("temperature")
        raise JudgeError(f"{who}: {name} must be at least 0, or null.")


def _refuse_secrets(settings: Connection, who: DisplayName) -> None:
    written = {"api_key_env": settings.api_key_env, "extra_body": settings.extra_body}
    for path, value in leaves(written):
        if what := misplaced_secret(path, value):
            name = ".".join([who.setting(str(path[0])), *map(str, path[1:])])
            raise JudgeError(f"{who}: {name} {what} {SECRET_HINT}")

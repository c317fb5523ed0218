"""Free text from a model behind an OpenAI-compatible API, by the client that judges use.

    def keep(index: int, said: Text | NoText) -> None: ...

    writer = OpenAIText("Qwen/Qwen2.5-7B-Instruct", "http://localhost:8000/v1")
    asyncio.run(writer.write(requests, keep))

Requests are taken as they are needed, so there may be more of them than fit in memory. A text that
cannot be had is a `NoText` with the cause, never an empty or half a text. What will not heal raises
at once, a server that is not there to begin with, too; one that goes down later is waited for, as
in `hf_rlhf.rewards.judges.openai`.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.cache import TEXTS, DiskCache, Keep, default_path, together
from hf_rlhf.rewards.judges.client import ChatClient, check, sampling, with_more_tokens
from hf_rlhf.rewards.judges.display_name import DisplayName
from hf_rlhf.rewards.judges.endpoint import Failed, Reply, checked_url
from hf_rlhf.rewards.judges.outage import Waiting
from hf_rlhf.rewards.judges.usage import UsageCounter

if TYPE_CHECKING:
    from aiohttp import ClientSession

Messages = Sequence[Mapping[str, str]]
"""A conversation: `role` and `content` of each turn."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Text:
    """What a model wrote, and the tokens that it took."""

    content: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class NoText:
    """Why there is no text."""

    cause: Literal["cut off", "empty", "not answered"]
    """`cut off`: it reached `max_tokens` twice. `empty`: nothing but thinking or space.
    `not answered`: the request was refused, or failed as often as it may be repeated."""
    reason: str


OnReply = Callable[[int, Text | NoText], "Messages | None"]
"""Given the number of a request and what came of it, returns None when that is well. For a text
that is not as it should be it returns the conversation by which the same request goes on, with what
is wrong, or an empty one to leave it at that; such a text is not kept in the cache."""


class TextCache(DiskCache[Text | NoText]):
    """Texts by key. What is none is asked for again."""

    table, column = "texts", "text"

    def encode(self, value: Text | NoText) -> str | None:
        """Return a text as JSON, or None for what is none."""
        if isinstance(value, NoText):
            return None
        return json.dumps([value.content, value.prompt_tokens, value.completion_tokens])

    def decode(self, remaining: str) -> Text:
        """Undo `encode`. Raises ValueError or TypeError for what it did not make."""
        content, prompt_tokens, completion_tokens = json.loads(remaining)
        if not isinstance(content, str) or not content.strip():
            raise ValueError("it holds a text that is none")
        return Text(content, prompt_tokens, completion_tokens)


@dataclass
class OpenAIText:
    """Ask a language model behind an API like OpenAI's for texts. Picklable; it holds no key.

    The fields are those of `hf_rlhf.rewards.judges.openai.OpenAIJudge` and mean the same. Raises
    JudgeError for settings that cannot work.
    """

    model: str
    base_url: str = "http://localhost:8000/v1"
    api_key_env: str = "OPENAI_API_KEY"
    revision: str = ""
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    """Limit on a reply, thinking included. One cut off here is asked for again with twice as many
    tokens, once."""
    seed: int | None = 0
    extra_body: dict[str, Any] = field(default_factory=dict)
    timeout: float = 300.0
    patience: float = 900.0
    retries: int = 5
    max_concurrency: int = 100
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    cache: bool = True
    cache_path: str = ""
    """The cache's file; by default `texts.sqlite` beside the one of verdicts."""
    price_per_million_input: float = 0.0
    price_per_million_output: float = 0.0
    called: DisplayName = DisplayName("model")
    _tally: UsageCounter = field(init=False, repr=False, compare=False)
    _cache: TextCache | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.base_url = checked_url(self.base_url, self.called)
        check(self, self.called)
        self._tally = UsageCounter(1)
        path = Path(self.cache_path) if self.cache_path else default_path(TEXTS)
        self._cache = TextCache(path) if self.cache else None

    async def write(self, requests: Iterable[Messages], on_reply: OnReply) -> None:
        """Send each request, `max_concurrency` at a time, and hand over what comes as it comes.

        A request that is in the cache is not sent. The first that is sent is waited for before
        others are, so that a refused key costs one request. Raises JudgeError for what will not
        heal, for a server that is not there at the first request, or later is down for longer than
        `patience`; and whatever `requests` or `on_reply` raise. What was handed over before is in
        the cache as well.
        """
        started = monotonic()
        asking = self._asking
        line = _Line(requests, self.max_concurrency, self._known)
        waiting = asking.waiting(started, from_start=False)
        answered = asyncio.Event()

        async def work(client: "ClientSession", keep: Keep[Text | NoText], first: bool) -> None:
            if not first:
                await answered.wait()
            while (request := line.next()) is not None:
                text = request.known
                if text is None:
                    text = await _ask(asking, client, request.body, waiting)
                    answered.set()
                self._tally.add(
                    calls=1,
                    cached=request.known is not None,
                    failed=isinstance(text, NoText),
                )
                further = on_reply(request.index, text)
                if further:
                    line.again(request.index, further)
                elif further is None and request.known is None:
                    keep(request.key, text)
            answered.set()

        try:
            with self._cache.writing() if self._cache else nullcontext(_forget) as write:
                async with (
                    together(write) as keep,
                    asking.endpoint.connect() as client,
                    asyncio.TaskGroup() as group,
                ):
                    for number in range(self.max_concurrency):
                        group.create_task(work(client, keep, first=number == 0))
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self._tally.add(seconds=monotonic() - started)

    def key(self, messages: Messages) -> str:
        """Hash all that a text depends on: the server, the model, how it draws, the words."""
        request = {
            "version": _VERSION,
            "base_url": self.base_url,
            "revision": self.revision,
            "body": self._body(messages),
        }
        text = json.dumps(request, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def describe(self) -> Mapping[str, Any]:
        """Return what the texts depend on, the words apart."""
        by_name = {"revision": self.revision or None, "base_url": self.base_url}
        return {**by_name, **sampling(self)}

    def usage(self) -> Mapping[str, float]:
        """Return totals since construction.

        `calls` counts requests and their continuations, `cached` those not sent, `failed` those
        that ended in `NoText`, `requests` what was sent, repeats included. Tokens are the server's.
        """
        trouble = self._cache.trouble if self._cache else 0
        return {**self._tally.totals(), "cache_errors": float(trouble)}

    async def ping(self) -> str:
        """Ask for one token, without the cache. Raises JudgeError with the cause and a cure."""
        return await self._asking.ping()

    @property
    def _asking(self) -> ChatClient:
        greeting = self._body([{"role": "user", "content": "Say yes."}])
        return ChatClient(self, self.called, self._tally, greeting)

    def _body(self, messages: Messages) -> dict[str, Any]:
        return {**sampling(self), "messages": [dict(message) for message in messages]}

    def _known(self, some: Sequence[tuple[int, Messages]]) -> "list[_Request]":
        keys = [self.key(messages) for _, messages in some]
        known = self._cache.read(keys) if self._cache and keys else {}
        return [
            _Request(index, key, self._body(messages), known.get(key))
            for (index, messages), key in zip(some, keys, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Request:
    index: int
    key: str
    body: dict[str, Any]
    known: Text | NoText | None


class _Line:
    """The requests that wait: looked up in the cache some at a time, continuations first."""

    def __init__(
        self,
        requests: Iterable[Messages],
        ahead: int,
        known: Callable[[Sequence[tuple[int, Messages]]], list[_Request]],
    ) -> None:
        self._requests: Iterator[tuple[int, Messages]] = enumerate(requests)
        self._ahead = ahead
        self._known = known
        self._waiting: deque[_Request] = deque()

    def next(self) -> _Request | None:
        if not self._waiting:
            self._waiting.extend(self._known(list(islice(self._requests, self._ahead))))
        return self._waiting.popleft() if self._waiting else None

    def again(self, index: int, messages: Messages) -> None:
        self._waiting.extendleft(self._known([(index, messages)]))


async def _ask(
    asking: ChatClient, client: "ClientSession", body: Mapping[str, Any], waiting: Waiting
) -> Text | NoText:
    try:
        reply = await asking.request_with_retries(client, body, waiting)
        if reply.truncated:
            reply = await asking.request_with_retries(client, with_more_tokens(body), waiting)
    except Failed as failure:
        return NoText("not answered", f"The {asking.called} gave no text: {failure}.")
    return _text(reply, asking.called)


def _text(reply: Reply, called: DisplayName) -> Text | NoText:
    off = called.setting("extra_body")
    thought = f" inside its thinking, which may be turned off by {off}" * reply.only_thought
    if reply.truncated:
        limit = called.setting("max_tokens")
        return NoText("cut off", f"The text was cut off at {limit}{thought}.")
    if reply.only_thought or not reply.text.strip():
        return NoText(
            "empty", "The reply holds nothing but thinking." if thought else "It is empty."
        )
    # What cannot be written as UTF-8 must not break whatever the text is written to.
    content = reply.text.encode("utf-8", "replace").decode("utf-8")
    return Text(content, reply.prompt_tokens, reply.completion_tokens)


def _first(errors: ExceptionGroup[Exception]) -> BaseException:
    """Return one cause: of what will not heal, if there is such."""
    fatal = errors.subgroup(JudgeError) or errors
    cause: BaseException = fatal
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


def _forget(texts: Mapping[str, Text | NoText]) -> None:
    """Keep nothing: there is no cache."""

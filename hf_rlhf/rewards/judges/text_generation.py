"""Generate free text with a model behind an OpenAI-compatible API, by the judges' client.

    def on_reply(index: int, reply: Text | NoText) -> None: ...

    writer = OpenAIText("Qwen/Qwen2.5-7B-Instruct", "http://localhost:8000/v1")
    asyncio.run(writer.write(requests, on_reply))

Requests are read lazily, so they need not fit in memory. A request without a text gets a `NoText`
with the cause, never an empty or partial text. A refused request or a server that never answered
raises at once; a server that goes down later is waited for.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.rewards.judges.cache import Keep
from hf_rlhf.rewards.judges.client import CUT_OFF, ChatClient, Messages, Reply, with_more_tokens
from hf_rlhf.rewards.judges.failures import Failed

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class Text:
    """A generated text and its number of tokens."""

    content: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class NoText:
    """Why there is no text."""

    cause: Literal["cut off", "empty", "not answered"]
    """`cut off`: it reached `max_tokens` twice. `empty`: only thinking or white space. `not
    answered`: the request was refused, or all retries failed."""
    reason: str


OnReply = Callable[[int, Text | NoText], Messages | None]
"""Takes the number of a request and its reply; returns None to accept it. To reject a text it
returns the conversation that continues the request, or an empty list to stop. A rejected text is
not cached."""


@dataclass(frozen=True, slots=True)
class _Request:
    index: int
    key: str
    body: dict[str, Any]
    cached: Text | None


@dataclass
class OpenAIText(ChatClient):
    """Generate texts through an OpenAI-compatible API. Picklable; it holds no key.

    Raises JudgeError for settings that cannot work.
    """

    max_tokens: int | None = 2048
    timeout: float = 300.0
    max_concurrency: int = 100
    display_name: str = "model"

    waits_for_start = False

    @staticmethod
    def decode(value: Any) -> Text:
        """Return the text of a JSON value. Raises ValueError or TypeError."""
        text = Text(*value)
        if not isinstance(text.content, str) or not text.content.strip():
            raise ValueError("it holds an empty text")
        return text

    async def write(self, requests: Iterable[Messages], on_reply: OnReply) -> None:
        """Send the requests, `max_concurrency` at a time, and pass on each reply as it arrives.

        Cached requests are not sent. The first request is answered before others are sent, so that
        a refused key costs a single request. Raises JudgeError if the server refuses a request,
        does not listen at the first request, or is later down for longer than `patience`; and the
        errors of `requests` and `on_reply`. Texts that were passed on are in the cache.
        """
        numbered = enumerate(requests)
        queue: deque[_Request] = deque()
        answered = asyncio.Event()

        def next_request() -> _Request | None:
            if not queue:
                queue.extend(self._look_up(list(islice(numbered, self.max_concurrency))))
            return queue.popleft() if queue else None

        async def work(client: "AsyncOpenAI", keep: Keep) -> None:
            while (request := next_request()) is not None:
                reply: Text | NoText | None = request.cached
                if reply is None:
                    reply = await self._ask(client, request.body)
                    answered.set()
                failed = isinstance(reply, NoText)
                self.count(calls=1, cached=request.cached is not None, failed=failed)
                continuation = on_reply(request.index, reply)
                if continuation:
                    queue.extendleft(self._look_up([(request.index, continuation)]))
                elif continuation is None and request.cached is None and not failed:
                    keep(request.key, astuple(reply))

        async with self.session() as (client, group, keep):
            first = group.create_task(work(client, keep))
            first.add_done_callback(lambda _: answered.set())
            await answered.wait()
            for _ in range(self.max_concurrency - 1):
                group.create_task(work(client, keep))

    def key(self, messages: Messages) -> str:
        """Hash everything that a text depends on: server, weights, sampling, messages."""
        return self.cache_key(body=self.body(messages))

    def _look_up(self, numbered: Sequence[tuple[int, Messages]]) -> list[_Request]:
        keys = [self.key(messages) for _, messages in numbered]
        cached = self._cache.read(keys) if keys else {}
        return [
            _Request(index, key, self.body(messages), cached.get(key))
            for (index, messages), key in zip(numbered, keys, strict=True)
        ]

    async def _ask(self, client: "AsyncOpenAI", body: Mapping[str, Any]) -> Text | NoText:
        try:
            reply = await self.request_with_retries(client, body)
            if reply.truncated:
                reply = await self.request_with_retries(client, with_more_tokens(body))
        except Failed as failure:
            return NoText("not answered", f"The {self.display_name} gave no text: {failure}.")
        return self._text(reply)

    def _text(self, reply: Reply) -> Text | NoText:
        if reply.truncated:
            return NoText("cut off", f"The text was {CUT_OFF}")
        if not reply.text.strip():
            return NoText("empty", "The reply is nothing but thinking or white space.")
        # Characters that UTF-8 cannot encode must not break the output file.
        content = reply.text.encode("utf-8", "replace").decode("utf-8")
        return Text(content, reply.prompt_tokens, reply.completion_tokens)

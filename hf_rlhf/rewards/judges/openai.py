"""A judge behind an OpenAI-compatible API: vLLM in production, or any server that speaks it.

A verdict that cannot be had, for whatever reason, is None with the reason, never a number. What
will not heal (a refused key, an unknown model, a wrong address) raises at once, and so does a
label whose questions fail too often. A server that is down is waited for: neither a number nor a
None comes of an outage.
"""

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import prompts
from hf_rlhf.rewards.judges.cache import SCHEMA_VERSION, Keep, VerdictCache, default_path, together
from hf_rlhf.rewards.judges.client import (
    FIRST_WAIT_S,
    ChatClient,
    check,
    sampling,
    with_more_tokens,
)
from hf_rlhf.rewards.judges.display_name import JUDGE, DisplayName
from hf_rlhf.rewards.judges.endpoint import Failed, Reply, checked_url
from hf_rlhf.rewards.judges.outage import Waiting
from hf_rlhf.rewards.judges.usage import UsageCounter
from hf_rlhf.rewards.judges.verdicts import Malformed, read_verdict

if TYPE_CHECKING:
    from aiohttp import ClientSession

_REPLY_SHOWN = 2000


@dataclass
class OpenAIJudge:
    """Ask a language model behind an API like OpenAI's: vLLM, or a provider's.

    Questions that are equal in one call are asked once, and a verdict in the cache is not asked
    for again. Picklable; it holds no key and no connection. Raises JudgeError for settings that
    cannot work.
    """

    model: str
    """The name under which the server knows the model."""
    base_url: str = "http://localhost:8000/v1"
    """Where the API is. It may not carry a key; link-local and metadata addresses are refused."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. The default one may be unset: local servers
    need none."""
    revision: str = ""
    """Which weights are served, for the card and the cache; the API cannot tell."""
    temperature: float | None = 0.0
    """None leaves it out, for models that refuse it."""
    max_tokens: int | None = 512
    """Limit on a reply, thinking included. A reply cut off here is asked for again with twice
    as many, once."""
    seed: int | None = 0
    structured: bool = True
    """Send the verdict's JSON schema as `response_format`. Replies are checked just the same."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request, e.g. `{chat_template_kwargs: {enable_thinking: false}}`."""
    timeout: float = 120.0
    """Seconds for one request."""
    deadline: float = 600.0
    """Seconds for one call of `judge`: what is not answered by then gets None. Time in which the
    server answers nobody, or asks to be left alone, does not count."""
    patience: float = 900.0
    """Seconds to wait for a server that is down (no connection, 502, 503, 504, no answer to
    anybody) or asks to be left alone (429, Retry-After); then the run stops. In a distributed run
    the other processes wait too: keep it below the trainer's `ddp_timeout` (1800)."""
    retries: int = 5
    """How often a request is sent again that fails while the server answers others: 408, 409,
    other 5xx, a lost connection, a timeout."""
    max_concurrency: int = 32
    """Requests under way at once, on this machine, by all who use this base_url."""
    requests_per_minute: int | None = None
    """Cap for this machine; None is no cap."""
    tokens_per_minute: int | None = None
    """Cap for this machine on prompt and completion tokens; None is no cap."""
    max_failure_rate: float = 0.5
    """Above this share of None among the last `failure_window` questions of a label: stop."""
    failure_window: int = 64
    cache: bool = True
    """Keep verdicts on disk. With a temperature above 0 this freezes the first draw."""
    cache_path: str = ""
    """The cache's file; by default `$HF_RLHF_CACHE/judge.sqlite`, under the XDG cache folder."""
    price_per_million_input: float = 0.0
    """For the cost in `usage()`; any currency."""
    price_per_million_output: float = 0.0
    _tally: UsageCounter = field(init=False, repr=False, compare=False)
    _cache: VerdictCache | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.base_url = checked_url(self.base_url)
        check(self, DisplayName("openai judge"), "deadline", "failure_window")
        if not 0 <= self.max_failure_rate <= 1:
            raise JudgeError("openai judge: max_failure_rate is a share, from 0 to 1.")
        self._tally = UsageCounter(self.failure_window)
        path = Path(self.cache_path) if self.cache_path else default_path()
        self._cache = VerdictCache(path) if self.cache else None

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order, within `deadline` seconds of a server that answers.

        Raises JudgeError for what will not heal, for a server that is down for longer than
        `patience`, and above `max_failure_rate`.
        """
        started = monotonic()
        bodies = [self._body(prompts.messages_for(question)) for question in questions]
        keys = [self._key(body) for body in bodies]
        answers = self._cache.read(keys) if self._cache else {}
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in answers}
        try:
            if missing:
                answers |= await self._ask_all(missing, started)
        finally:
            self._tally.add(seconds=monotonic() - started)
        verdicts = [answers[key] for key in keys]
        failed = sum(verdict.score is None for verdict in verdicts)
        self._tally.add(calls=len(keys), cached=len(keys) - len(missing), failed=failed)
        self._tally.check(questions, verdicts, self.max_failure_rate)
        return verdicts

    def describe(self) -> Mapping[str, Any]:
        """Return what the verdicts depend on."""
        return {
            "judge": "openai",
            "model": self.model,
            "revision": self.revision or None,
            "base_url": self.base_url,
            "prompt_sha256": prompts.prompt_sha256(),
            "scale": f"0 to {prompts.LEVELS}, read as 0 to 1",
            **{name: value for name, value in sampling(self).items() if name != "model"},
            "structured": self.structured,
        }

    def usage(self) -> Mapping[str, float]:
        """Return totals since construction.

        `calls` counts questions, `cached` those not sent (known, or equal to another in the same
        call), `failed` those that got None, `requests` what was sent, repeats included;
        `cache_errors` above 0 says that the cache could not be used. Tokens are the server's.
        """
        trouble = self._cache.trouble if self._cache else 0
        return {**self._tally.totals(), "cache_errors": float(trouble)}

    async def ping(self) -> str:
        """Ask for one token, without the cache. Raises JudgeError with the cause and a cure."""
        return await self._asking.ping()

    @property
    def _asking(self) -> ChatClient:
        greeting = self._body(prompts.messages_for(Question("quality", "Yes.", "Says yes.")))
        return ChatClient(self, JUDGE, self._tally, greeting, FIRST_WAIT_S)

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {**sampling(self), "messages": messages}
        if self.structured:
            schema = {"name": "verdict", "strict": True, "schema": prompts.SCHEMA}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _key(self, body: Mapping[str, Any]) -> str:
        """Hash everything that a verdict depends on."""
        request = {
            "version": SCHEMA_VERSION,
            "base_url": self.base_url,
            "revision": self.revision,
            "repair": prompts.REPAIR,
            "body": body,
        }
        text = json.dumps(request, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    async def _ask_all(
        self, bodies: Mapping[str, dict[str, Any]], started: float
    ) -> dict[str, Verdict]:
        """Ask for each body's verdict; what is not there at the deadline is None."""
        late = Verdict(None, f"No answer within the deadline of {self.deadline:g} s.")
        answers = dict.fromkeys(bodies, late)
        # The machine's cap is taken per request; this one only keeps the waiting line short.
        turn = asyncio.Semaphore(self.max_concurrency)
        asking, waiting = self._asking, self._asking.waiting(started)

        async def ask(client: "ClientSession", key: str, keep: Keep[Verdict]) -> None:
            async with turn:
                answers[key] = await _ask(asking, client, bodies[key], waiting)
            keep(key, answers[key])

        async def answer_all() -> None:
            with self._cache.writing() if self._cache else nullcontext(_forget) as write:
                async with (
                    together(write) as keep,
                    asking.endpoint.connect() as client,
                    asyncio.TaskGroup() as group,
                ):
                    for key in bodies:
                        group.create_task(ask(client, key, keep))

        try:
            await self._until_deadline(answer_all(), started)
        except TimeoutError:
            return answers  # What is unanswered says so in its verdict.
        except ExceptionGroup as errors:
            fatal, other = errors.split(JudgeError)
            if fatal and not other:
                raise fatal.exceptions[0] from None
            raise
        return answers

    async def _until_deadline(self, work: Coroutine[Any, Any, None], started: float) -> None:
        """Await `work`. Raises TimeoutError `deadline` seconds of a working server after `started`.

        The end moves on while the server is down, so it is looked for anew each time it is reached.
        """
        outage = self._asking.outage
        lost_before = outage.lost()

        def left() -> float:
            return started + self.deadline + outage.lost() - lost_before - monotonic()

        task = asyncio.ensure_future(work)
        try:
            while (seconds := left()) > 0:
                done, _ = await asyncio.wait([task], timeout=max(seconds, 0.05))
                if done:
                    return await task
            raise TimeoutError
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _ask(
    asking: ChatClient, client: "ClientSession", body: dict[str, Any], waiting: Waiting
) -> Verdict:
    """Return a verdict; a malformed reply is sent back once to be mended."""
    try:
        reply = await asking.request_with_retries(client, body, waiting)
        try:
            return _verdict(reply)
        except Malformed as malformed:
            mended = _repair(body, reply, str(malformed))
        return _verdict(await asking.request_with_retries(client, mended, waiting))
    except Malformed as malformed:
        return Verdict(None, f"The judge's reply was not a verdict: {malformed}")
    except Failed as failure:
        return Verdict(None, f"The judge could not be asked: {failure}")


def _forget(verdicts: Mapping[str, Verdict]) -> None:
    """Keep nothing: there is no cache."""


def _verdict(reply: Reply) -> Verdict:
    if reply.truncated:
        where = "inside the model's thinking, which may be turned off by extra_body"
        raise Malformed(
            f"it was cut off at max_tokens{', ' + where if reply.only_thought else ''}."
        )
    return Verdict(*read_verdict(reply.text))


def _repair(body: Mapping[str, Any], reply: Reply, cause: str) -> dict[str, Any]:
    """Return the request that asks for a malformed verdict again, saying what was wrong."""
    if reply.truncated:
        # What was cut off is of no use to the model; what it needs is room.
        return with_more_tokens(body)
    displayed = prompts.escaped(reply.text[:_REPLY_SHOWN])  # it may quote what the policy wrote
    message = {"role": "assistant", "content": displayed or "(nothing)"}
    again = {"role": "user", "content": prompts.REPAIR.format(cause=cause)}
    return {**body, "messages": [*body["messages"], message, again]}

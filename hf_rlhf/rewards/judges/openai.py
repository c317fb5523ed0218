"""A judge behind an OpenAI-compatible API: vLLM in production, or any server that speaks it.

A verdict that cannot be had, for whatever reason, is None with the reason, never a number. What
will not heal (a refused key, an unknown model, a wrong address) raises at once, and so does a
label whose questions fail too often. A server that is down is waited for: neither a number nor a
None comes of an outage.
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import prompts
from hf_rlhf.rewards.judges.cache import Keep
from hf_rlhf.rewards.judges.client import ChatClient, Messages, with_more_tokens
from hf_rlhf.rewards.judges.endpoint import Failed, Reply
from hf_rlhf.rewards.judges.outage import Waiting
from hf_rlhf.rewards.judges.usage import FailureWindow
from hf_rlhf.rewards.judges.verdicts import Malformed, read_verdict

if TYPE_CHECKING:
    from aiohttp import ClientSession

_QUOTED_CHARACTERS = 2000
"""Of a malformed reply, in the request to repair it."""


@dataclass
class OpenAIJudge(ChatClient):
    """Ask a language model through an OpenAI-compatible API: vLLM, or a provider's.

    Equal questions of one call are sent once; those with a cached verdict are not sent.
    Picklable; it holds no key and no connection. Raises JudgeError for settings that cannot work.
    """

    structured: bool = True
    """Send the verdict's JSON schema as `response_format`. Replies are always checked."""
    deadline: float = 600.0
    """Seconds for one call of `judge`; questions without an answer by then get None. Outages,
    and pauses that the server asks for, do not count."""
    max_failure_rate: float = 0.5
    """The run stops above this share of None in a label's last `failure_window` questions."""
    failure_window: int = 64
    _failures: FailureWindow = field(init=False, repr=False, compare=False)

    kind = "verdict"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("deadline", "failure_window"):
            self._require(name, 0 < getattr(self, name) < math.inf, "above 0")
        self._require("max_failure_rate", 0 <= self.max_failure_rate <= 1, "from 0 to 1")
        self._failures = FailureWindow(self.failure_window, self.max_failure_rate)

    @staticmethod
    def decode(value: Any) -> Verdict:
        """Return the verdict that a JSON value stands for. Raises ValueError or TypeError."""
        verdict = Verdict(**value)
        if verdict.score is None or not 0.0 <= verdict.score <= 1.0:
            raise ValueError(f"it holds the score {verdict.score!r}, which is not from 0 to 1")
        return verdict

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order, within `deadline` seconds of a server that answers.

        Raises JudgeError for what will not heal, for a server that is down for longer than
        `patience`, and above `max_failure_rate`.
        """
        started = monotonic()
        bodies = [self.body(prompts.messages_for(question)) for question in questions]
        keys = [self.cache_key(repair=prompts.REPAIR, body=body) for body in bodies]
        verdicts = self._cache.read(keys)
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in verdicts}
        try:
            if missing:
                verdicts |= await self._ask_all(missing, started)
        finally:
            self._usage.add(seconds=monotonic() - started)
        answers = [verdicts[key] for key in keys]
        failed = sum(verdict.score is None for verdict in answers)
        self._usage.add(calls=len(keys), cached=len(keys) - len(missing), failed=failed)
        self._failures.add(questions, answers)
        return answers

    def describe(self) -> Mapping[str, Any]:
        """Return what the verdicts depend on."""
        return {
            "judge": "openai",
            **super().describe(),
            "prompt_sha256": prompts.prompt_sha256(),
            "scale": f"0 to {prompts.LEVELS}, read as 0 to 1",
            "structured": self.structured,
        }

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the request that sends `messages`, with the schema of a verdict."""
        body = super().body(messages)
        if self.structured:
            schema = {"name": "verdict", "strict": True, "schema": prompts.SCHEMA}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    async def _ask_all(
        self, bodies: Mapping[str, dict[str, Any]], started: float
    ) -> dict[str, Verdict]:
        """Return each body's verdict; what is not there at the deadline is None."""
        late = Verdict(None, f"No answer within the deadline of {self.deadline:g} s.")
        verdicts = dict.fromkeys(bodies, late)
        # The run's cap is taken per request; this one only keeps the waiting line short.
        turn = asyncio.Semaphore(self.max_concurrency)
        waiting = self.waiting(started)

        async def ask(client: "ClientSession", key: str, keep: Keep) -> None:
            async with turn:
                verdicts[key] = verdict = await self._ask(client, bodies[key], waiting)
            if verdict.score is not None:
                keep(key, asdict(verdict))

        async def ask_all() -> None:
            async with (
                self._cache.writer() as keep,
                self.endpoint.connect() as client,
                asyncio.TaskGroup() as group,
            ):
                for key in bodies:
                    group.create_task(ask(client, key, keep))

        try:
            await self._until_deadline(ask_all(), started)
        except TimeoutError:
            return verdicts  # What is unanswered says so in its verdict.
        except ExceptionGroup as errors:
            fatal, other = errors.split(JudgeError)
            if fatal and not other:
                raise fatal.exceptions[0] from None
            raise
        return verdicts

    async def _until_deadline(self, work: Coroutine[Any, Any, None], started: float) -> None:
        """Await `work`. Raises TimeoutError `deadline` seconds of a working server after `started`.

        The end moves on while the server is down, so it is looked for anew each time it is reached.
        """
        lost_before = self.outage.lost()

        def time_left() -> float:
            return started + self.deadline + self.outage.lost() - lost_before - monotonic()

        task = asyncio.ensure_future(work)
        try:
            while (seconds := time_left()) > 0:
                done, _ = await asyncio.wait([task], timeout=max(seconds, 0.05))
                if done:
                    return await task
            raise TimeoutError
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _ask(
        self, client: "ClientSession", body: dict[str, Any], waiting: Waiting
    ) -> Verdict:
        """Return a verdict; a malformed reply is sent back once to be repaired."""
        try:
            reply = await self.request_with_retries(client, body, waiting)
            try:
                return _verdict(reply)
            except Malformed as malformed:
                body = _repair(body, reply, str(malformed))
            return _verdict(await self.request_with_retries(client, body, waiting))
        except Malformed as malformed:
            return Verdict(None, f"The judge's reply was not a verdict: {malformed}")
        except Failed as failure:
            return Verdict(None, f"The judge gave no answer: {failure}")


def _verdict(reply: Reply) -> Verdict:
    hint = ", inside its thinking, which extra_body may turn off" * reply.only_thought
    if reply.truncated:
        raise Malformed(f"it was cut off at max_tokens{hint}.")
    if reply.only_thought:
        raise Malformed(f"it ended{hint}.")
    return Verdict(*read_verdict(reply.text))


def _repair(body: Mapping[str, Any], reply: Reply, cause: str) -> dict[str, Any]:
    """Return the request that asks for a malformed verdict again, saying what was wrong."""
    if reply.truncated:
        # What was cut off is of no use to the model; what it needs is room.
        return with_more_tokens(body)
    quoted = prompts.escaped(reply.text[:_QUOTED_CHARACTERS])  # the policy's words may be in it
    message = {"role": "assistant", "content": quoted or "(nothing)"}
    again = {"role": "user", "content": prompts.REPAIR.format(cause=cause)}
    return {**body, "messages": [*body["messages"], message, again]}

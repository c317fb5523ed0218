"""A judge behind an OpenAI-compatible API: vLLM or any other server.

A question without a verdict gets None with the reason, never a number. A refused request (key,
model, address) raises at once, and so does a label whose questions fail too often. A server that is
down is waited for: an outage causes neither a number nor None.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import prompts
from hf_rlhf.rewards.judges.cache import Keep
from hf_rlhf.rewards.judges.client import CUT_OFF, ChatClient, Messages, Reply, with_more_tokens
from hf_rlhf.rewards.judges.failures import Failed
from hf_rlhf.rewards.judges.verdicts import Malformed, read_verdict

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_QUOTED_CHARACTERS = 2000
"""Characters of a malformed reply in the request to repair it."""


@dataclass
class OpenAIJudge(ChatClient):
    """Ask a language model through an OpenAI-compatible API: vLLM, or a provider.

    Equal questions of a call are sent once; cached questions are not sent. Picklable; it holds no
    key and no connection. Raises JudgeError for settings that cannot work.
    """

    structured: bool = True
    """Send the verdict's JSON schema as `response_format`. Replies are always checked."""
    max_failure_rate: float = 0.5
    """Stop the run above this share of None in a label's last `failure_window` questions."""
    failure_window: int = 64
    _failed: dict[str, deque[bool]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Whether the last questions failed, by label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("failure_window", self.failure_window >= 1, "at least 1")
        self._require("max_failure_rate", 0 <= self.max_failure_rate <= 1, "from 0 to 1")

    @staticmethod
    def decode(value: Any) -> Verdict:
        """Return the verdict of a JSON value. Raises ValueError or TypeError."""
        verdict = Verdict(**value)
        if verdict.score is None or not 0.0 <= verdict.score <= 1.0:
            raise ValueError(f"it holds the score {verdict.score!r}, which is not from 0 to 1")
        return verdict

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order.

        Raises JudgeError if the server refuses a request or is down for longer than `patience`, and
        above `max_failure_rate`.
        """
        bodies = [self.body(prompts.messages_for(question)) for question in questions]
        keys = [self.cache_key(repair=prompts.REPAIR, body=body) for body in bodies]
        verdicts = self._cache.read(keys)
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in verdicts}
        turn = asyncio.Semaphore(self.max_concurrency)  # or all would wait for retries at once

        async def ask(client: "AsyncOpenAI", key: str, keep: Keep) -> None:
            async with turn:
                verdicts[key] = verdict = await self._ask(client, missing[key])
            if verdict.score is not None:
                keep(key, asdict(verdict))

        if missing:
            async with self.session() as (client, group, keep):
                for key in missing:
                    group.create_task(ask(client, key, keep))
        answers = [verdicts[key] for key in keys]
        failed = sum(verdict.score is None for verdict in answers)
        self.count(calls=len(keys), cached=len(keys) - len(missing), failed=failed)
        self._check_failures(questions, answers)
        return answers

    def _check_failures(self, questions: Sequence[Question], verdicts: Sequence[Verdict]) -> None:
        """Raise JudgeError if too many of the last questions of a label failed."""
        size, causes = self.failure_window, {}
        for question, verdict in zip(questions, verdicts, strict=True):
            window = self._failed.setdefault(question.label, deque(maxlen=size))
            window.append(verdict.score is None)
            if verdict.score is None:
                causes[question.label] = window, verdict.reason
        for label, (window, cause) in causes.items():
            rate = sum(window) / size
            if len(window) == size and rate > self.max_failure_rate:
                raise JudgeError(
                    f"The judge failed on {rate:.0%} of the last {size} questions of {label!r}, "
                    f"more than max_failure_rate {self.max_failure_rate:.0%}. Last cause: {cause}"
                )

    def describe(self) -> Mapping[str, Any]:
        """Return all settings that verdicts depend on."""
        return {
            "judge": "openai",
            **super().describe(),
            "prompt_sha256": prompts.prompt_sha256(),
            "scale": f"0 to {prompts.LEVELS}, read as 0 to 1",
            "structured": self.structured,
        }

    def body(self, messages: Messages) -> dict[str, Any]:
        """Return the request for `messages`, with the schema of a verdict."""
        body = super().body(messages)
        if self.structured:
            schema = {"name": "verdict", "strict": True, "schema": prompts.SCHEMA}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    async def _ask(self, client: "AsyncOpenAI", body: dict[str, Any]) -> Verdict:
        """Return a verdict; a malformed reply is sent back once for repair."""
        try:
            reply = await self.request_with_retries(client, body)
            try:
                return _verdict(reply)
            except Malformed as malformed:
                body = _repair(body, reply, str(malformed))
            return _verdict(await self.request_with_retries(client, body))
        except Malformed as malformed:
            return Verdict(None, f"The judge's reply was not a verdict: {malformed}")
        except Failed as failure:
            return Verdict(None, f"The judge gave no answer: {failure}")


def _verdict(reply: Reply) -> Verdict:
    if reply.truncated:
        raise Malformed(f"it was {CUT_OFF}")
    return Verdict(*read_verdict(reply.text))


def _repair(body: Mapping[str, Any], reply: Reply, cause: str) -> dict[str, Any]:
    """Return a request to repair a malformed verdict, with the reason."""
    if reply.truncated:
        # The truncated reply does not help the model; it needs more tokens.
        return with_more_tokens(body)
    quoted = prompts.escaped(reply.text[:_QUOTED_CHARACTERS])  # it may quote the policy
    message = {"role": "assistant", "content": quoted or "(nothing)"}
    again = {"role": "user", "content": prompts.REPAIR.format(cause=cause)}
    return {**body, "messages": [*body["messages"], message, again]}

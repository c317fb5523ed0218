"""Create samples of a trace: multi-turn conversations, and steps. Pure functions.

A trace with N groups of results has N + 1 cuts: the question, and each group. The agent's next text
is the reply to train on. Each cut makes a sample or is counted by a reason: `trailing_results` if
nothing follows, and `empty_reply` if only unknown steps do.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass

from hf_rlhf_rollouts import Answer, Reasoning, Rollout, Search, Unknown
from hf_rlhf_traces.answers import right_answers
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Chat, Multiturn, Origin, Step
from hf_rlhf_traces.trace import question_key, turns

_CONVERSATION = -1
"""The draw index of the conversation, as opposed to its turns."""


@dataclass(frozen=True, slots=True)
class _Turns:
    """The turns of a trace as text, "" for none."""

    key: str
    """The question's text."""
    replies: list[str]
    results: list[str]
    acts: list[bool]
    """Whether it searches or answers."""

    @classmethod
    def of(cls, trace: Rollout, form: Format) -> "_Turns":
        parts = turns(trace.steps)
        replies = [form.turn_text(turn.actions) for turn in parts]
        acts = [any(isinstance(step, (Search, Answer)) for step in turn.actions) for turn in parts]
        return cls(
            question_key(trace.question),
            replies,
            [form.results_text(turn.results) for turn in parts],
            acts,
        )

    @property
    def groups(self) -> int:
        return sum(map(bool, self.results))

    def counts(self, trace: Rollout, first: int) -> Counter[str]:
        """Count the cuts from `first` on, by outcome."""
        empty = sum(not reply for reply in self.replies[first:])
        trailing = bool(self.results and self.results[-1])
        counts = Counter(
            cuts=self.groups + 1 - first,
            samples=sum(map(bool, self.replies[first:])),
            empty_reply=empty,
            trailing_results=int(trailing),
            no_action=sum(
                bool(reply) and not acts
                for reply, acts in zip(self.replies[first:], self.acts[first:], strict=True)
            ),
            unknown_steps=sum(isinstance(step, Unknown) for step in trace.steps),
        )
        if not self.replies and first == 0:
            counts["empty_reply"] = 1  # a trace without steps still has its question
        return counts


def multiturn_rows(
    trace: Rollout,
    form: Format,
    *,
    seed: int,
    think_drop_prob: float,
    reasoning_drop_prob: float = 0.0,
) -> tuple[list[Multiturn], Counter[str]]:
    """Return the conversations up to each reply, and counts.

    Each turn before the reply has its thoughts as plain text, without tags, with probability
    `think_drop_prob`. With probability `reasoning_drop_prob` a conversation is written without
    reasoning, and its opening does not ask for it; a turn of only reasoning stays. A draw depends
    only on seed, trace, sample and turn. Results separated by unknown steps form a single user
    turn.
    """
    texts = _Turns.of(trace, form)
    untagged, bare = _untagged(trace, form), _bare(trace, form, texts.replies)
    counts = texts.counts(trace, first=0)
    rows: list[Multiturn] = []
    for last, reply in enumerate(texts.replies):
        if not reply:
            continue
        reasons = bare[: last + 1] == texts.replies[: last + 1] or (
            _draw(seed, trace.id, last, _CONVERSATION) >= reasoning_drop_prob
        )
        if not reasons:
            counts["reasoning_dropped"] += 1
        template = form.multiturn if reasons else form.multiturn_without_reasoning
        messages = _opening(form, form.fill(template, form.escape(trace.question)))
        for turn in range(last + 1):
            text = (texts.replies if reasons else bare)[turn]
            if reasons and turn < last and untagged[turn] != text:
                counts["think_turns"] += 1
                if _draw(seed, trace.id, last, turn) < think_drop_prob:
                    counts["think_dropped"] += 1
                    text = untagged[turn]
            if text:
                messages.append({"role": "assistant", "content": text})
            if turn < last:
                _add_results(messages, texts.results[turn])
        rows.append({**_origin(trace, texts, last), "messages": messages})
    return rows, counts


def _untagged(trace: Rollout, form: Format) -> list[str]:
    """Return the replies with thoughts as plain text, in tags if nothing else would be left."""
    return [
        form.turn_text(turn.actions, think_tags=False) or form.turn_text(turn.actions)
        for turn in turns(trace.steps)
    ]


def _bare(trace: Rollout, form: Format, replies: list[str]) -> list[str]:
    """Return the replies without reasoning, unless nothing else would be left."""
    return [
        form.turn_text(step for step in turn.actions if not isinstance(step, Reasoning)) or reply
        for turn, reply in zip(turns(trace.steps), replies, strict=True)
    ]


def _opening(form: Format, opening: str) -> list[Chat]:
    system: list[Chat] = [{"role": "system", "content": form.fill(form.system, "")}]
    return [*(system if form.system else []), {"role": "user", "content": opening}]


def _add_results(messages: list[Chat], results: str) -> None:
    if messages[-1]["role"] == "user":
        messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n{results}"}
    else:
        messages.append({"role": "user", "content": results})


def _draw(seed: int, trace: str, sample: int, turn: int) -> float:
    """Return a number from 0 to below 1."""
    text = f"{seed}\0{sample}\0{turn}\0{trace}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64


def step_rows(trace: Rollout, form: Format) -> tuple[list[Step], Counter[str]]:
    """Return a sample for each group of results that has a reply, and counts.

    The prompt is the question and everything up to the group. The answer is the agent's text up to
    the next group or the end.
    """
    texts = _Turns.of(trace, form)
    rows: list[Step] = []
    prompt = form.question_text(trace.question)
    for number, (reply, results) in enumerate(zip(texts.replies, texts.results, strict=True)):
        if number and reply:
            rows.append(
                {
                    **_origin(trace, texts, number),
                    "prompt": prompt,
                    "answer": reply,
                    "final": number == texts.groups and bool(trace.answer),
                    "expected_answers": right_answers(trace.fields)[1],
                }
            )
        prompt = "\n".join(filter(None, (prompt, reply, results)))
    return rows, texts.counts(trace, first=1)


def _origin(trace: Rollout, texts: _Turns, step: int) -> Origin:
    return {
        "id": f"{trace.id}#{step}",
        "trace": trace.id,
        "question_key": texts.key,
        "step": step,
        "steps": texts.groups,
        "question": trace.question,
    }

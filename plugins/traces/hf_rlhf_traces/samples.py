"""What a trace becomes: multi-turn conversations, and steps. Pure functions of one trace.

A trace with N groups of results has N + 1 cuts: the question, and each group. What the agent said
next is the reply to be learned. Each cut makes a sample or is counted under the reason why not:
`trailing_results`, where nothing follows, and `empty_reply`, where only unknown steps do.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass

from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import Chat, Multiturn, Origin, Step
from hf_rlhf_traces.trace import Answer, Reasoning, Search, Trace, Unknown, turns

_WHOLE = -1
"""The place of a draw for a whole conversation."""


@dataclass(frozen=True, slots=True)
class _Turns:
    """The turns of a trace as text. Where nothing was said or found, the text is empty."""

    key: str
    """Of the question."""
    said: list[str]
    found: list[str]
    acts: list[bool]
    """Whether it searches or answers."""

    @classmethod
    def of(cls, trace: Trace, form: Format) -> "_Turns":
        made = turns(trace.steps)
        said = [form.said(turn.said) for turn in made]
        acts = [any(isinstance(one, (Search, Answer)) for one in turn.said) for turn in made]
        return cls(trace.key, said, [form.found(turn.results) for turn in made], acts)

    @property
    def groups(self) -> int:
        return sum(map(bool, self.found))

    def counts(self, trace: Trace, first: int) -> Counter[str]:
        """Count the cuts from `first` on, and what becomes of them."""
        empty = sum(not said for said in self.said[first:])
        trailing = bool(self.found and self.found[-1])
        counted = Counter(
            cuts=self.groups + 1 - first,
            samples=sum(map(bool, self.said[first:])),
            empty_reply=empty,
            trailing_results=int(trailing),
            no_action=sum(
                bool(said) and not acts
                for said, acts in zip(self.said[first:], self.acts[first:], strict=True)
            ),
            unknown_steps=sum(isinstance(step, Unknown) for step in trace.steps),
        )
        if not self.said and first == 0:
            counted["empty_reply"] = 1  # a trace without steps still has its question
        return counted


def multiturn_rows(
    trace: Trace,
    form: Format,
    *,
    seed: int,
    think_drop_prob: float,
    reasoning_drop_prob: float = 0.0,
) -> tuple[list[Multiturn], Counter[str]]:
    """Return the conversations up to each reply, and counts.

    Of the turns before the reply, each has its thoughts as plain text, without their tags, with
    probability `think_drop_prob`. With probability `reasoning_drop_prob` a whole conversation is
    written without reasoning, under the opening that asks for none; a turn of nothing but reasoning
    keeps it. Each draw is its own: it depends on seed, trace, sample and turn, not on what was
    drawn before. What unknown steps alone part is one user's turn.
    """
    made = _Turns.of(trace, form)
    untagged, bare = _untagged(trace, form), _bare(trace, form, made.said)
    counts = made.counts(trace, first=0)
    rows: list[Multiturn] = []
    for last, reply in enumerate(made.said):
        if not reply:
            continue
        reasons = bare[: last + 1] == made.said[: last + 1] or (
            _drawn(seed, trace.id, last, _WHOLE) >= reasoning_drop_prob
        )
        if not reasons:
            counts["reasoning_dropped"] += 1
        template = form.multiturn if reasons else form.multiturn_without_reasoning
        messages = _opened(form, form.ask(template, form.escape(trace.question)))
        for place in range(last + 1):
            said = (made.said if reasons else bare)[place]
            if reasons and place < last and untagged[place] != said:
                counts["think_turns"] += 1
                if _drawn(seed, trace.id, last, place) < think_drop_prob:
                    counts["think_dropped"] += 1
                    said = untagged[place]
            if said:
                messages.append({"role": "assistant", "content": said})
            if place < last:
                _hear(messages, made.found[place])
        rows.append({**_origin(trace, made, last), "messages": messages})
    return rows, counts


def _untagged(trace: Trace, form: Format) -> list[str]:
    """What was said, thoughts as plain text; with their tags, where they hold no text."""
    return [
        form.said(turn.said, think_tags=False) or form.said(turn.said)
        for turn in turns(trace.steps)
    ]


def _bare(trace: Trace, form: Format, said: list[str]) -> list[str]:
    """What was said, without reasoning; with it, where nothing else was said."""
    return [
        form.said(one for one in turn.said if not isinstance(one, Reasoning)) or whole
        for turn, whole in zip(turns(trace.steps), said, strict=True)
    ]


def _opened(form: Format, opening: str) -> list[Chat]:
    system: list[Chat] = [{"role": "system", "content": form.ask(form.system, "")}]
    return [*(system if form.system else []), {"role": "user", "content": opening}]


def _hear(messages: list[Chat], found: str) -> None:
    if messages[-1]["role"] == "user":
        messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\n{found}"}
    else:
        messages.append({"role": "user", "content": found})


def _drawn(seed: int, trace: str, sample: int, turn: int) -> float:
    """A number from 0 to below 1."""
    text = f"{seed}\0{sample}\0{turn}\0{trace}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64


def step_rows(trace: Trace, form: Format) -> tuple[list[Step], Counter[str]]:
    """Return a sample for each group of results that has a reply, and counts.

    Prompt: the question and all up to that group. Answer: the agent's words up to the next group,
    or to the end.
    """
    made = _Turns.of(trace, form)
    rows: list[Step] = []
    prompt = form.asked(trace.question)
    for number, (reply, results) in enumerate(zip(made.said, made.found, strict=True)):
        if number and reply:
            rows.append(
                {
                    **_origin(trace, made, number),
                    "prompt": prompt,
                    "answer": reply,
                    "final": number == made.groups,
                }
            )
        prompt = "\n".join(filter(None, (prompt, reply, results)))
    return rows, made.counts(trace, first=1)


def _origin(trace: Trace, made: _Turns, step: int) -> Origin:
    return {
        "id": f"{trace.id}#{step}",
        "trace": trace.id,
        "question_key": made.key,
        "step": step,
        "steps": made.groups,
        "question": trace.question,
    }

"""Read text in tags from Search-R1, ReSearch and DR Tulu, as a single text or as messages.

`<think>…</think><search>query</search><information>Doc 1(Title: "T") text</information>…
<answer>…</answer>`, and `<call_tool name="google_search">query</call_tool>` with `<tool_output>
<snippet id=s1>Title: T…</snippet></tool_output>`. Text outside of tags is reasoning: Search-R1's
instruct models open no tag for it, and DR Tulu closes its later thoughts with an unopened
`</think>`. In Hermes' format, calls are `<tool_call>` and the answer is the last turn's text.

References: https://github.com/PeterGriffinJin/Search-R1, https://github.com/rlresearch/dr-tulu
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from hf_rlhf.data import BadRow
from hf_rlhf_rollouts.assembly import ANSWER, search, second_question
from hf_rlhf_rollouts.cleaning import Noted, json_in
from hf_rlhf_rollouts.columns import other_fields, row_id
from hf_rlhf_rollouts.content import scalar_text
from hf_rlhf_rollouts.conversation import find_conversation
from hf_rlhf_rollouts.documents import documents_in_text, documents_tagged
from hf_rlhf_rollouts.steps import (
    SEARCH_TOOL,
    Answer,
    Document,
    Reasoning,
    Rollout,
    Search,
    SearchResult,
    Step,
    Unknown,
)
from hf_rlhf_rollouts.submissions import submission

TEXTS = (
    *("response", "output", "completion", "trace", "trajectory", "generated_text", "full_traces"),
    *("sequences_str", "text", "full_output", "rollout", "rollout_text"),
)
"""Columns of the text; the first with tags counts."""
PROMPTING = ("system", "developer", "user")
"""Roles before the agent's first turn."""
QUESTIONS = ("question", "problem", "query")
SEARCHES = ("search", "query", "call_tool", "tool_call")
RESULTS = ("information", "result", "tool_output", "tool_response", "observation")
_ACTION = re.compile(r"<(?:search|call_tool|tool_call|answer)\b[^<>]*>", re.IGNORECASE)
_OPEN = re.compile(
    rf"<(think|answer|{'|'.join(SEARCHES + RESULTS)})((?:\s[^<>]*)?)>", re.IGNORECASE
)
_OPENED_RESULT = rf"<(?:{'|'.join(RESULTS)})(?:\s[^<>]*)?>"
_ACTS = rf"<(?:answer|{'|'.join(SEARCHES + RESULTS)})(?:\s[^<>]*)?>"
_ATTRIBUTE = re.compile(r"(?<![\w-])([\w-]++)=(?:\"([^\"]*)\"|'([^']*)'|(\S+))")
_ROLE = re.compile(r"<\|im_start\|>(\w+)\n?|<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*")
_MARK = re.compile(r"<\|(?:im_end|endoftext|eot_id|begin_of_text)\|>")
_FRAMED = re.compile(r"(?>.*?<answer>)(?>.*?</answer>[^<]*?\sQuestion:)[^\n]*\n", re.DOTALL)
_FEEDBACK = re.compile(
    r"My previous action is invalid\.(?:[^<]|<(?P<tag>search|answer)> and </(?P=tag)>){0,500}?"
    r"Let me try again\."
)
_ASKED = re.compile(r"(?:^|\s)Question:\s*")
_USERS = re.compile(r"(?:^|\n)User:[ \t]*(?=\S)")
_HERMES = re.compile(r"<tool_call>", re.IGNORECASE)
_ENDED = re.compile(rf".*</(think|{'|'.join(SEARCHES + RESULTS)})>", re.IGNORECASE | re.DOTALL)
_ESCAPED = re.compile(
    r"<\\(?=\\*/?(?:think|search|information|answer|summary|question|reasoning|evidence|quote)\b)",
    re.IGNORECASE,
)
"""The tags of hf-rlhf-traces, as escaped within a content: `<\\think>`."""


def _plain(text: str) -> str:
    return _ESCAPED.sub("<", text)


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has an agent's text, or its messages without tool calls."""
    if _text(values)[0]:
        return True
    conversation = find_conversation(values)
    messages = [m for m in conversation.messages if isinstance(m, Mapping)] if conversation else []
    replies = [message for message in messages if message.get("role") == "assistant"]
    if any(message.get("role") == "function_call" for message in messages) or any(
        reply.get("tool_calls") or reply.get("function_call") for reply in replies
    ):
        return False
    return any(acts_in(reply.get("content")) for reply in replies)


def _text(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and text of the text column; empty strings if there is none."""
    for key in TEXTS:
        column = values.get(key)
        if isinstance(column, Mapping):  # DR Tulu nests it a level deeper
            column = column.get("generated_text")
        if acts_in(column):
            return key, column
    return "", ""


def acts_in(text: Any) -> TypeGuard[str]:
    """Return whether a value is a text with an agent's searches or answers in tags."""
    return isinstance(text, str) and _ACTION.search(text) is not None


def read(values: Mapping[str, Any], noted: Noted) -> Rollout:
    """Return the rollout in a matching row. Raises BadRow for an unreadable row."""
    column, text = _text(values)
    conversation = find_conversation({"messages": _turns(text)} if column else values)
    assert conversation is not None
    prompt_question, steps, before = "", list[Step](), list[Any]()
    for path, message in conversation:
        role = message.get("role")
        if not steps and role in PROMPTING:
            before.append(dict(message))
            if role == "user":
                prompt_question = _unframed(
                    scalar_text(message.get("content"), f"{path}.content", noted)
                )
        else:
            steps += _message_steps(message, path, noted)
    if not (answered := _submitted(steps, noted)) and _answers_in_plain_text(conversation.messages):
        answered = _with_answer(steps, conversation.messages[-1])
    steps = answered or steps
    turns = sum(message.get("role") == "user" for message in before)
    noted["earlier_turns"] += max(turns - 1, 0)
    question = _question(values, noted) or prompt_question
    used = (column,) if column else conversation.columns
    fields = other_fields(values, (*used, "question", "prompt", "id"))
    if before and [message.get("content") for message in before] != [question]:
        fields.setdefault("input", before)
    return Rollout(row_id(values), question, tuple(steps), fields)


def _submitted(steps: list[Step], noted: Noted) -> list[Step]:
    """Return the steps with the answer that the last call submits; unchanged otherwise.

    Arguments without names are a query in this form, so a name must mark the answer.
    """
    last = max((at for at, step in enumerate(steps) if isinstance(step, Search)), default=-1)
    if last < 0 or any(isinstance(step, Answer) for step in steps[last:]):
        return []
    call = steps[last]
    assert isinstance(call, Search)
    handed_in = submission(call.tool, call.query, replies=True)
    if handed_in is None or not call.query.lstrip().startswith("{"):
        return []
    rest = [step for step in steps[last + 1 :] if not isinstance(step, SearchResult)]
    noted["answer_echoes"] += len(steps) - last - 1 - len(rest)
    noted.update(f"answer_arguments_left_out.{name}" for name in handed_in.left_out)
    return [*steps[:last], Answer(handed_in.text, ANSWER), *rest]


def _answers_in_plain_text(messages: Sequence[Any]) -> bool:
    """Whether calls are Hermes', and no message, not even a prompt, has an <answer>."""
    roles = ("assistant", *PROMPTING)
    texts = [str(message.get("content")) for message in messages if message.get("role") in roles]
    return any(map(_HERMES.search, texts)) and not any("<answer" in text for text in texts)


def _with_answer(steps: list[Step], last: Mapping[str, Any]) -> list[Step]:
    """Return the steps with the text of the agent's last turn, after its thoughts, as the answer.

    Text after a call is no answer, because the agent waits for the result.
    """
    if last.get("role") != "assistant" or not steps or not isinstance(steps[-1], Reasoning):
        return steps
    content, last_words = scalar_text(last.get("content"), "content", Counter()), steps[-1].content
    ended = _ENDED.match(content)
    answer = _plain(content[ended.end() if ended else 0 :].strip())
    waits = ended and ended[1].lower() in SEARCHES
    if waits or not answer or not last_words.endswith(answer):
        return steps
    thought = last_words.removesuffix(answer).strip()
    return [*steps[:-1], *([Reasoning(thought)] if thought else []), Answer(answer, ANSWER)]


def _turns(text: str) -> list[dict[str, str]]:
    """Split a text at a chat template's marks. Text before them is the agent's."""
    if not text:
        return []
    marks = list(_ROLE.finditer(text))
    ends = [*(mark.start() for mark in marks), len(text)]
    begin = text[: ends[0]]
    turns = [("assistant", begin)] if _MARK.sub("", begin).strip() else []
    for mark, end in zip(marks, ends[1:], strict=True):
        turns.append((mark[1] or mark[2], text[mark.end() : end]))
    if not marks and (framed := _FRAMED.match(text)):
        # The prompt of a base model, and its reply after the question's line.
        turns = [("user", framed[0]), ("assistant", text[framed.end() :])]
    return [{"role": role, "content": _MARK.sub("", content)} for role, content in turns]


def _question(values: Mapping[str, Any], noted: Noted) -> str:
    for key in QUESTIONS:
        if values.get(key) is not None:
            return scalar_text(values[key], key, noted)
    prompt = values.get("prompt")
    turns = _turns(prompt) if isinstance(prompt, str) else prompt
    if not isinstance(turns, list):
        return scalar_text(prompt, "prompt", noted)
    asked = [turn for turn in turns if isinstance(turn, Mapping) and turn.get("role") == "user"]
    question: Any = _MARK.sub("", prompt) if isinstance(prompt, str) else ""
    question = asked[-1].get("content") if asked else question
    return _unframed(scalar_text(question, "prompt", noted))


def _unframed(prompt: str) -> str:
    """Return the question without the instructions before and after it in a prompt."""
    turns = list(_USERS.finditer(prompt))
    if turns and _OPEN.search(prompt, 0, turns[-1].start()):
        # After the tools and an example reply, as in WebDancer and WebSailor.
        return prompt[turns[-1].end() :].strip()
    question = _ASKED.split(prompt)[-1].strip()
    if question != prompt.strip() and _OPEN.search(question):
        return question.partition("\n\n")[0].strip()
    return question


def _message_steps(message: Mapping[str, Any], path: str, noted: Noted) -> list[Step]:
    """Return the steps of a message after the question."""
    role = message.get("role")
    text = scalar_text(message.get("content"), f"{path}.content", noted)
    if role in ("tool", "function") and not text.lstrip().startswith("<tool_response>"):
        return [SearchResult(documents_in_text(text, noted))]
    if role in ("assistant", "tool", "function") or (role == "user" and _OPEN.match(text.lstrip())):
        return list(steps_in(text, noted))
    if role == "user":
        raise second_question(text)
    return [Unknown(f"message of {role}", dict(message))]


def steps_in(text: str, noted: Noted) -> Iterator[Step]:
    """Yield the steps of a text in tags. Raises BadRow for an unclosed tag.

    Search-R1's messages about unusable replies mention tags, and are no reply.
    """
    at = 0
    for feedback in _FEEDBACK.finditer(text):
        yield from _tagged_steps(text[at : feedback.start()], noted)
        yield Unknown("feedback on an invalid action", feedback[0])
        at = feedback.end()
    yield from _tagged_steps(text[at:], noted)


def _tagged_steps(text: str, noted: Noted) -> Iterator[Step]:
    at, answered, tags = 0, False, _Tags(text)
    while opened := _OPEN.search(text, at):
        name = opened[1].lower()
        yield from _bare(text[at : opened.start()])
        try:
            end, at = tags.closed(opened)
        except BadRow:
            if not answered or name in RESULTS:
                raise
            # The agent's text after its answer was cut off.
            noted[f"{'searches' if name in SEARCHES else 'reasoning'}_after_the_answer"] += 1
            return
        answered = name == "answer" or (answered and name not in RESULTS)
        yield _step(name, opened[2], text[opened.end() : end].strip(), noted)
    yield from _bare(text[at:])


def _bare(text: str) -> Iterator[Step]:
    thought = text.replace("</think>", "").strip()
    if thought:
        yield Reasoning(_plain(thought))


class _Tags:
    """Finds the tags of a text; each is found once, however many are unclosed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[str, int] = {}
        """Pattern -> its last match, or the text's length."""

    def closed(self, opened: re.Match[str]) -> tuple[int, int]:
        """Return where a tag's content ends, and where the text continues."""
        name, begin, end = opened[1].lower(), opened.end(), len(self._text)
        closing = self._next("</call(?:_tool)?>" if name == "call_tool" else f"</{name}>", begin)
        if name == "think":
            act = self._next(_ACTS, begin)
            # An unclosed thought ends at the agent's next action; thoughts may also mention tags.
            if act < closing and (closing == end or self._next(_OPENED_RESULT, begin) < closing):
                return act, act
        if closing == end:
            detail = f"<{name}> at character {opened.start() + 1} of the text is never closed"
            raise BadRow("tag_not_closed", detail)
        return closing, self._text.index(">", closing) + 1

    def _next(self, pattern: str, begin: int) -> int:
        """Return the first match from `begin` on; the text's length if there is none."""
        if self._found.get(pattern, -1) < begin:
            found = re.compile(pattern, re.IGNORECASE).search(self._text, begin)
            self._found[pattern] = found.start() if found else len(self._text)
        return self._found[pattern]


def _step(name: str, attributes: str, inside: str, noted: Noted) -> Step:
    if name in RESULTS:
        documents = documents_tagged(inside, noted)  # still escaped: contents may have tags
        plain = tuple(Document(_plain(each.title), _plain(each.content)) for each in documents)
        return SearchResult(plain)
    inside = _plain(inside)
    if name == "think":
        return Reasoning(inside)
    if name == "answer":
        return Answer(inside, ANSWER)
    return _search(name, attributes, inside, noted)


def _search(name: str, attributes: str, inside: str, noted: Noted) -> Search:
    if name == "tool_call":
        call = json_in(inside, noted)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return Search(inside, name)
        arguments = call.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return search(call["name"], arguments, noted)
    # Beside the tool's name: the number, the years, and other arguments of the query.
    beside = {tag[1]: tag[2] or tag[3] or tag[4] or "" for tag in _ATTRIBUTE.finditer(attributes)}
    tool = beside.pop("name", "") or beside.pop("tool", "") or SEARCH_TOOL
    query = json.dumps({"query": inside, **beside}, ensure_ascii=False) if beside else inside
    return Search(query, tool)

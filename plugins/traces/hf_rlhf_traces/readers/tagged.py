"""Text in tags: Search-R1, ReSearch and DR Tulu, as one text or as messages that hold such text.

`<think>…</think><search>query</search><information>Doc 1(Title: "T") text</information>…
<answer>…</answer>`, and `<call_tool name="google_search">query</call_tool>` with `<tool_output>
<snippet id=s1>Title: T…</snippet></tool_output>`. Text outside of tags is reasoning: Search-R1's
instruct models open no tag for it, and DR Tulu closes its later thoughts with a `</think>` that
was never opened. In Hermes' format, calls are `<tool_call>` and the answer is the last turn's text.

References: https://github.com/PeterGriffinJin/Search-R1, https://github.com/rlresearch/dr-tulu
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf_traces.format import Format
from hf_rlhf_traces.readers.clean import json_in
from hf_rlhf_traces.readers.documents import documents_in_text, documents_tagged
from hf_rlhf_traces.readers.messages import (
    ASKED,
    CALLED,
    messages_of,
    placed,
    second_question,
    turns,
)
from hf_rlhf_traces.readers.rollout_steps import ANSWER, search
from hf_rlhf_traces.readers.rough import BadRow, Noted, Rough, own_id, rest, text_of
from hf_rlhf_traces.trace import (
    SEARCH_TOOL,
    Answer,
    Document,
    Reasoning,
    Search,
    SearchResult,
    Step,
    Unknown,
)

TEXTS = (
    *("response", "output", "completion", "trace", "trajectory", "generated_text", "full_traces"),
    *("sequences_str", "text"),
)
"""Where a row may have its text; the first that has tags."""
QUESTIONS = ("question", "problem", "query")
SEARCHES = ("search", "query", "call_tool", "tool_call")
RESULTS = ("information", "result", "tool_output", "tool_response", "observation")
_ACTION = re.compile(r"<(?:search|call_tool|tool_call|answer)\b[^<>]*>", re.IGNORECASE)
_OPEN = re.compile(
    rf"<(think|answer|{'|'.join(SEARCHES + RESULTS)})((?:\s[^<>]*)?)>", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"([\w-]+)=(?:\"([^\"]*)\"|'([^']*)'|(\S+))")
_ROLE = re.compile(r"<\|im_start\|>(\w+)\n?|<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*")
_MARK = re.compile(r"<\|(?:im_end|endoftext|eot_id|begin_of_text)\|>")
_FRAMED = re.compile(r".*?<answer>.*?</answer>[^<]*?\sQuestion:[^\n]*\n", re.DOTALL)
_FEEDBACK = re.compile(
    r"My previous action is invalid\.(?:[^<]|<(?P<tag>search|answer)> and </(?P=tag)>)*?"
    r"Let me try again\."
)
_ASKED = re.compile(r"(?:^|\s)Question:\s*")
_USERS = re.compile(r"(?:^|\n)User:[ \t]*(?=\S)")
_HERMES = re.compile(r"<tool_call>", re.IGNORECASE)
_ENDED = re.compile(rf".*</(think|{'|'.join(SEARCHES + RESULTS)})>", re.IGNORECASE | re.DOTALL)
_plain = Format().unescape


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has a text, or messages without tool calls, in which the agent acts."""
    return bool(_text(values)[0]) or _in_messages(values)


def _in_messages(values: Mapping[str, Any]) -> bool:
    _, messages = messages_of(values)
    replies = [m for m in messages if isinstance(m, Mapping) and m.get("role") == "assistant"]
    if any(isinstance(m, Mapping) and m.get("role") == CALLED for m in messages):
        return False
    if any(message.get("tool_calls") or message.get("function_call") for message in replies):
        return False
    texts = (message.get("content") for message in replies)
    return any(isinstance(text, str) and _ACTION.search(text) for text in texts)


def _text(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the column that has the text, and the text; two empty ones if there is none."""
    for key in TEXTS:
        held = values.get(key)
        if isinstance(held, Mapping):  # DR Tulu has it a level deeper
            held = held.get("generated_text")
        if isinstance(held, str) and _ACTION.search(held):
            return key, held
    return "", ""


def read(values: Mapping[str, Any], where: str, noted: Noted) -> Rough:
    """Return question and steps. Raises BadRow for what is none."""
    held, text = _text(values)
    messages: Sequence[Any] = _turns(text)
    if not held:
        held, messages = messages_of(values)
    if not messages:
        names = ", ".join(TEXTS)
        raise BadRow("no_trace", f"no text with tags in {names}, nor in messages")
    prompt_question, steps, before = "", list[Step](), list[Any]()
    for path, message in placed(held, messages):
        role = message.get("role")
        if not steps and role in ASKED:
            before.append(dict(message))
            if role == "user":
                prompt_question = _unframed(
                    text_of(message.get("content"), f"{path}.content", noted)
                )
        else:
            steps += _message_steps(message, path, noted)
    if _answers_in_plain_text(messages):
        steps = _with_answer(steps, messages[-1])
    noted["earlier_turns"] += max(turns(before) - 1, 0)
    question = _question(values, noted) or prompt_question
    fields = rest(values, (held, "question", "prompt", "id"))
    if before and [message.get("content") for message in before] != [question]:
        fields.setdefault("input", before)
    return Rough(question, steps, fields, own_id(values))


def _answers_in_plain_text(messages: Sequence[Any]) -> bool:
    """Whether calls are Hermes', and nobody, not even a prompt, speaks of an <answer>."""
    contents = [
        message.get("content")
        for message in messages
        if message.get("role") in ("assistant", *ASKED)
    ]
    texts = [text for text in contents if isinstance(text, str)]
    return any(map(_HERMES.search, texts)) and not any("<answer" in text for text in texts)


def _with_answer(steps: list[Step], last: Mapping[str, Any]) -> list[Step]:
    """Return the steps with what the agent's last turn says, behind its thoughts, as the answer.

    What stands behind a call is none: the agent waits for what comes back.
    """
    if last.get("role") != "assistant":
        return steps
    content = text_of(last.get("content"), "content", Counter())  # what is noted was noted before
    ended = _ENDED.match(content)
    answer = _plain(content[ended.end() if ended else 0 :].strip())
    ends = steps[-1] if steps else None
    waits = ended and ended[1].lower() in SEARCHES
    if waits or not answer or not isinstance(ends, Reasoning) or not ends.content.endswith(answer):
        return steps
    thought = ends.content.removesuffix(answer).strip()
    return [*steps[:-1], *([Reasoning(thought)] if thought else []), Answer(answer, ANSWER)]


def _turns(text: str) -> list[dict[str, str]]:
    """Part a text at the marks of a chat template. What stands before them is the agent's."""
    if not text:
        return []
    marks = list(_ROLE.finditer(text))
    ends = [*(mark.start() for mark in marks), len(text)]
    begin = text[: ends[0]]
    turns = [("assistant", begin)] if _MARK.sub("", begin).strip() else []
    for mark, end in zip(marks, ends[1:], strict=True):
        turns.append((mark[1] or mark[2], text[mark.end() : end]))
    if not marks and (framed := _FRAMED.match(text)):
        # The prompt of a base model, and its reply behind the question's line.
        turns = [("user", framed[0]), ("assistant", text[framed.end() :])]
    return [{"role": role, "content": _MARK.sub("", content)} for role, content in turns]


def _question(values: Mapping[str, Any], noted: Noted) -> str:
    for key in QUESTIONS:
        if values.get(key) is not None:
            return text_of(values[key], key, noted)
    prompt = values.get("prompt")
    if isinstance(prompt, str):
        questions = [turn["content"] for turn in _turns(prompt) if turn["role"] == "user"]
        return _unframed(questions[-1] if questions else _MARK.sub("", prompt))
    if isinstance(prompt, list):
        turns_of_user = [m for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
        return (
            _unframed(text_of(turns_of_user[-1].get("content"), "prompt", noted))
            if turns_of_user
            else ""
        )
    return text_of(prompt, "prompt", noted)


def _unframed(prompt: str) -> str:
    """Return the question without the instructions of a prompt, which may stand on both sides."""
    turns = list(_USERS.finditer(prompt))
    if turns and _OPEN.search(prompt, 0, turns[-1].start()):
        # Behind the tools and an example reply, as WebDancer and WebSailor have it.
        return prompt[turns[-1].end() :].strip()
    question = _ASKED.split(prompt)[-1].strip()
    if question != prompt.strip() and _OPEN.search(question):
        return question.partition("\n\n")[0].strip()
    return question


def _message_steps(message: Mapping[str, Any], path: str, noted: Noted) -> list[Step]:
    """Return the steps of a message behind the question."""
    role = message.get("role")
    text = text_of(message.get("content"), f"{path}.content", noted)
    if role in ("tool", "function") and not text.lstrip().startswith("<tool_response>"):
        return [SearchResult(documents_in_text(text, noted))]
    if role in ("assistant", "tool", "function") or (role == "user" and _OPEN.match(text.lstrip())):
        return list(steps_in(text, noted))
    if role == "user":
        raise second_question(path, text)
    return [Unknown(f"message of {role}", dict(message))]


def steps_in(text: str, noted: Noted) -> Iterator[Step]:
    """Yield the steps of a text in tags. Raises BadRow for a tag that is never closed.

    What Search-R1's environment says of a reply that it cannot use names tags, and is no reply.
    """
    at = 0
    for feedback in _FEEDBACK.finditer(text):
        yield from _tagged_steps(text[at : feedback.start()], noted)
        yield Unknown("feedback on an invalid action", feedback[0])
        at = feedback.end()
    yield from _tagged_steps(text[at:], noted)


def _tagged_steps(text: str, noted: Noted) -> Iterator[Step]:
    at = 0
    while opened := _OPEN.search(text, at):
        yield from _bare(text[at : opened.start()])
        name = opened[1].lower()
        end, at = _closed(text, opened, name)
        inside = text[opened.end() : end].strip()
        yield _step(name, opened[2], inside, noted)
    yield from _bare(text[at:])


def _bare(text: str) -> Iterator[Step]:
    thought = text.replace("</think>", "").strip()
    if thought:
        yield Reasoning(_plain(thought))


def _closed(text: str, opened: re.Match[str], name: str) -> tuple[int, int]:
    """Return where a tag's content ends, and where the text goes on."""
    ends = "</(?:call_tool|call)>" if name == "call_tool" else f"</{name}>"
    closing = re.compile(ends, re.IGNORECASE).search(text, opened.end())
    if name == "think":
        opens = _OPEN.finditer(text, opened.end())
        acts = next((tag for tag in opens if tag[1].lower() != "think"), None)
        # A thought that was not closed ends where the agent acts; one may also speak of tags.
        if acts and (closing is None or _has_result(text[acts.start() : closing.start()])):
            return acts.start(), acts.start()
    if closing is None:
        detail = f"<{name}> at character {opened.start() + 1} of the text is never closed"
        raise BadRow("tag_not_closed", detail)
    return closing.start(), closing.end()


def _has_result(text: str) -> bool:
    return any(tag[1].lower() in RESULTS for tag in _OPEN.finditer(text))


def _step(name: str, attributes: str, inside: str, noted: Noted) -> Step:
    if name in RESULTS:
        documents = documents_tagged(inside, noted)  # escaped as yet: contents may hold tags
        plain = (
            Document(_plain(document.title), _plain(document.content)) for document in documents
        )
        return SearchResult(tuple(plain))
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
        written = arguments if isinstance(arguments, str) else _written(arguments)
        return search(call["name"], written, noted)
    attributes_ = {
        m[1]: next(filter(None, m.groups()[1:]), "") for m in _ATTRIBUTE.finditer(attributes)
    }
    tool = attributes_.pop("name", "") or attributes_.pop("tool", "") or SEARCH_TOOL
    if attributes_:  # how many, of which years: arguments beside the query
        return Search(_written({"query": inside, **attributes_}), tool)
    return Search(inside, tool)


def _written(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)

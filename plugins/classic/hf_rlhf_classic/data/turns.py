"""Conversations in the spellings people use, to `{"role", "content"}` turns in a checked order."""

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf_classic.data.values import TURNS, BadRow, kind_of, said, unpacked

Turn = dict[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""

SPELLINGS = (("role", "content"), ("from", "value"))
"""The keys of a turn: OpenAI's and ShareGPT's."""

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
}
TOOL_ROLES = ("tool", "function", "function_call", "tool_call", "observation", "tool_response")

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
_MARK = re.compile(r"\n\n(Human|Assistant):")
_WINDOWS = re.compile(r"\r\n\r\n(Human|Assistant):")


def turns_of(value: Any, where: str, column: str) -> list[Turn]:
    """Return the turns in a column: a list of turns, or the same as JSON text. Raises BadRow.

    A first turn of the system that is empty is no system prompt: many tools export it so.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRow(
                f"wrong_type:{column}", f"{where}: field {column!r}: is no JSON list: {error}."
            ) from error
    if not isinstance(value, Sequence):
        raise BadRow(
            f"wrong_type:{column}",
            f"{where}: field {column!r}: is {said(value)}, expected a list of turns.",
        )
    turns = [
        turn_of(one, f"{where}: field {column!r}, turn {number}")
        for number, one in enumerate(value, start=1)
    ]
    unsaid = turns and turns[0]["role"] == "system" and not turns[0]["content"].strip()
    return turns[1:] if unsaid else turns


def turn_of(value: Any, where: str) -> Turn:
    """Return one turn with its role in our words. Raises BadRow."""
    spelled = value if isinstance(value, Mapping) else {}
    keys = next((keys for keys in SPELLINGS if spelled.get(keys[0]) is not None), None)
    if keys is None:
        nested = isinstance(value, list) or any(isinstance(one, list) for one in spelled.values())
        whole = " A row holds one conversation: write a row for each." if nested else ""
        has = f" with the keys {', '.join(map(str, spelled))}" if spelled else ""
        raise BadRow(
            "wrong_type:turn",
            f'{where}: is {said(value)}{has}, expected {{"role", "content"}} or '
            f'{{"from", "value"}}.{whole}',
        )
    role, content = value[keys[0]], value.get(keys[1])
    if role in TOOL_ROLES or value.get("tool_calls") or value.get("function_call"):
        raise BadRow(
            "tool_turn",
            f"{where}: is a tool call or its result, which these adapters do not read. Leave such "
            "rows out (raise `max_rejected_share`), or train on them with an adapter of your own.",
        )
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise BadRow(
            "unknown_role",
            f"{where}: the role is {said(role)}, expected one of {', '.join(ROLES)}.",
        )
    if keys[1] not in value:
        has = ", ".join(map(str, value))
        raise BadRow(
            "wrong_type:content",
            f"{where}: has {keys[0]!r} and no {keys[1]!r}. It has: {has}.",
        )
    return {"role": ROLES[role.lower()], "content": _text(content, where)}


def _text(content: Any, where: str) -> str:
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return "".join(_part(part, where) for part in parts)


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if isinstance(text, str):
        return text
    kind = part.get("type") if isinstance(part, Mapping) else None
    shown = f"is {said(text)}" if kind in (None, "text") else f"has a part of type {kind!r}"
    raise BadRow("wrong_type:content", f"{where}: the content {shown}, expected a text.")


def tools_of(values: Mapping[str, Any], where: str) -> str | None:
    """Return a row's `tools` as JSON text, None for none. Raises BadRow.

    As text, since a table gives objects of different keys each other's, with nulls, and a chat
    template would show them. TRL parses it.
    """
    given = values["tools"]
    tools = unpacked(given)
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(one, Mapping) for one in tools):
        raise BadRow(
            "wrong_type:tools",
            f"{where}: field 'tools': is {said(given)}, expected a list of JSON schemas, or "
            "the same as JSON text: the chat template is given this column. If it is something "
            "else, give it another name (`columns`), or leave it out (`keep`).",
        )
    return json.dumps(tools, ensure_ascii=False)


def left_out_keys(value: Any) -> Counter[str]:
    """Count the keys of turns that are not read, such as `weight` or `reasoning_content`."""
    given = unpacked(value) if kind_of(value) == TURNS else value
    turns = given if isinstance(given, list) else [given]
    known = {key for keys in SPELLINGS for key in keys}
    return Counter(
        key
        for turn in turns
        if isinstance(turn, Mapping)
        for key, given in turn.items()
        if key not in known and given not in (None, [], {}, "")
    )


def check_order(turns: Sequence[Turn], where: str, last: str = "user") -> None:
    """Raise BadRow unless turns are system?, user, assistant, ..., `last`, none of them empty."""
    for number, turn in enumerate(turns, start=1):
        if turn["role"] == "system" and number > 1:
            raise BadRow(
                "system_in_the_middle",
                f"{where}: turn {number} is a system turn. Expected it first, or nowhere.",
            )
        if not turn["content"].strip():
            raise BadRow("empty_turn", f"{where}: turn {number} ({turn['role']}) is empty.")
    spoken = [turn["role"] for turn in turns if turn["role"] != "system"]
    if not spoken:
        raise BadRow("empty_prompt", f"{where}: holds no user turn.")
    for number, role in enumerate(spoken):
        wanted = ("user", "assistant")[number % 2]
        if role != wanted:
            raise BadRow(
                "role_order",
                f"{where}: turn {number + len(turns) - len(spoken) + 1} is {role}'s, expected "
                f"{wanted}'s: user and assistant take turns, and the user begins.",
            )
    if spoken[-1] != last:
        raise BadRow(
            f"ends_with_{spoken[-1]}",
            f"{where}: the last turn is {spoken[-1]}'s, expected {last}'s.",
        )


def split_transcript(text: str, where: str) -> list[Turn]:
    """Return the turns of a transcript; one space after each mark belongs to the mark."""
    text = _line_ends(text)
    opening = text if text.startswith("\n\n") else "\n\n" + text.lstrip()
    before, *rest = _MARK.split(opening)
    if before.strip():
        raise BadRow("no_transcript", f"{where}: begins with {said(before)}, not with 'Human:'.")
    return [
        {"role": "user" if who == "Human" else "assistant", "content": content.removeprefix(" ")}
        for who, content in zip(rest[::2], rest[1::2], strict=True)
    ]


def _line_ends(text: str) -> str:
    """Return a transcript whose marks stand after Windows' line ends with plain ones."""
    return text.replace("\r\n", "\n") if _WINDOWS.search(text) else text


def split_pair(chosen: str, rejected: str, where: str) -> tuple[list[Turn], str, str]:
    """Return the turns that two transcripts share, and the answers in which they part.

    The longest common prefix is cut at its last `Assistant:`. Where an answer after that cut holds
    another turn, the transcripts parted earlier, and answer different prompts: BadRow.
    """
    chosen, rejected = _line_ends(chosen), _line_ends(rejected)
    shared = os.path.commonprefix([chosen, rejected])
    cut = shared.rfind(ASSISTANT)
    answers = [text[cut + len(ASSISTANT) :] for text in (chosen, rejected)]
    if cut < 0 or any(_MARK.search(answer) for answer in answers):
        raise BadRow(
            "different_prompts",
            f"{where}: chosen and rejected part at character {len(shared) + 1}, before the last "
            "turn, so they do not answer the same prompt.",
        )
    first, second = (answer.removeprefix(" ") for answer in answers)
    return split_transcript(chosen[:cut], where), first, second

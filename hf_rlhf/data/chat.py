"""Conversations in the spellings in use, read as `{"role", "content"}` turns in a checked order."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import TURNS, decode_json_text, describe_value, value_kind

Turn = dict[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""

SPELLINGS = (("role", "content"), ("from", "value"))
"""The keys of a turn: OpenAI's and ShareGPT's."""
_TURN_KEYS = frozenset(key for keys in SPELLINGS for key in keys)

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "ai", "gpt", "chatgpt", "bot", "model"), "assistant"),
}
"""Spelling -> role: OpenAI's, LangChain's, ShareGPT's, LLaMA-Factory's, OpenAssistant's."""

TOOL_ROLES = {
    **dict.fromkeys(("function_call", "tool_call"), "function_call"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    **dict.fromkeys(("tool_response", "function_response"), "tool"),
}
"""The same of turns that are a tool call, or what a tool returned."""

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
_MARK = re.compile(r"\n\n(Human|Assistant):")
_WINDOWS_MARK = re.compile(r"\r\n\r\n(Human|Assistant):")


def parse_turns(row: Row, column: str) -> list[Turn]:
    """Return the turns in a column: a list of turns, or the same as JSON text. Raises BadRow.

    An empty system turn at the beginning is dropped: many tools export one without a prompt.
    """
    value = row.values[column]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            problem = f"{row.at(column)}: is not a JSON list: {error}."
            raise BadRow(f"wrong_type:{column}", problem) from error
    if not isinstance(value, Sequence):
        raise BadRow.wrong_type(column, row.at(column), value, "a list of turns.")
    turns = [
        parse_turn(turn, f"{row.at(column)}, turn {number}")
        for number, turn in enumerate(value, start=1)
    ]
    without_prompt = turns and turns[0]["role"] == "system" and not turns[0]["content"].strip()
    return turns[1:] if without_prompt else turns


def parse_turn(value: Any, where: str) -> Turn:
    """Return one turn with a role of `ROLES`' values. Raises BadRow."""
    fields = value if isinstance(value, Mapping) else {}
    keys = next((keys for keys in SPELLINGS if fields.get(keys[0]) is not None), None)
    if keys is None:
        raise _not_a_turn(value, fields, where)
    role, content = value[keys[0]], value.get(keys[1])
    if str(role).lower() in TOOL_ROLES or value.get("tool_calls") or value.get("function_call"):
        raise BadRow(
            "tool_turn",
            f"{where}: is a tool call or its result, which these adapters do not read. Leave such "
            "rows out (raise `max_rejected_share`), or train on them with your own adapter.",
        )
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise BadRow(
            "unknown_role",
            f"{where}: the role is {describe_value(role)}, expected one of {', '.join(ROLES)}.",
        )
    if keys[1] not in value:
        raise BadRow(
            "wrong_type:content",
            f"{where}: has {keys[0]!r} and no {keys[1]!r}. It has: {', '.join(map(str, value))}.",
        )
    return {"role": ROLES[role.lower()], "content": _text(content, where)}


def _not_a_turn(value: Any, fields: Mapping[str, Any], where: str) -> BadRow:
    nested = isinstance(value, list) or any(isinstance(inner, list) for inner in fields.values())
    cure = " A row holds one conversation: write a row for each." if nested else ""
    keys = f" with the keys {', '.join(map(str, fields))}" if fields else ""
    return BadRow(
        "wrong_type:turn",
        f'{where}: is {describe_value(value)}{keys}, expected {{"role", "content"}} or '
        f'{{"from", "value"}}.{cure}',
    )


def _text(content: Any, where: str) -> str:
    texts = []
    for part in content if isinstance(content, list) else [content]:
        fields = part if isinstance(part, Mapping) else {"text": part}
        if not isinstance(text := fields.get("text"), str):
            kind = fields.get("type") or "text"
            problem = f"is {describe_value(text)}"
            if kind != "text":
                problem = f"has a part of type {kind!r}"
            raise BadRow("wrong_type:content", f"{where}: the content {problem}, expected a text.")
        texts.append(text)
    return "".join(texts)


def conversation_turns(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a conversation, which may be JSON text; none for any other value.

    Each has `content` and a `role` that is a value of `ROLES`, or as it is written where that is
    no known one; nothing is checked.
    """
    turns = []
    for turn in _objects(value):
        role = str(turn.get("role") or turn.get("from")).lower()
        content = turn.get("content") or turn.get("value")
        turns.append({**turn, "role": ROLES.get(role, role), "content": content})
    return turns


def _objects(value: Any) -> list[Mapping[str, Any]]:
    objects = decode_json_text(value) if value_kind(value) == TURNS else value
    is_list = isinstance(objects, list) and all(isinstance(turn, Mapping) for turn in objects)
    return objects if is_list else []


def unread_turn_keys(value: Any) -> list[str]:
    """Return the keys of turns that are not read, such as `weight`, once for each turn."""
    return [
        key
        for turn in ([value] if isinstance(value, Mapping) else _objects(value))
        for key, content in turn.items()
        if key not in _TURN_KEYS and content not in (None, [], {}, "")
    ]


def tools_json(row: Row) -> str | None:
    """Return a row's `tools` as JSON text, None for none. Raises BadRow.

    As text, because a table would give each schema the keys of all others, with nulls, and a chat
    template would write them out. TRL parses it.
    """
    tools = decode_json_text(row.values["tools"])
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow.wrong_type(
            "tools",
            row.at("tools"),
            row.values["tools"],
            "a list of JSON schemas, or the same as JSON text: the chat template gets this column. "
            "If it is something else, rename it (`columns`), or leave it out (`keep`).",
        )
    return json.dumps(tools, ensure_ascii=False)


def check_turn_order(turns: Sequence[Turn], where: str) -> None:
    """Raise BadRow unless turns are system?, user, assistant, ..., user, none of them empty."""
    for number, turn in enumerate(turns, start=1):
        if turn["role"] == "system" and number > 1:
            raise BadRow(
                "system_in_the_middle",
                f"{where}: turn {number} is a system turn. Expected it first, or nowhere.",
            )
        if not turn["content"].strip():
            raise BadRow("empty_turn", f"{where}: turn {number} ({turn['role']}) is empty.")
    roles = [turn["role"] for turn in turns if turn["role"] != "system"]
    if not roles:
        raise BadRow("empty_prompt", f"{where}: holds no user turn.")
    for number, role in enumerate(roles):
        expected = ("user", "assistant")[number % 2]
        if role != expected:
            raise BadRow(
                "role_order",
                f"{where}: turn {number + len(turns) - len(roles) + 1} is {role}'s, expected "
                f"{expected}'s: user and assistant take turns, and the user begins.",
            )
    if roles[-1] != "user":
        raise BadRow(
            f"ends_with_{roles[-1]}", f"{where}: the last turn is {roles[-1]}'s, expected user's."
        )


def split_transcript(text: str, where: str) -> list[Turn]:
    """Return the turns of a transcript; one space after each mark belongs to the mark."""
    text = _plain_line_ends(text)
    before, *rest = _MARK.split(text if text.startswith("\n\n") else "\n\n" + text.lstrip())
    if before.strip():
        raise BadRow(
            "no_transcript", f"{where}: begins with {describe_value(before)}, not with 'Human:'."
        )
    return [
        {"role": ROLES[speaker.lower()], "content": content.removeprefix(" ")}
        for speaker, content in zip(rest[::2], rest[1::2], strict=True)
    ]


def _plain_line_ends(text: str) -> str:
    """Return a transcript with plain line ends, if its marks follow Windows line ends."""
    return text.replace("\r\n", "\n") if _WINDOWS_MARK.search(text) else text


def split_transcript_pair(chosen: str, rejected: str, where: str) -> tuple[list[Turn], str, str]:
    """Return the turns that two transcripts share, and the two answers that follow them.

    The longest common prefix is cut at its last `Assistant:`. Where an answer after that cut holds
    another turn, the transcripts part earlier, and answer different prompts: BadRow.
    """
    chosen, rejected = _plain_line_ends(chosen), _plain_line_ends(rejected)
    prefix = os.path.commonprefix([chosen, rejected])
    cut = prefix.rfind(ASSISTANT)
    answers = [text[cut + len(ASSISTANT) :] for text in (chosen, rejected)]
    if cut < 0 or any(_MARK.search(answer) for answer in answers):
        raise BadRow(
            "different_prompts",
            f"{where}: chosen and rejected differ from character {len(prefix) + 1} on, before the "
            "last turn, so they do not answer the same prompt.",
        )
    first, second = (answer.removeprefix(" ") for answer in answers)
    return split_transcript(chosen[:cut], where), first, second

"""Parse conversations in their common formats into turns in a checked order."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.turn_parts import (
    CALLS,
    THOUGHTS,
    call_list,
    content_text,
    result_text,
    thought_text,
    written_calls,
)
from hf_rlhf.data.values import (
    JSON_TURNS,
    decode_json_text,
    describe_value,
    value_kind,
    without_nulls,
)

Turn = dict[str, Any]
"""`{"role": "system" | "user" | "assistant" | "tool", "content": text}`.

An assistant's turn may have `reasoning_content` (a text) and `tool_calls` (OpenAI's, with arguments
as an object), a tool's result `tool_call_id` and `name`.
"""

SPELLINGS = (("role", "content"), ("from", "value"))
"""The keys of a turn: OpenAI's and ShareGPT's."""
_CALLS = frozenset(CALLS)
_PARAMETERS = {"parameters", "input_schema"}
_RESULT_KEYS = ("tool_call_id", "name")
_TURN_KEYS = frozenset((*SPELLINGS[0], *SPELLINGS[1], *CALLS, *THOUGHTS, "tool_call_id"))

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "ai", "gpt", "chatgpt", "bot", "model"), "assistant"),
}
"""Spelling -> role: OpenAI's, LangChain's, ShareGPT's, LLaMA-Factory's, OpenAssistant's."""

TOOL_ROLES = {
    **dict.fromkeys(("function_call", "tool_call", "tool_calls"), "function_call"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    **dict.fromkeys(("tool_response", "function_response", "tool_result", "ipython"), "tool"),
}
"""Spelling -> role for turns that are a tool call or a tool's result."""
_ALL_ROLES = {**ROLES, **TOOL_ROLES}
_NEXT = {"assistant": ("user",), "user": ("assistant",), "tool": ("assistant", "user")}
"""Role of a turn -> roles that may follow, beside the results of calls."""

HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
_MARK = re.compile(r"\n\n(Human|Assistant):")
_WINDOWS_MARK = re.compile(r"\r\n\r\n(Human|Assistant):")


def parse_turns(row: Row, column: str) -> list[Turn]:
    """Return the turns of a column: a list, or its JSON text. Raises BadRow.

    An empty system turn at the start is dropped: many tools export it when there is no prompt. A
    turn that only calls tools is merged into a preceding turn of the assistant.
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
    turns: list[Turn] = []
    for number, item in enumerate(value, 1):
        turn = parse_turn(item, f"{row.at(column)}, turn {number}", row.ignored)
        if _is_call(item) and turns and turns[-1]["role"] == "assistant":
            calls = [*turns[-1].get("tool_calls", ()), *turn["tool_calls"]]
            turns[-1] = {**turn, **turns[-1], "tool_calls": calls}
        else:
            turns.append(turn)
    without_prompt = turns and turns[0]["role"] == "system" and not turns[0]["content"].strip()
    return turns[1:] if without_prompt else turns


def parse_turn(value: Any, where: str, ignored: frozenset[str] = frozenset()) -> Turn:
    """Return a turn with a role that `Turn` knows, without the keys `ignored`. Raises BadRow."""
    fields = value if isinstance(value, Mapping) else {}
    if ignored & fields.keys():
        fields = {key: inner for key, inner in fields.items() if key not in ignored}
    keys = next((keys for keys in SPELLINGS if fields.get(keys[0]) is not None), None)
    if keys is None:
        raise _not_a_turn(value, fields, where)
    role, content = _role(fields[keys[0]]), fields.get(keys[1])
    if role is None:
        raise BadRow(
            "unknown_role",
            f"{where}: the role is {describe_value(fields[keys[0]])}, expected one of "
            f"{', '.join(_ALL_ROLES)}.",
        )
    calls = call_list(without_nulls(fields), where) if _CALLS & fields.keys() else []
    if keys[1] not in fields and not calls:
        raise BadRow(
            "wrong_type:content",
            f"{where}: has {keys[0]!r} and no {keys[1]!r}. It has: {', '.join(map(str, fields))}.",
        )
    if role == "function_call":
        thought, calls = written_calls(content, where)
        return _assistant("", calls, thought)
    if role == "tool":
        names = {key: fields[key] for key in _RESULT_KEYS if fields.get(key)}
        return {"role": role, "content": result_text(content, where), **names}
    text, thought = content_text("" if calls and content is None else content, where)
    thought = thought_text(fields, thought, where)
    if role == "assistant":
        return _assistant(text, calls, thought)
    if calls or thought:
        problem = "calls a tool" if calls else "has a thought"
        raise BadRow("not_the_assistant", f"{where}: {problem}, and the role is {role}.")
    return {"role": role, "content": text}


def is_assistant(value: Mapping[str, Any]) -> bool:
    """Return whether a raw turn is the assistant's."""
    return _role(value.get("role") or value.get("from")) in ("assistant", "function_call")


def _role(name: Any) -> str | None:
    return _ALL_ROLES.get(name.lower()) if isinstance(name, str) else None


def _is_call(value: Mapping[str, Any]) -> bool:
    return _role(value.get("role") or value.get("from")) == "function_call"


def _assistant(text: str, calls: list[dict[str, Any]], thought: str) -> Turn:
    turn: Turn = {"role": "assistant", "content": text}
    if thought:
        turn["reasoning_content"] = thought
    return {**turn, "tool_calls": calls} if calls else turn


def _not_a_turn(value: Any, fields: Mapping[str, Any], where: str) -> BadRow:
    nested = isinstance(value, list) or any(isinstance(inner, list) for inner in fields.values())
    cure = " A row holds one conversation: write a row for each." if nested else ""
    keys = f" with the keys {', '.join(map(str, fields))}" if fields else ""
    return BadRow(
        "wrong_type:turn",
        f'{where}: is {describe_value(value)}{keys}, expected {{"role", "content"}} or '
        f'{{"from", "value"}}.{cure}',
    )


def conversation_turns(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a conversation (a list or its JSON text); none for any other value.

    Each has `content` and a `role`: a value of `ROLES`, or the source's own role if unknown.
    Nothing is checked.
    """
    turns = []
    for turn in _objects(value):
        role = str(turn.get("role") or turn.get("from")).lower()
        content = turn.get("content") or turn.get("value")
        turns.append({**turn, "role": ROLES.get(role, role), "content": content})
    return turns


def _objects(value: Any) -> list[Mapping[str, Any]]:
    objects = turns_in_text(value) if isinstance(value, str) else value
    is_list = isinstance(objects, list) and all(isinstance(turn, Mapping) for turn in objects)
    return objects if is_list else []


def turns_in_text(text: str) -> list[Mapping[str, Any]]:
    """Return the objects of a JSON list of turns; none for any other text."""
    value = decode_json_text(text) if value_kind(text) == JSON_TURNS else None
    return value if isinstance(value, list) and all(map(_is_turn, value)) else []


def _is_turn(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    contents = [content for name, content in SPELLINGS if _role(value.get(name)) is not None]
    return any(key in value for key in (*contents, *CALLS)) if contents else False


def turn_objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the raw turns of a conversation or a single turn."""
    return [value] if isinstance(value, Mapping) else _objects(value)


def unread_turn_keys(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys of turns that are ignored, once per turn."""
    return [
        key
        for turn in turns
        for key, content in turn.items()
        if key not in _TURN_KEYS and content not in (None, [], {}, "")
        if not (key == "name" and _role(turn.get("role")) == "tool")
    ]


def has_schemas(value: Any) -> bool:
    """Return whether a value is a list of function schemas, or its JSON text."""
    schemas = decode_json_text(value)
    return isinstance(schemas, list) and all(
        isinstance(schema, Mapping)
        and ("function" in schema or ("name" in schema and _PARAMETERS & schema.keys()))
        for schema in schemas
    )


def tools_json(row: Row) -> str | None:
    """Return a row's `tools` as JSON text, None without tools. Raises BadRow.

    A table would give each schema the keys of all others, with nulls, and a chat template would
    render them. TRL parses the text. A schema is OpenAI's `{"type": "function", "function":
    {...}}`, or the inner object alone.
    """
    tools = tool_schemas(row.values["tools"])
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow.wrong_type(
            "tools",
            row.at("tools"),
            row.values["tools"],
            "a list of JSON schemas or its JSON text. If it is something else, rename it "
            "(`columns`), or leave it out (`keep`).",
        )
    return json.dumps(tools, ensure_ascii=False)


def tool_schemas(value: Any) -> Any:
    """Return schemas (or their JSON text) in OpenAI's format, without null keys."""
    tools = decode_json_text(value)
    return list(map(_function_schema, tools)) if isinstance(tools, list) else tools


def _function_schema(tool: Any) -> Any:
    tool = without_nulls(decode_json_text(tool))
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or tool.get("type", "function") != "function":
        return tool
    function = {key: value for key, value in tool.items() if key != "type"}
    if "input_schema" in function:  # Anthropic's format
        function["parameters"] = function.pop("input_schema")
    return {"type": "function", "function": function}


def check_turn_order(turns: Sequence[Turn], where: str) -> None:
    """Raise BadRow unless no turn is empty and the last is the user's or a tool's result.

    The order is system?, user, assistant, ..., user. Results follow a turn of the assistant that
    calls tools; then the assistant or the user continues.
    """
    for number, turn in enumerate(turns, 1):
        if turn["role"] == "system" and number > 1:
            raise BadRow(
                "system_in_the_middle",
                f"{where}: turn {number} is a system turn. Expected it first, or nowhere.",
            )
        if not turn["content"].strip() and not turn.get("tool_calls") and turn["role"] != "tool":
            raise BadRow("empty_turn", f"{where}: turn {number} ({turn['role']}) is empty.")
    others = [turn for turn in turns if turn["role"] != "system"]
    if not others:
        raise BadRow("empty_prompt", f"{where}: holds no user turn.")
    before = "assistant"
    waiting: list[Any] = []
    for number, turn in enumerate(others, start=1 + len(turns) - len(others)):
        role = turn["role"]
        if role == "tool":
            _take_call(waiting, turn.get("tool_call_id"), f"{where}: turn {number}")
        elif role not in _NEXT[before]:
            raise BadRow(
                "role_order",
                f"{where}: turn {number} is {role}'s, expected {' or '.join(_NEXT[before])}'s.",
            )
        else:
            waiting = [call.get("id") for call in turn.get("tool_calls", ())]
        before = role
    if before == "assistant":
        raise BadRow(
            "ends_with_assistant", f"{where}: the last turn is assistant's, expected user's."
        )


def _take_call(waiting: list[Any], name: Any, where: str) -> None:
    """Remove the call that a result belongs to: by id, or in order where an id is missing."""
    fitting = [call for call in waiting if name is None or call in (None, name)]
    if not fitting:
        raise BadRow(
            "result_without_call",
            f"{where} is a tool's result, and no call before it waits for "
            f"{'a result' if name is None else repr(name)}. Calls are no text.",
        )
    waiting.remove(name if name in fitting else fitting[0])


def split_transcript(text: str, where: str) -> list[Turn]:
    """Return the turns of a transcript. One space after each role marker belongs to the marker."""
    text = _plain_line_ends(text)
    before, *rest = _MARK.split("\n\n" + text.lstrip())
    if before.strip():
        raise BadRow(
            "no_transcript", f"{where}: begins with {describe_value(before)}, not with 'Human:'."
        )
    return [
        {"role": ROLES[speaker.lower()], "content": content.removeprefix(" ")}
        for speaker, content in zip(rest[::2], rest[1::2], strict=True)
    ]


def _plain_line_ends(text: str) -> str:
    """Return a transcript with `\n` line ends, if its role markers follow Windows line ends."""
    return text.replace("\r\n", "\n") if _WINDOWS_MARK.search(text) else text


def split_transcript_pair(chosen: str, rejected: str, where: str) -> tuple[list[Turn], str, str]:
    """Return the turns that two transcripts share, and the two answers that follow them.

    The longest common prefix is cut at its last `Assistant:`. Raises BadRow if an answer after that
    cut contains another turn: the transcripts then answer different prompts.
    """
    chosen, rejected = _plain_line_ends(chosen), _plain_line_ends(rejected)
    prefix = os.path.commonprefix([chosen, rejected])
    cut = prefix.rfind(ASSISTANT)
    answers = [text[cut + len(ASSISTANT) :] for text in (chosen, rejected)]
    if cut < 0 or any(_MARK.search(answer) for answer in answers):
        raise BadRow(
            "different_prompts",
            f"{where}: chosen and rejected differ from character {len(prefix) + 1} on, before the "
            "last turn.",
        )
    first, second = (answer.removeprefix(" ") for answer in answers)
    return split_transcript(chosen[:cut], where), first, second

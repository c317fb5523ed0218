"""Convert a row's columns in any form to a conversation and the answers to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hf_rlhf.data.chat import (
    Turn,
    check_turn_order,
    conversation_turns,
    parse_turn,
    parse_turns,
    split_transcript,
    turns_in_text,
)
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import (
    JSON_TURNS,
    TRANSCRIPT,
    TURN,
    TURNS,
    decode_json_text,
    describe_value,
    value_kind,
)


@dataclass(frozen=True)
class Example:
    """A conversation, and the answers to it."""

    history: Sequence[Turn]
    """An optional system turn, then user and assistant alternate; the last turn is not the
    assistant's."""
    answers: tuple[Turn, ...] = ()
    """None for a prompt, the response for SFT, chosen and rejected for a preference."""
    margin: float | None = None
    label: bool | None = None
    """Whether a judged response is good."""
    skip: str = ""
    """Why a valid row is skipped, such as `label_false`."""


def prompt_history(row: Row, column: str) -> list[Turn]:
    """Return a prompt column as turns that end with the user's. Raises BadRow.

    A text is one user turn, unless it is the JSON text of turns, or a transcript that ends with an
    open `Assistant:`. An `instruction` has Alpaca's columns beside it.
    """
    value = row.values[column]
    kind = value_kind(value)
    if column == "instruction":
        turns = _instruction_turns(row)
    elif kind == TURNS or (kind == JSON_TURNS and turns_in_text(value)):
        turns = parse_turns(row, column)
    else:
        turns = [{"role": "user", "content": value}]
        if kind == TRANSCRIPT:
            *before, last = split_transcript(value, row.at(column))
            is_open = last["role"] == "assistant" and not last["content"].strip()
            turns = before if is_open else turns
    return checked_history(row, column, turns)


def _instruction_turns(row: Row) -> list[Turn]:
    """Return the pairs in `history`, then `instruction` and, after a blank line, `input`."""
    text, more = row.values["instruction"], row.values.get("input")
    if more is not None and not isinstance(more, str):
        raise BadRow.wrong_type("input", row.at("input"), more, "a text.")
    if text.strip() and (more or "").strip():
        text = f"{text}\n\n{more}"
    return [*_earlier_turns(row), {"role": "user", "content": text}]


def _earlier_turns(row: Row) -> list[Turn]:
    value = row.values.get("history")
    pairs = decode_json_text(value) or []
    is_list = isinstance(pairs, list) and all(isinstance(pair, list) for pair in pairs)
    if not is_list or any([*map(type, pair)] != [str, str] for pair in pairs):
        expected = "a list of pairs of prompt and answer, or another name for it (`columns`)."
        raise BadRow.wrong_type("history", row.at("history"), value, expected)
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def checked_history(row: Row, column: str, turns: Sequence[Turn]) -> list[Turn]:
    """Return turns that end with the user's, the row's `system` before them. Raises BadRow."""
    history = _with_system(row, turns)
    prompts = [turn["content"] for turn in turns if turn["role"] == "user"]
    if prompts and not any(text.strip() for text in prompts):
        raise BadRow("empty_prompt", f"{row.at(column)}: is empty, expected a prompt.")
    check_turn_order(history, row.at(column))
    return history


def without_answer(row: Row, column: str, turns: list[Turn]) -> list[Turn]:
    """Return a conversation without the answer at its end. Raises BadRow if it ends with two."""
    if [turn["role"] for turn in turns[-2:]] == ["assistant", "assistant"]:
        raise BadRow(
            "two_final_answers",
            f"{row.at(column)}: the last two turns are both assistant's. Join or remove one.",
        )
    return turns[:-1]


def _with_system(row: Row, turns: Sequence[Turn]) -> list[Turn]:
    system = row.values.get("system")
    if system is None or (isinstance(system, str) and not system.strip()):
        return list(turns)
    if not isinstance(system, str):
        raise BadRow.wrong_type("system", row.at("system"), system, "a text.")
    if turns and turns[0]["role"] == "system":
        if turns[0]["content"] == system:
            return list(turns)
        raise BadRow(
            "two_system_prompts",
            f"{row.where}: field 'system' and the first turn are two different system prompts.",
        )
    return [{"role": "system", "content": system}, *turns]


def answer_turn(row: Row, prompt: str, column: str, history: Sequence[Turn]) -> Turn:
    """Return an answer from a text, one assistant turn, or `history` and that turn. Raises BadRow.

    JSON text of turns counts as plain text, unless the column `prompt` also has its turns as JSON
    text or the text begins with them.
    """
    value = row.values[column]
    kind = value_kind(value)
    if kind == TRANSCRIPT and _repeats(split_transcript(value, row.at(column)), history):
        raise BadRow(
            "repeats_prompt",
            f"{row.at(column)}: is a transcript that repeats the prompt, expected the answer. "
            "If it is a text, write `text: true`.",
        )
    is_json = kind == JSON_TURNS and turns_in_text(value)
    beside_json = is_json and turns_in_text(str(row.values[prompt]))
    if kind == TURNS or beside_json or (is_json and _repeats(conversation_turns(value), history)):
        turns = _after_history(parse_turns(row, column), history)
    elif kind == TURN:
        turns = [parse_turn(value, row.at(column), row.ignored)]
    else:
        turns = [{"role": "assistant", "content": value}]
    if [turn["role"] for turn in turns] != ["assistant"]:
        roles = ", ".join(turn["role"] for turn in turns) or "none"
        raise BadRow(
            "answer_not_one_turn",
            f"{row.at(column)}: holds the turns {roles}, expected the prompt and one assistant "
            "turn, or that turn alone. Answers of several turns are read in `messages`.",
        )
    return turns[0]


def _repeats(turns: Sequence[Turn], history: Sequence[Turn]) -> bool:
    """Return whether turns begin with a prompt, judged by the prompt's last turn."""
    texts = [str(turn["content"]).strip() for turn in turns[:-1]]
    return history[-1]["content"].strip() in texts


def _after_history(turns: list[Turn], history: Sequence[Turn]) -> list[Turn]:
    without_system = [turn for turn in history if turn["role"] != "system"]
    for before in (list(history), without_system):
        if before and turns[: len(before)] == before:
            return turns[len(before) :]
    return turns


def finite_number(row: Row, column: str) -> float:
    """Return a finite number; text is parsed, as in CSV. Raises BadRow."""
    value = row.values.get(column)
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise BadRow(
            f"not_a_number:{column}",
            f"{row.at(column)}: is {describe_value(value)}, expected a finite number.",
        )
    return number

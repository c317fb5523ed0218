"""What the tables of schemas have in common: from the columns of a row to turns and answers."""

import math
from collections.abc import Sequence
from typing import Any

from hf_rlhf.data import Row
from hf_rlhf_classic.data.turns import (
    Turn,
    check_order,
    split_transcript,
    turn_of,
    turns_of,
)
from hf_rlhf_classic.data.values import (
    TEXT,
    TRANSCRIPT,
    TURN,
    TURNS,
    BadRow,
    kind_of,
    said,
    unpacked,
)

PROMPT = (TEXT, TRANSCRIPT, TURNS)
ANSWER = (TEXT, TURN, TURNS)
ALPACA = ("input", "history")
"""What may stand beside `instruction`."""


def history_of(row: Row, column: str) -> list[Turn]:
    """Return what a prompt column holds, as turns of which the last is the user's. Raises BadRow.

    A text is one user turn; a transcript ends with an open `Assistant:`.
    """
    value, where = row.values[column], f"{row.where}: field {column!r}"
    kind = kind_of(value)
    if kind == TURNS:
        turns = turns_of(value, row.where, column)
    elif kind == TRANSCRIPT:
        turns = split_transcript(value, where)
        if not turns[-1]["content"].strip():
            turns.pop()
    else:
        turns = [{"role": "user", "content": value}]
    return ordered(row, column, turns)


def instruction_of(row: Row) -> list[Turn]:
    """Return Alpaca's columns as turns of which the last is the user's. Raises BadRow.

    That is `instruction`, and `input` after a blank line if there is one; before it the pairs of
    prompt and answer in `history`.
    """
    text, given = row.values["instruction"], row.values.get("input")
    if given is not None and not isinstance(given, str):
        raise BadRow(
            "wrong_type:input", f"{row.where}: field 'input': is {said(given)}, expected a text."
        )
    if text.strip() and (given or "").strip():
        text = f"{text}\n\n{given}"
    return ordered(row, "instruction", [*_rounds(row), {"role": "user", "content": text}])


def _rounds(row: Row) -> list[Turn]:
    given = row.values.get("history")
    rounds = unpacked(given) or []
    if not isinstance(rounds, list) or not all(map(_is_pair, rounds)):
        raise BadRow(
            "wrong_type:history",
            f"{row.where}: field 'history': is {said(given)}, expected a list of pairs of prompt "
            "and answer. If it is something else, give it another name (`columns`).",
        )
    roles = ("user", "assistant")
    return [
        {"role": role, "content": text}
        for pair in rounds
        for role, text in zip(roles, pair, strict=True)
    ]


def _is_pair(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return texts and len(value) == 2


def ordered(row: Row, column: str, turns: Sequence[Turn]) -> list[Turn]:
    """Return turns that end with the user's, with the row's `system` before them. Raises BadRow."""
    whole = with_system(row, turns)
    asked = [turn["content"] for turn in turns if turn["role"] == "user"]
    if asked and not any(text.strip() for text in asked):
        raise BadRow("empty_prompt", f"{row.where}: field {column!r}: is empty, expected a prompt.")
    check_order(whole, f"{row.where}: field {column!r}")
    return whole


def without_answer(row: Row, column: str, turns: Sequence[Turn]) -> Sequence[Turn]:
    """Return a conversation without the answer that it ends with. Raises BadRow for two of them."""
    if [turn["role"] for turn in turns[-2:]] == ["assistant", "assistant"]:
        raise BadRow(
            "two_final_answers",
            f"{row.where}: field {column!r}: the last two turns are both assistant's, and which "
            "of them is the answer, nobody can tell. Join them to one turn, or remove one.",
        )
    return turns[:-1]


def with_system(row: Row, turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with the row's `system` text before them, if it has one. Raises BadRow."""
    given = row.values.get("system")
    if given is None or (isinstance(given, str) and not given.strip()):
        return list(turns)
    if not isinstance(given, str):
        raise BadRow(
            "wrong_type:system", f"{row.where}: field 'system': is {said(given)}, expected a text."
        )
    if turns and turns[0]["role"] == "system":
        if turns[0]["content"] == given:
            return list(turns)
        raise BadRow(
            "two_system_prompts",
            f"{row.where}: field 'system' and the first turn are two different system prompts.",
        )
    return [{"role": "system", "content": given}, *turns]


def answer_of(row: Row, column: str, history: Sequence[Turn] = ()) -> str:
    """Return an answer: a text, one assistant turn, or the history and that turn. Raises BadRow."""
    value, where = row.values[column], f"{row.where}: field {column!r}"
    kind = kind_of(value)
    if kind == TURNS:
        turns = turns_of(value, row.where, column)
        spoken = [turn for turn in history if turn["role"] != "system"]
        for before in (list(history), spoken):
            if before and turns[: len(before)] == before:
                turns = turns[len(before) :]
                break
    elif kind == TURN:
        turns = [turn_of(value, where)]
    else:
        turns = [{"role": "assistant", "content": value}]
    if [turn["role"] for turn in turns] != ["assistant"]:
        roles = ", ".join(turn["role"] for turn in turns) or "none"
        raise BadRow(
            "answer_not_one_turn",
            f"{where}: holds the turns {roles}, expected the prompt and one assistant turn, or "
            "that turn alone.",
        )
    return turns[0]["content"]


def number_of(row: Row, column: str) -> float:
    """Return a finite number, which may be text as in CSV. Raises BadRow."""
    value = row.values.get(column)
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise BadRow(
            f"not_a_number:{column}",
            f"{row.where}: field {column!r}: is {said(value)}, expected a finite number.",
        )
    return number

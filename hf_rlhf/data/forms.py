"""Known forms of chat rows: responses to learn, preferences, and prompts.

docs/reference/classic-data.md lists them all.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from hf_rlhf.data.chat import Turn, conversation_turns, parse_turns, split_transcript_pair
from hf_rlhf.data.examples import (
    Example,
    answer_turn,
    checked_history,
    finite_number,
    prompt_history,
    without_answer,
)
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.schemas import Schema
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import (
    BINARY,
    BOOLEANS,
    FLAG,
    JSON_TURNS,
    NUMBER,
    TEXT,
    TRANSCRIPT,
    TURN,
    TURNS,
    describe_value,
)

PreferenceLabel = Literal["better", "safer"]
Margin = Literal["column", "scores", "none"]

_TEXTS = (TEXT, TRANSCRIPT, JSON_TURNS)
"""Kinds of values in a text column, which may quote a transcript or JSON."""
_LISTS = (TURNS, JSON_TURNS)
_ANSWER = (*_TEXTS, TURN, TURNS)
_PROMPT = (*_TEXTS, TURNS)
_CONVERSATIONS = ("messages", "conversations")
_PROMPTS = {"instruction": _TEXTS, **dict.fromkeys(_CONVERSATIONS, _LISTS)}
"""Prompt column -> kinds of values; `_PROMPT` for all others."""
_ALPACA = ("input", "history")
"""Optional columns beside `instruction`."""
_PAIR = ("chosen", "rejected")
_TRANSCRIPTS = dict.fromkeys(_PAIR, (TRANSCRIPT,))
_MARGINS = {"column": ("margin",), "scores": ("score_chosen", "score_rejected"), "none": ()}


def chat_schemas(
    label: PreferenceLabel = "better", margin: Margin = "column"
) -> dict[str, tuple[Schema, ...]]:
    """Return the schemas of each kind of row: `sft`, `preference`, `unpaired`, `prompts`.

    Args:
        label: the label of PKU-SafeRLHF that decides which answer is chosen.
        margin: the source of a preference's margin: the column `margin`, `score_chosen` -
            `score_rejected`, or none.
    """
    pairs = _preference_schemas(label)
    judged = tuple(  # responses with a boolean `label`, for KTO
        _changed(
            schema,
            _add_label,
            name=f"{schema.name}_label",
            needs={**schema.needs, "label": (FLAG, TEXT, NUMBER)},
        )
        for schema in _responses()
    )
    optional = _MARGINS[margin] if margin == "column" else ()  # scores stay separate columns
    return {
        "sft": (
            *(replace(schema, unless=(*schema.unless, "label")) for schema in _responses()),
            *(_changed(schema, _skip_bad) for schema in judged),
            *(_changed(schema, _keep_chosen, name=f"{schema.name}:chosen") for schema in pairs),
        ),
        "preference": tuple(
            _changed(schema, partial(_add_margin, margin), optional=(*schema.optional, *optional))
            for schema in pairs
        ),
        "unpaired": judged,
        "prompts": _prompt_schemas(),
    }


def row_kind(values: Mapping[str, Any]) -> str:
    """Return the kind of a row by its columns: `preference`, `sft`, `prompts`, or `unknown`.

    A conversation that does not end with the assistant's turn is a prompt. A value of a wrong type
    does not change the kind: the adapter rejects that row with the reason.
    """
    present = {name for name, value in values.items() if value is not None}
    for kind in ("preference", "sft", "prompts"):
        for schema in _KINDS[kind]:
            if present >= schema.needs.keys() and present.isdisjoint(schema.unless):
                column = next(iter(schema.needs))
                is_conversation = kind == "sft" and column in _CONVERSATIONS
                if not is_conversation:
                    return kind
                last = conversation_turns(values[column])[-1:]
                return {"assistant": "sft"}.get(last[0]["role"], "prompts") if last else "unknown"
    return "unknown"


def _schema(
    prompt: str,
    answers: tuple[str, ...] = (),
    *,
    name: str = "",
    kinds: tuple[str, ...] = _ANSWER,
    unless: tuple[str, ...] = (),
) -> Schema:
    """Return the schema for a prompt column and its answer columns of these kinds."""

    def make(row: Row) -> Example:
        turns = prompt_history(row, prompt)
        return Example(turns, tuple(answer_turn(row, prompt, each, turns) for each in answers))

    return Schema(
        name or "_".join((prompt, *answers)),
        {prompt: _PROMPTS.get(prompt, _PROMPT), **dict.fromkeys(answers, kinds)},
        make,
        optional=_ALPACA if prompt == "instruction" else (),
        unless=unless,
    )


def _changed(schema: Schema, change: Callable[[Row, Example], Example], **fields: Any) -> Schema:
    """Return a schema with other fields and a change to its examples."""
    return replace(schema, make=lambda row: change(row, schema.make(row)), **fields)


def _responses() -> tuple[Schema, ...]:
    columns = (
        ("prompt", "response"),
        ("prompt", "completion"),
        ("question", "answer"),
        ("instruction", "output"),
    )
    return (
        *(_schema(prompt, (answer,)) for prompt, answer in columns),
        *(
            Schema(name, {name: _LISTS}, partial(_answered, name), unless=_PAIR)
            for name in _CONVERSATIONS
        ),
    )


def _preference_schemas(label: PreferenceLabel) -> tuple[Schema, ...]:
    responses = ("response_chosen", "response_rejected")
    return (
        *(_schema(prompt, _PAIR) for prompt in ("prompt", "question", "instruction")),
        _schema("question", responses, name="question_response_chosen_rejected"),
        Schema("hh_transcripts", _TRANSCRIPTS, _transcript_pair, unless=("prompt",)),
        _pair_by_label(label),
        *(
            _schema(column, _PAIR, name=f"{column}_pair", kinds=kinds, unless=("prompt",))
            # Where chosen and rejected are whole conversations, `messages` repeats one of the two.
            for column, kinds in (
                ("conversations", _ANSWER),
                ("messages", (TURN, TEXT, TRANSCRIPT)),
            )
        ),
        Schema(
            "message_pair",
            dict.fromkeys(_PAIR, _LISTS),
            _conversation_pair,
            unless=("prompt", "question", "instruction", "conversations"),
        ),
    )


def _prompt_schemas() -> tuple[Schema, ...]:
    """Forms of rows with a prompt. A response after it is ignored."""
    return (
        *map(_schema, ("prompt", "question", "instruction")),
        *(Schema(name, {name: _LISTS}, partial(_before_answer, name)) for name in _CONVERSATIONS),
        Schema(
            "hh_transcripts",
            _TRANSCRIPTS,
            lambda row: replace(_transcript_pair(row), answers=()),
            unless=("prompt",),
        ),
    )


def _answered(column: str, row: Row) -> Example:
    """Return a conversation and the answer at its end."""
    turns = parse_turns(row, column)
    _check_answer(turns[-1:], row.at(column))
    history = checked_history(row, column, without_answer(row, column, turns))
    return Example(history, (turns[-1],))


def _before_answer(column: str, row: Row) -> Example:
    """Return a conversation without the answer at its end, if it has one."""
    turns = parse_turns(row, column)
    if turns and turns[-1]["role"] == "assistant":
        turns = without_answer(row, column, turns)
    return Example(checked_history(row, column, turns))


def _transcript_pair(row: Row) -> Example:
    chosen, rejected = (row.values[name] for name in _PAIR)
    turns, *texts = split_transcript_pair(chosen, rejected, row.where)
    answers: list[Turn] = [{"role": "assistant", "content": text} for text in texts]
    return Example(checked_history(row, "chosen", turns), tuple(answers))


def _conversation_pair(row: Row) -> Example:
    chosen, rejected = (parse_turns(row, name) for name in _PAIR)
    if not chosen or chosen[:-1] != rejected[:-1]:
        raise BadRow(
            "different_prompts",
            f"{row.where}: chosen and rejected differ before their last turn.",
        )
    _check_answer([chosen[-1], rejected[-1]], row.where)
    history = checked_history(row, "chosen", chosen[:-1])
    return Example(history, (chosen[-1], rejected[-1]))


def _check_answer(turns: list[Turn], where: str) -> None:
    """Raise BadRow unless the last turns of conversations are the assistant's."""
    for role in (turn["role"] for turn in turns):
        if role != "assistant":
            problem = f"{where}: the last turn is {role}'s, expected assistant's."
            raise BadRow(f"ends_with_{role}", problem)


def _pair_by_label(label: PreferenceLabel) -> Schema:
    """Return the schema of PKU-SafeRLHF, in which a label names the better response."""
    column = f"{label}_response_id"
    orders = [_schema("prompt", (f"response_{n}", f"response_{1 - n}")) for n in (0, 1)]

    def make(row: Row) -> Example:
        better = row.values[column]
        if str(better) not in BINARY:
            problem = f"{row.at(column)}: is {describe_value(better)}, expected 0 or 1."
            raise BadRow("label_outside_set", problem)
        return orders[BINARY[str(better)]].make(row)

    return Schema(
        "pku_saferlhf",
        {**orders[0].needs, column: (NUMBER, TEXT)},
        make,
    )


def _add_label(row: Row, example: Example) -> Example:
    value = row.values["label"]
    label = BOOLEANS.get(str(value).lower())
    if label is None:
        raise BadRow(
            "label_outside_set",
            f"{row.at('label')}: is {describe_value(value)}, expected true or false. If it "
            "does not judge the response, name the schema without it.",
        )
    return replace(example, label=label)


def _skip_bad(_: Row, example: Example) -> Example:
    return example if example.label else replace(example, skip="label_false")


def _keep_chosen(_: Row, example: Example) -> Example:
    return replace(example, answers=example.answers[:1])


def _add_margin(margin: Margin, row: Row, example: Example) -> Example:
    columns = _MARGINS[margin]
    if not columns or (margin == "column" and row.values.get("margin") in (None, "")):
        return example
    size, *subtrahends = (finite_number(row, name) for name in columns)
    size -= sum(subtrahends)
    if size < 0:
        raise BadRow(
            "negative_margin",
            f"{row.where}: the margin is {size:g}, expected at least 0.",
        )
    return replace(example, margin=size)


_KINDS = {**chat_schemas(), "preference": _preference_schemas("better")}
_KINDS["preference"] += _preference_schemas("safer")

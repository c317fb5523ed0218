"""The known forms of chat rows: responses to learn, preferences, and prompts.

docs/reference/classic-data.md lists them all.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from hf_rlhf.data.chat import Turn, parse_turns, raw_turns, split_transcript_pair, turn_role
from hf_rlhf.data.examples import (
    ALPACA,
    ANSWER,
    PROMPT,
    Example,
    answer_text,
    checked_history,
    finite_number,
    instruction_history,
    prompt_history,
    without_answer,
)
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.schemas import Schema
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import FLAG, NUMBER, TEXT, TRANSCRIPT, TURN, TURNS, describe_value

Make = Callable[[Row], Example]
PreferenceLabel = Literal["better", "safer"]
Margin = Literal["column", "scores", "none"]

_CONVERSATIONS = ("messages", "conversations")
_PAIR = ("chosen", "rejected")
# pandas writes a column of whole numbers with gaps as fractions.
_BINARY = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
_BOOLEANS = {"true": True, "false": False, **{key: bool(n) for key, n in _BINARY.items()}}


def known_schemas(
    label: PreferenceLabel = "better", margin: Margin = "column"
) -> dict[str, tuple[Schema, ...]]:
    """Return the schemas of each kind of row: `sft`, `preference`, `prompts`.

    Args:
        label: the label of PKU-SafeRLHF by which an answer is chosen.
        margin: where a preference's margin comes from: the column `margin`, `score_chosen` -
            `score_rejected`, or nowhere.
    """
    pairs = _preference_schemas(label)
    return {
        "sft": _sft_schemas(pairs),
        "preference": tuple(_with_margin(schema, margin) for schema in pairs),
        "prompts": _prompt_schemas(),
    }


def row_kind(values: Mapping[str, Any]) -> str:
    """Return the kind of a row by its columns: `preference`, `sft`, `prompts`, or `unknown`.

    A conversation that does not end with the assistant's turn is a prompt. A value of a wrong type
    does not change the kind: the adapter rejects that row with the reason.
    """
    present = {name for name, value in values.items() if value is not None}
    for kind in ("preference", "sft", "prompts"):
        for schema in _KNOWN[kind]:
            if present >= schema.needs.keys() and present.isdisjoint(schema.unless):
                column = next(iter(schema.needs))
                is_conversation = kind == "sft" and column in _CONVERSATIONS
                return _conversation_kind(values[column]) if is_conversation else kind
    return "unknown"


def _conversation_kind(value: Any) -> str:
    turns = raw_turns(value)
    if not turns:
        return "unknown"
    return "sft" if turn_role(turns[-1]) == "assistant" else "prompts"


def _sft_schemas(pairs: tuple[Schema, ...]) -> tuple[Schema, ...]:
    """Rows with a boolean `label` (KTO's) are judged responses: those judged good are learnt."""
    responses = (
        *(
            Schema(f"{a}_{b}", {a: PROMPT, b: ANSWER}, _response(a, b))
            for a, b in (("prompt", "response"), ("prompt", "completion"), ("question", "answer"))
        ),
        Schema(
            "instruction_output",
            {"instruction": (TEXT,), "output": ANSWER},
            _instruction_response,
            optional=ALPACA,
        ),
        *(
            Schema(name, {name: (TURNS,)}, _conversation(name), unless=_PAIR)
            for name in _CONVERSATIONS
        ),
    )
    return (
        *(replace(schema, unless=(*schema.unless, "label")) for schema in responses),
        *(
            replace(
                schema,
                name=f"{schema.name}_label",
                needs={**schema.needs, "label": (FLAG, TEXT, NUMBER)},
                make=_judged(schema.make),
                about="judged responses, of which those with label true are learnt; they are no "
                "pairs",
            )
            for schema in responses
        ),
        *(
            replace(
                schema,
                name=f"{schema.name}:chosen",
                make=_first_answer(schema.make),
                about="preferences, of which the chosen answer is learnt",
            )
            for schema in pairs
        ),
    )


def _response(prompt: str, answer: str) -> Make:
    def make(row: Row) -> Example:
        history = prompt_history(row, prompt)
        return Example(history, (answer_text(row, answer, history),))

    return make


def _instruction_response(row: Row) -> Example:
    history = instruction_history(row)
    return Example(history, (answer_text(row, "output", history),))


def _conversation(column: str) -> Make:
    def make(row: Row) -> Example:
        turns = parse_turns(row.values[column], row.where, column)
        if not turns:
            raise BadRow("empty_prompt", f"{row.where}: field {column!r}: holds no turns.")
        if turns[-1]["role"] != "assistant":
            role = turns[-1]["role"]
            raise BadRow(
                f"ends_with_{role}",
                f"{row.where}: field {column!r}: the last turn is {role}'s, expected assistant's: "
                "there is no response to learn.",
            )
        history = checked_history(row, column, without_answer(row, column, turns))
        return Example(history, (turns[-1]["content"],))

    return make


def _judged(make: Make) -> Make:
    def make_judged(row: Row) -> Example:
        value = row.values["label"]
        label = _BOOLEANS.get(str(value).lower())
        if label is None:
            raise BadRow(
                "label_outside_set",
                f"{row.where}: field 'label': is {describe_value(value)}, expected true or false. "
                "If it does not judge the response, name the schema without it.",
            )
        example = make(row)
        return example if label else replace(example, skip="label_false")

    return make_judged


def _first_answer(make: Make) -> Make:
    def make_first(row: Row) -> Example:
        example = make(row)
        return replace(example, answers=example.answers[:1])

    return make_first


def _preference_schemas(label: PreferenceLabel) -> tuple[Schema, ...]:
    return (
        *(
            Schema(
                f"{prompt}_chosen_rejected",
                {prompt: PROMPT, "chosen": ANSWER, "rejected": ANSWER},
                _pair_of_columns(prompt, *_PAIR),
            )
            for prompt in ("prompt", "question")
        ),
        Schema(
            "instruction_chosen_rejected",
            {"instruction": (TEXT,), "chosen": ANSWER, "rejected": ANSWER},
            lambda row: _pair(row, instruction_history(row), *_PAIR),
            optional=ALPACA,
        ),
        Schema(
            "question_response_chosen_rejected",
            {"question": PROMPT, "response_chosen": ANSWER, "response_rejected": ANSWER},
            _pair_of_columns("question", "response_chosen", "response_rejected"),
        ),
        Schema(
            "hh_transcripts",
            {"chosen": (TRANSCRIPT,), "rejected": (TRANSCRIPT,)},
            _transcript_pair,
            unless=("prompt",),
        ),
        Schema(
            "pku_saferlhf",
            {
                "prompt": PROMPT,
                "response_0": ANSWER,
                "response_1": ANSWER,
                f"{label}_response_id": (NUMBER, TEXT),
            },
            _pair_by_label(f"{label}_response_id"),
            about=f"pairs, with `label: {label}`",
        ),
        *(
            Schema(
                f"{column}_pair",
                {column: (TURNS,), "chosen": kinds, "rejected": kinds},
                _pair_of_columns(column, *_PAIR),
                unless=("prompt",),
            )
            # Beside whole conversations in chosen and rejected, `messages` repeats one of them.
            for column, kinds in (("conversations", ANSWER), ("messages", (TURN, TEXT)))
        ),
        Schema(
            "message_pair",
            {"chosen": (TURNS,), "rejected": (TURNS,)},
            _conversation_pair,
            unless=("prompt", "question", "instruction", "conversations"),
        ),
    )


def _pair_of_columns(prompt: str, chosen: str, rejected: str) -> Make:
    return lambda row: _pair(row, prompt_history(row, prompt), chosen, rejected)


def _pair(row: Row, history: list[Turn], chosen: str, rejected: str) -> Example:
    answers = (answer_text(row, chosen, history), answer_text(row, rejected, history))
    return Example(history, answers)


def _transcript_pair(row: Row) -> Example:
    chosen, rejected = (row.values[name] for name in _PAIR)
    turns, *answers = split_transcript_pair(chosen, rejected, row.where)
    return Example(checked_history(row, "chosen", turns), tuple(answers))


def _conversation_pair(row: Row) -> Example:
    chosen, rejected = (parse_turns(row.values[name], row.where, name) for name in _PAIR)
    if not chosen or chosen[:-1] != rejected[:-1]:
        raise BadRow(
            "different_prompts",
            f"{row.where}: chosen and rejected differ before their last turn, so they do not "
            "answer the same prompt.",
        )
    for turn in (chosen[-1], rejected[-1]):
        if turn["role"] != "assistant":
            raise BadRow(
                f"ends_with_{turn['role']}",
                f"{row.where}: the last turn is {turn['role']}'s, expected assistant's.",
            )
    history = checked_history(row, "chosen", chosen[:-1])
    return Example(history, (chosen[-1]["content"], rejected[-1]["content"]))


def _pair_by_label(column: str) -> Make:
    def make(row: Row) -> Example:
        label = row.values[column]
        if str(label) not in _BINARY:
            raise BadRow(
                "label_outside_set",
                f"{row.where}: field {column!r}: is {describe_value(label)}, expected 0 or 1.",
            )
        better = _BINARY[str(label)]
        history = prompt_history(row, "prompt")
        return _pair(row, history, f"response_{better}", f"response_{1 - better}")

    return make


def _with_margin(schema: Schema, margin: Margin) -> Schema:
    """Return a preference schema that reads a margin as well."""
    sources = {"column": ("margin",), "scores": ("score_chosen", "score_rejected"), "none": ()}
    columns = sources[margin]

    def make(row: Row) -> Example:
        example = schema.make(row)
        if not columns or (margin == "column" and row.values.get("margin") in (None, "")):
            return example
        numbers = [finite_number(row, name) for name in columns]
        size = numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]
        if size < 0:
            raise BadRow(
                "negative_margin",
                f"{row.where}: the margin is {size:g}: below 0 it says that the rejected answer "
                "is the better one.",
            )
        return replace(example, margin=size)

    optional = columns if margin == "column" else ()  # scores stay columns of their own
    return replace(schema, make=make, optional=(*schema.optional, *optional))


def _prompt_schemas() -> tuple[Schema, ...]:
    """Forms of rows that hold a prompt. A response after it is not used."""
    return (
        *(Schema(name, {name: PROMPT}, _prompt(name)) for name in ("prompt", "question")),
        Schema(
            "instruction",
            {"instruction": (TEXT,)},
            lambda row: Example(instruction_history(row)),
            optional=ALPACA,
        ),
        *(Schema(name, {name: (TURNS,)}, _conversation_prompt(name)) for name in _CONVERSATIONS),
        Schema(
            "hh_transcripts",
            {"chosen": (TRANSCRIPT,), "rejected": (TRANSCRIPT,)},
            lambda row: replace(_transcript_pair(row), answers=()),
            unless=("prompt",),
        ),
    )


def _prompt(column: str) -> Make:
    return lambda row: Example(prompt_history(row, column))


def _conversation_prompt(column: str) -> Make:
    def make(row: Row) -> Example:
        turns = parse_turns(row.values[column], row.where, column)
        if turns and turns[-1]["role"] == "assistant":
            return Example(checked_history(row, column, without_answer(row, column, turns)))
        return Example(checked_history(row, column, turns))

    return make


_KNOWN = {**known_schemas(), "preference": _preference_schemas("better")}
_KNOWN["preference"] += _preference_schemas("safer")

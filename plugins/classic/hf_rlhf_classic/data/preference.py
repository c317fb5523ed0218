"""`preference`: pairs of answers in the forms people have them, ready for DPO and reward models."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import Row
from hf_rlhf_classic.data.assemble import Settings, assemble
from hf_rlhf_classic.data.rows import (
    ALPACA,
    ANSWER,
    PROMPT,
    answer_of,
    history_of,
    instruction_of,
    number_of,
    ordered,
)
from hf_rlhf_classic.data.schemas import Example, Schema
from hf_rlhf_classic.data.turns import Turn, split_pair, turns_of
from hf_rlhf_classic.data.values import (
    NUMBER,
    TEXT,
    TRANSCRIPT,
    TURN,
    TURNS,
    BadRow,
    said,
)

Label = Literal["better", "safer"]
Margin = Literal["column", "scores", "none"]


def _columns(prompt: str, chosen: str, rejected: str) -> Callable[[Row], Example]:
    return lambda row: _pair(row, history_of(row, prompt), chosen, rejected)


def _instruction(row: Row) -> Example:
    return _pair(row, instruction_of(row), *_PAIR)


def _pair(row: Row, history: list[Turn], chosen: str, rejected: str) -> Example:
    return Example(history, (answer_of(row, chosen, history), answer_of(row, rejected, history)))


def _transcripts(row: Row) -> Example:
    turns, chosen, rejected = split_pair(row.values["chosen"], row.values["rejected"], row.where)
    return Example(ordered(row, "chosen", turns), (chosen, rejected))


def _message_pair(row: Row) -> Example:
    chosen, rejected = (turns_of(row.values[name], row.where, name) for name in _PAIR)
    if not chosen or chosen[:-1] != rejected[:-1]:
        raise BadRow(
            "different_prompts",
            f"{row.where}: chosen and rejected part before their last turn, so they do not answer "
            "the same prompt.",
        )
    history = ordered(row, "chosen", chosen[:-1])
    return Example(history, (_assistant(row, chosen[-1]), _assistant(row, rejected[-1])))


_PAIR = ("chosen", "rejected")


def _assistant(row: Row, turn: Turn) -> str:
    if turn["role"] != "assistant":
        raise BadRow(
            f"ends_with_{turn['role']}",
            f"{row.where}: the last turn is {turn['role']}'s, expected assistant's.",
        )
    return turn["content"]


# pandas writes a column of whole numbers with gaps as fractions.
_PLACES = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


def _labelled(column: str) -> Callable[[Row], Example]:
    def make(row: Row) -> Example:
        label = row.values[column]
        if str(label) not in _PLACES:
            raise BadRow(
                "label_outside_set",
                f"{row.where}: field {column!r}: is {said(label)}, expected 0 or 1.",
            )
        better = _PLACES[str(label)]
        history = history_of(row, "prompt")
        answers = [answer_of(row, f"response_{n}", history) for n in (better, 1 - better)]
        return Example(history, tuple(answers))

    return make


def schemas(label: Label = "better") -> tuple[Schema, ...]:
    """Return the forms of preference rows that are known."""
    return (
        *(
            Schema(
                f"{prompt}_chosen_rejected",
                {prompt: PROMPT, "chosen": ANSWER, "rejected": ANSWER},
                _columns(prompt, "chosen", "rejected"),
            )
            for prompt in ("prompt", "question")
        ),
        Schema(
            "instruction_chosen_rejected",
            {"instruction": (TEXT,), "chosen": ANSWER, "rejected": ANSWER},
            _instruction,
            optional=ALPACA,
        ),
        Schema(
            "question_response_chosen_rejected",
            {"question": PROMPT, "response_chosen": ANSWER, "response_rejected": ANSWER},
            _columns("question", "response_chosen", "response_rejected"),
        ),
        Schema(
            "hh_transcripts",
            {"chosen": (TRANSCRIPT,), "rejected": (TRANSCRIPT,)},
            _transcripts,
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
            _labelled(f"{label}_response_id"),
            about=f"pairs, with `label: {label}`",
        ),
        *(
            Schema(
                f"{column}_pair",
                {column: (TURNS,), "chosen": kinds, "rejected": kinds},
                _columns(column, "chosen", "rejected"),
                unless=("prompt",),
            )
            # Beside whole conversations in chosen and rejected, `messages` repeats one of them.
            for column, kinds in (("conversations", ANSWER), ("messages", (TURN, TEXT)))
        ),
        Schema(
            "message_pair",
            {"chosen": (TURNS,), "rejected": (TURNS,)},
            _message_pair,
            unless=("prompt", "question", "instruction", "conversations"),
        ),
    )


def with_margin(schema: Schema, margin: Margin) -> Schema:
    """Return the schema with a margin read, as `margin` says, from its rows."""
    columns = {"column": ("margin",), "scores": ("score_chosen", "score_rejected"), "none": ()}
    used = columns[margin]

    def make(row: Row) -> Example:
        made = schema.make(row)
        if not used or (margin == "column" and row.values.get("margin") in (None, "")):
            return made
        numbers = [number_of(row, name) for name in used]
        size = numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]
        if size < 0:
            raise BadRow(
                "negative_margin",
                f"{row.where}: the margin is {size:g}: below 0 it says that the rejected answer "
                "is the better one.",
            )
        return replace(made, margin=size)

    own = used if margin == "column" else ()  # scores stay as columns of their own
    return replace(schema, make=make, optional=(*schema.optional, *own))


def preference(
    path: str,
    *,
    tokenizer: Any,
    rejected_rows: Path | None = None,
    label: Label = "better",
    margin: Margin = "column",
    schema: str | None = None,
    columns: dict[str, str] | None = None,
    split: str | None = None,
    revision: str | None = None,
    subset: str | None = None,
    format: Literal["auto", "conversational", "text"] = "auto",
    template: str | None = None,
    response_template: str | None = None,
    system_template: str | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    system: str | None = None,
    keep: list[str] | None = None,
    test_rows: int | None = None,
    test_share: float | None = None,
    max_train_rows: int | None = None,
    max_test_rows: int | None = None,
    seed: int = 42,
    drop_duplicates: Literal["none", "exact", "normalised"] = "none",
    drop_overlap: bool = True,
    max_prompt_tokens: int | None = None,
    max_tokens: int | None = None,
    max_rejected_share: float = 0.05,
) -> Loaded:
    """Load pairs of a chosen and a rejected answer, for DPO, iterative DPO and reward models.

    Rows are `{system?, prompt, chosen, rejected}`, or have one of the forms of `schemas`
    (table in docs/reference/classic-data.md): `question, response_chosen, response_rejected`;
    hh-rlhf transcripts; PKU-SafeRLHF; ShareGPT pairs; chosen and rejected as message lists.

    Args:
        label: which of PKU-SafeRLHF's labels says what is chosen.
        margin: `column` reads a column `margin` if there is one, `scores` takes score_chosen -
            score_rejected, `none` leaves it out. All rows have a margin, or none.
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).

    Returns:
        Splits `train` and `test` with prompt, chosen, rejected, perhaps margin, and the columns
        kept; messages, or texts where `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: a conversation is asked for and the tokenizer has no chat template.
    """
    settings = Settings.of(locals())
    table = tuple(with_margin(one, margin) for one in schemas(label))
    return assemble("preference", table, settings)

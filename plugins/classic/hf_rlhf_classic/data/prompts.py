"""`prompts`: what to answer, for PPO, GRPO and iterative DPO."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import Row
from hf_rlhf_classic.data.assemble import Settings, assemble
from hf_rlhf_classic.data.rows import (
    ALPACA,
    PROMPT,
    history_of,
    instruction_of,
    ordered,
    without_answer,
)
from hf_rlhf_classic.data.schemas import Example, Schema
from hf_rlhf_classic.data.turns import split_pair, turns_of
from hf_rlhf_classic.data.values import TEXT, TRANSCRIPT, TURNS


def _column(name: str) -> Callable[[Row], Example]:
    return lambda row: Example(history_of(row, name))


def _instruction(row: Row) -> Example:
    return Example(instruction_of(row))


def _conversation(column: str) -> Callable[[Row], Example]:
    def make(row: Row) -> Example:
        turns = turns_of(row.values[column], row.where, column)
        answered = bool(turns) and turns[-1]["role"] == "assistant"
        return Example(
            ordered(row, column, without_answer(row, column, turns) if answered else turns)
        )

    return make


def _transcripts(row: Row) -> Example:
    turns, _, _ = split_pair(row.values["chosen"], row.values["rejected"], row.where)
    return Example(ordered(row, "chosen", turns))


def schemas() -> tuple[Schema, ...]:
    """Return the forms of rows that hold a prompt. A response that follows it is not used."""
    return (
        *(Schema(name, {name: PROMPT}, _column(name)) for name in ("prompt", "question")),
        Schema("instruction", {"instruction": (TEXT,)}, _instruction, optional=ALPACA),
        *(
            Schema(name, {name: (TURNS,)}, _conversation(name))
            for name in ("messages", "conversations")
        ),
        Schema(
            "hh_transcripts",
            {"chosen": (TRANSCRIPT,), "rejected": (TRANSCRIPT,)},
            _transcripts,
            unless=("prompt",),
        ),
    )


def prompts(
    path: str,
    *,
    tokenizer: Any,
    rejected_rows: Path | None = None,
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
    """Load prompts to answer, with the columns that rewards need beside them.

    Rows are `{system?, prompt}`, or have `question`, `instruction` and `input`, `messages`,
    `conversations`, or hh-rlhf's transcripts; of a conversation that ends with an answer, the
    turns before it are the prompt.

    Args:
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).

    Returns:
        Splits `train` and `test` with prompt and the columns kept; messages, or texts where
        `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: a conversation is asked for and the tokenizer has no chat template.
    """
    return assemble("prompts", schemas(), Settings.of(locals()))

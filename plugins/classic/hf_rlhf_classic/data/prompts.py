"""`prompts`: what to answer, for PPO, GRPO and iterative DPO."""

from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import load_chat_rows


def prompts(
    path: str | list[str],
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
    context: Literal["full", "last_turn"] = "full",
    keep: list[str] | None = None,
    ignore: list[str] | None = None,
    text: bool = False,
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
    """Load prompts without responses, with the other columns that rewards need.

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
        ModelError: `format: conversational`, and the tokenizer has no chat template.
    """
    return load_chat_rows("prompts", locals())

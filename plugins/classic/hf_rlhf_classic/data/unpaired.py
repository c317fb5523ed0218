"""`unpaired`: single responses judged good or bad, ready for KTO."""

from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import load_chat_rows


def unpaired(
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
    """Load responses that were judged one by one, for KTO.

    Rows are `{system?, prompt, completion, label}`, or have another form of a prompt with a
    response, as in `sft`, and a column `label`: true, false, 1 or 0.

    Args:
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).

    Returns:
        Splits `train` and `test` with prompt, completion, label and the columns kept; messages, or
        texts where `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: `format: conversational`, and the tokenizer has no chat template.
    """
    return load_chat_rows("unpaired", locals())

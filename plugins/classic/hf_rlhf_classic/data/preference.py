"""`preference`: pairs of answers in the forms people have them, ready for DPO and reward models."""

from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import load_chat_rows


def preference(
    path: str | list[str],
    *,
    tokenizer: Any,
    rejected_rows: Path | None = None,
    label: Literal["better", "safer"] = "better",
    margin: Literal["column", "scores", "none"] = "column",
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
    """Load pairs of a chosen and a rejected answer, for DPO, iterative DPO and reward models.

    Rows are `{system?, prompt, chosen, rejected}`, or have one of the forms
    in docs/reference/classic-data.md: `question, response_chosen, response_rejected`;
    hh-rlhf transcripts; PKU-SafeRLHF; ShareGPT pairs; chosen and rejected as message lists.

    Args:
        label: which of PKU-SafeRLHF's labels decides which response is chosen.
        margin: `column` reads a column `margin` if there is one, `scores` takes score_chosen -
            score_rejected, `none` leaves it out. All rows have a margin, or none.
        path: as in `sft`; the arguments without a description, too (`hf-rlhf describe sft`).

    Returns:
        Splits `train` and `test` with prompt, chosen, rejected, a margin if there is one, and the
        columns kept; messages, or texts where `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: `format: conversational`, and the tokenizer has no chat template.
    """
    return load_chat_rows("preference", locals(), label=label, margin=margin)

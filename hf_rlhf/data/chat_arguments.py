"""The arguments that the adapters of chat rows share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.data.splits import Split
from hf_rlhf.errors import DataError

_ROWS = (
    *("prompt", "completion", "chosen", "rejected", "messages", "text", "conversations"),
    "margin",
)
_TOKENS = ("input_ids", "attention_mask", "labels", "completion_mask", "assistant_masks")
_EXTRAS = ("position_ids", "image", "images", "chat_template", "chat_template_kwargs")
_CALL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
READ_BY_TRL = frozenset((*_ROWS, *_TOKENS, *_EXTRAS, *_CALL, "environments"))
"""Columns to which TRL, or the call of a reward, gives its own meaning: never kept unchanged."""


@dataclass(frozen=True, kw_only=True)
class ChatRowArguments(Split):
    """The arguments that adapters of chat rows share; the adapter `sft` documents each of them.

    Each adapter spells them out in its own signature: run files are checked against it, and
    `hf-rlhf describe` shows it.
    """

    path: str | list[str]
    tokenizer: Any
    rejected_rows: Path | None = None
    schema: str | None = None
    columns: dict[str, str] | None = None
    revision: str | None = None
    subset: str | None = None
    format: str = "auto"
    template: str | None = None
    response_template: str | None = None
    system_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    system: str | None = None
    context: Literal["full", "last_turn"] = "full"
    keep: list[str] | None = None
    ignore: list[str] | None = None
    text: bool = False
    max_prompt_tokens: int | None = None
    max_tokens: int | None = None
    max_rejected_share: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_rejected_share <= 1:
            raise DataError(f"`max_rejected_share` is {self.max_rejected_share}, expected 0 to 1.")
        for name in ("max_prompt_tokens", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"`{name}` is {value}, expected at least 1.")
        if reserved := sorted(READ_BY_TRL & set(self.keep or ())):
            raise DataError(
                f"`keep` names {', '.join(reserved)}, to which TRL gives its own meaning. Map the "
                "column to another name with `columns`, and keep that."
            )

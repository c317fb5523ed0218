"""Arguments that adapters of chat rows share."""

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
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
    """Arguments that adapters of chat rows share; the adapter `sft` documents each."""

    path: str | list[str]
    tokenizer: Any
    rejected_rows: Path | None = None
    schema: str | None = None
    columns: dict[str, str] | None = None
    revision: str | None = None
    subset: str | None = None
    format: Literal["auto", "conversational", "text"] = "auto"
    template: str | None = None
    response_template: str | None = None
    system_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    system: str | None = None
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


def chat_adapter(load: Callable[..., Loaded]) -> Callable[..., Loaded]:
    """Return a dataset adapter that takes the fields of `ChatRowArguments` as keywords.

    Run files are checked against its signature, and `hf-rlhf describe` prints it. `load` takes them
    as an object, and its own arguments as keywords.
    """
    types = typing.get_type_hints(ChatRowArguments)
    own = list(inspect.signature(load).parameters.values())[1:]
    shared = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=types[each.name],
        )
        for each in fields(ChatRowArguments)
    ]
    path = next(each for each in shared if each.name == "path")
    path = path.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([path, *own, *(each for each in shared if each.name != "path")])

    @functools.wraps(load)
    def adapter(*arguments: Any, **named: Any) -> Loaded:
        values = signature.bind(*arguments, **named).arguments
        beside = {each.name: values.pop(each.name) for each in own if each.name in values}
        return load(ChatRowArguments(**values), **beside)

    vars(adapter)["__signature__"] = signature
    return adapter

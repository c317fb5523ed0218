"""Dataset adapters of chat rows, as short as a plugin may write them."""

from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import load_chat_rows


def sft(path: str | Path, *, target: str = "final", **arguments: Any) -> Loaded:
    form: Literal["messages", "sft"] = "messages" if target == "every" else "sft"
    return load_chat_rows(form, {"path": str(path), **arguments})


def preference(
    path: str | Path,
    *,
    label: Literal["better", "safer"] = "better",
    margin: Literal["column", "scores", "none"] = "column",
    **arguments: Any,
) -> Loaded:
    arguments["path"] = str(path)
    return load_chat_rows("preference", arguments, label=label, margin=margin)


def prompts(path: str | Path, **arguments: Any) -> Loaded:
    return load_chat_rows("prompts", {"path": str(path), **arguments})


def unpaired(path: str | Path, **arguments: Any) -> Loaded:
    return load_chat_rows("unpaired", {"path": str(path), **arguments})

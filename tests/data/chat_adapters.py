"""Dataset adapters of chat rows, as short as a plugin may write them."""

from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, known_schemas, load_chat_rows


def sft(path: str | Path, *, target: str = "final", **arguments: Any) -> Loaded:
    form = "messages" if target == "every" else "sft"
    return _load(form, known_schemas()["sft"], path, arguments)


def preference(
    path: str | Path,
    *,
    label: Literal["better", "safer"] = "better",
    margin: Literal["column", "scores", "none"] = "column",
    **arguments: Any,
) -> Loaded:
    return _load("preference", known_schemas(label, margin)["preference"], path, arguments)


def prompts(path: str | Path, **arguments: Any) -> Loaded:
    return _load("prompts", known_schemas()["prompts"], path, arguments)


def _load(form: str, table: Any, path: str | Path, arguments: dict[str, Any]) -> Loaded:
    return load_chat_rows(form, table, ChatRowArguments(path=str(path), **arguments))

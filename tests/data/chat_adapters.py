"""Dataset adapters of chat rows, as short as a plugin may write them."""

from typing import Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def sft(arguments: ChatRowArguments, *, target: str = "final") -> Loaded:
    return load_chat_rows("messages" if target == "every" else "sft", arguments)


@chat_adapter
def preference(
    arguments: ChatRowArguments,
    *,
    label: Literal["better", "safer"] = "better",
    margin: Literal["column", "scores", "none"] = "column",
) -> Loaded:
    return load_chat_rows("preference", arguments, label=label, margin=margin)


@chat_adapter
def prompts(arguments: ChatRowArguments) -> Loaded:
    return load_chat_rows("prompts", arguments)


@chat_adapter
def unpaired(arguments: ChatRowArguments) -> Loaded:
    return load_chat_rows("unpaired", arguments)

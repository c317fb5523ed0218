"""Helpers for tests of dataset adapters: rows in a file, and tokenizers without a folder."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class TemplateOnly:
    """A tokenizer with a chat template only, for adapters that do not count tokens."""

    chat_template = "{{ messages }}"


class WordTokenizer:
    """A tokenizer with a token per word, per chat turn and per tool."""

    def __init__(self, chat: bool) -> None:
        """Create a tokenizer with or without a chat template."""
        self.chat_template = "x" if chat else None

    def __call__(
        self, texts: Sequence[str], add_special_tokens: bool, **_: Any
    ) -> dict[str, list[list[str]]]:
        """Return the words of each text, plus a token with `add_special_tokens`."""
        return {"input_ids": [text.split() + ["s"] * add_special_tokens for text in texts]}

    def apply_chat_template(
        self,
        turns: Iterable[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Iterable[Mapping[str, Any]] | None,
        **_: Any,
    ) -> str:
        """Return the text of a conversation, with a word for each tool and each role."""
        lines = [f"<{tool['function']['name']}>" for tool in tools or []]
        lines += [f"<{turn['role']}> {turn['content']}" for turn in turns]
        return " ".join([*lines, *["<assistant>"] * add_generation_prompt])


def write_rows(
    folder: str | os.PathLike[str], rows: Iterable[Any], name: str = "rows.jsonl"
) -> str:
    """Write rows to `folder/name` as JSON Lines, and return its path as text."""
    path = Path(folder, name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)

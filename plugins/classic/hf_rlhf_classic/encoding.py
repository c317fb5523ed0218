"""Encode rows as TRL's trainers do, to measure what they train on.

TRL tokenizes prompt and response together. The response begins where these tokens diverge from the
tokens of the prompt alone. A plain-text response ends with the end-of-sequence token, a response in
messages with the chat template's end. A test compares the results with TRL's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Text = str | Sequence[Mapping[str, Any]]
"""Plain text, or chat messages."""


@dataclass(frozen=True)
class Encoded:
    """Token ids, and whether each token's likelihood counts (response tokens do)."""

    ids: Sequence[int]
    counted: Sequence[bool]

    def cut(self, max_length: int | None, mode: str = "keep_start") -> "Encoded":
        """Return at most `max_length` tokens, from the start or (`keep_end`) from the end."""
        if max_length is None or len(self.ids) <= max_length:
            return self
        remaining = slice(-max_length, None) if mode == "keep_end" else slice(None, max_length)
        return Encoded(self.ids[remaining], self.counted[remaining])


def is_text(value: Any) -> bool:
    """Return whether a prompt or response is plain text, not messages."""
    return isinstance(value, str)


def joined(prompt: Text, response: Text) -> Any:
    """Return prompt and response concatenated, as text or messages."""
    if is_text(prompt):
        return f"{prompt}{response}"
    return [*prompt, *response]


def tokens(tokenizer: Any, text: Text, row: Mapping[str, Any] | None = None, **given: Any) -> Any:
    """Return the token ids of text or messages; with `return_dict`, the template's whole output.

    `row` may contain `tools` (schemas, or JSON text) and `chat_template_kwargs`, as in TRL.
    """
    if is_text(text):
        return tokenizer(text)["input_ids"]
    row = row or {}
    tools = row.get("tools")
    return tokenizer.apply_chat_template(
        list(text),
        **{
            "tokenize": True,
            "return_dict": False,
            "tools": json.loads(tools) if isinstance(tools, str) else tools,
            **given,
        },
        **(row.get("chat_template_kwargs") or {}),
    )


def encode_batch(
    tokenizer: Any, texts: Sequence[Text], rows: Sequence[Mapping[str, Any]], **given: Any
) -> list[list[int]]:
    """Return the `tokens` of each text of a row, tokenized together, which is faster."""
    if not texts:
        return []
    plain = is_text(texts[0])
    if not plain:
        pairs = zip(texts, rows, strict=True)
        texts = [tokens(tokenizer, text, row, tokenize=False, **given) for text, row in pairs]
    # Not `verbose`: the caller counts texts beyond the model's maximum.
    result = tokenizer(list(texts), add_special_tokens=plain, verbose=False)
    return list(result["input_ids"])


def ended(tokenizer: Any, response: Text) -> Any:
    """Return a plain-text response with the end-of-sequence token, if the tokenizer has it.

    Messages are returned unchanged.
    """
    end = tokenizer.eos_token
    if is_text(response) and end is not None and not str(response).endswith(end):
        return f"{response}{end}"
    return response


def encode_responses(
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    responses: Sequence[Text],
    *,
    chat_template: str | None = None,
    assistant_only: bool = False,
) -> list[Encoded]:
    """Encode each row's `prompt` followed by its response; every response token counts.

    With `assistant_only`, only the assistant's tokens count; the chat template must mark them with
    `{% generation %}`.
    """
    template = {"chat_template": chat_template} if chat_template else {}
    prompts = [row["prompt"] for row in rows]
    alone = encode_batch(tokenizer, prompts, rows, add_generation_prompt=True, **template)
    pairs = zip(prompts, responses, strict=True)
    texts = [joined(prompt, ended(tokenizer, response)) for prompt, response in pairs]
    if assistant_only:
        marked = [
            Encoded(*_assistant(tokenizer, text, row, template))
            for text, row in zip(texts, rows, strict=True)
        ]
    else:
        encoded = encode_batch(tokenizer, texts, rows, **template)
        marked = [Encoded(ids, [True] * len(ids)) for ids in encoded]
    starts = [common_start(one, item.ids) for one, item in zip(alone, marked, strict=True)]
    return [
        Encoded(item.ids, [*[False] * start, *item.counted[start:]])
        for item, start in zip(marked, starts, strict=True)
    ]


def encode_pair(tokenizer: Any, row: Mapping[str, Any], sides: Sequence[str]) -> list[Encoded]:
    """Encode the row's responses `sides` from where the first of them diverges from the prompt.

    This matches TRL's `DPOTrainer`: if a token of a response spans the end of the prompt, its
    prompt part counts in the other response too.
    """
    both = encode_responses(tokenizer, [row] * len(sides), [row[side] for side in sides])
    start = min(list(item.counted).count(False) for item in both)
    return [Encoded(item.ids, [index >= start for index in range(len(item.ids))]) for item in both]


def encode_messages(
    tokenizer: Any,
    row: Mapping[str, Any],
    *,
    chat_template: str | None = None,
    assistant_only: bool = True,
) -> Encoded:
    """Encode the row's `messages`; the assistant's tokens count, or all tokens."""
    template = {"chat_template": chat_template} if chat_template else {}
    if assistant_only:
        return Encoded(*_assistant(tokenizer, row["messages"], row, template))
    ids = tokens(tokenizer, row["messages"], row, **template)
    return Encoded(ids, [True] * len(ids))


def _assistant(
    tokenizer: Any, messages: Any, row: Mapping[str, Any], template: Mapping[str, Any]
) -> tuple[Any, list[bool]]:
    result = tokens(
        tokenizer,
        messages,
        row,
        return_dict=True,
        return_assistant_tokens_mask=True,
        **template,
    )
    return result["input_ids"], [bool(mark) for mark in result["assistant_masks"]]


def common_start(item: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common start of two encodings."""
    if item == other[: len(item)]:
        return len(item)
    pairs = zip(item, other, strict=False)
    differs = (index for index, (a, b) in enumerate(pairs) if a != b)
    return next(differs, min(len(item), len(other)))

"""How long samples are, in tokens of a model, with its chat template."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hf_rlhf.errors import ModelError
from hf_rlhf_traces.rows import Chat

Pair = tuple[Sequence[Chat], Sequence[Chat]]
"""What is read, and what is said to it (`hf_rlhf_traces.rows.conversation`)."""
BATCH = 64
"""Samples tokenized at once: the tokenizers library goes through them side by side."""


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens of a sample: of what is read, and of what is said to it."""

    prompt: int
    completion: int

    @property
    def whole(self) -> int:
        """Of both."""
        return self.prompt + self.completion


def lengths(tokenizer: Any, samples: Iterable[Pair]) -> Iterator[Length]:
    """Yield the length of each sample; its prompt is up to where the reply begins.

    Raises ModelError for a tokenizer without a chat template, or one that refuses a conversation.
    """
    remaining = iter(samples)
    while batch := list(islice(remaining, BATCH)):
        prompts = [rendered(tokenizer, prompt, reply=True) for prompt, _ in batch]
        wholes = [rendered(tokenizer, [*prompt, *reply]) for prompt, reply in batch]
        counted = _count(tokenizer, [*prompts, *wholes])
        for prompt, whole in zip(counted[: len(batch)], counted[len(batch) :], strict=True):
            yield Length(prompt, whole - prompt)


def rendered(tokenizer: Any, messages: Sequence[Chat], *, reply: bool = False) -> str:
    """Return messages as the model sees them; with `reply`, up to where it begins to speak."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise ModelError(
            "The tokenizer has no chat template, and the rows are conversations. Use an "
            "instruction-tuned model, or save a chat_template with the tokenizer."
        )
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=reply
            )
        )
    except (TemplateError, TypeError, ValueError) as error:
        roles = ", ".join(turn["role"] for turn in messages)
        raise ModelError(
            f"The chat template refuses a conversation of {roles}: {error}. Use another model, or "
            "change its template."
        ) from error


def _count(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    # The template has written the special tokens already.
    ids = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return [len(one) for one in ids]

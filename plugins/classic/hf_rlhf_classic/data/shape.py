"""What comes out: message lists, or plain text made by templates; and how long it is in tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from hf_rlhf.errors import DataError, ModelError
from hf_rlhf_classic.data.schemas import Example
from hf_rlhf_classic.data.turns import Turn

COLUMNS = {
    "sft": ("prompt", "completion"),
    "messages": ("messages",),
    "preference": ("prompt", "chosen", "rejected"),
    "prompts": ("prompt",),
}
"""TRL's formats: https://huggingface.co/docs/trl/dataset_formats."""

TEMPLATE, RESPONSE, SYSTEM = "\n\nHuman: {prompt}\n\nAssistant:", " {response}", "{system}"
"""Of text, where nothing else is said: transcripts as in hh-rlhf (Bai et al. 2022)."""


@dataclass(frozen=True)
class Shape:
    """Makes the columns of a row from an Example."""

    form: str
    """A key of `COLUMNS`."""
    conversational: bool
    tokenizer: Any
    template: str = TEMPLATE
    response_template: str = RESPONSE
    system_template: str = SYSTEM
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, hole in (
            ("template", "{prompt}"),
            ("response_template", "{response}"),
            ("system_template", "{system}"),
        ):
            if getattr(self, name).count(hole) != 1:
                raise DataError(
                    f"`{name}` is {getattr(self, name)!r}, expected a text that holds {hole} once."
                )

    @classmethod
    def of(cls, form: str, format: str, tokenizer: Any, given: Mapping[str, Any]) -> "Shape":
        """Decide between messages and text.

        Raises:
            ModelError: messages are asked for, and the tokenizer has no chat template.
            DataError: settings that contradict each other.
        """
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if format == "conversational" and not has_template:
            raise ModelError(
                "`format: conversational` needs a tokenizer with a chat template, and this one has "
                "none. Use an instruction-tuned model, save a chat template with the tokenizer, or "
                "write `format: text`."
            )
        conversational = format == "conversational" or (format == "auto" and has_template)
        texts = {k: v for k, v in given.items() if k != "chat_template_kwargs" and v is not None}
        if conversational and texts:
            raise DataError(
                f"`{next(iter(texts))}` is of no use for messages, which the tokenizer's chat "
                "template puts into words. Remove it, or write `format: text`."
            )
        if form == "messages" and not conversational:
            raise DataError(
                "`target: every` gives messages, of which a chat template marks the assistant's; "
                "there is none with `format: text`. Use `target: final`, or a tokenizer with a "
                "chat template."
            )
        return cls(
            form,
            conversational,
            tokenizer,
            **texts,
            chat_template_kwargs=dict(given.get("chat_template_kwargs") or {}),
        )

    def row(self, example: Example) -> dict[str, Any]:
        """Return the columns of TRL's format."""
        if self.form == "messages":
            return {"messages": [*example.history, *self.answer(example.answers[0])]}
        parts = [self.prompt(example.history), *map(self.answer, example.answers)]
        return dict(zip(COLUMNS[self.form], parts, strict=True))

    def prompt(self, history: Sequence[Turn]) -> Any:
        """Return the turns, or their text, up to where the answer begins."""
        if self.conversational:
            return list(history)
        holes = {
            "system": (self.system_template, "{system}"),
            "user": (self.template, "{prompt}"),
            "assistant": (self.response_template, "{response}"),
        }
        texts = []
        for turn in history:
            template, hole = holes[turn["role"]]
            texts.append(template.replace(hole, turn["content"]))
        return "".join(texts)

    def answer(self, text: str) -> Any:
        """Return an answer as one assistant turn, or as text."""
        if self.conversational:
            return [{"role": "assistant", "content": text}]
        return self.response_template.replace("{response}", text)

    def lengths(
        self, examples: Sequence[Example], tools: Sequence[str | None]
    ) -> list[tuple[int, int]]:
        """Return the tokens of each prompt, and of it with its longest answer.

        `tools` are those that the chat template is given with each, as JSON. Special tokens that a
        tokenizer adds to text are counted; an EOS that TRL adds is not.
        """
        pairs = list(zip(examples, tools, strict=True))
        prompts = [self._said(example.history, None, given) for example, given in pairs]
        wholes = [
            self._said(example.history, answer, given)
            for example, given in pairs
            for answer in example.answers
        ]
        longest = iter(self._count(wholes))
        return [
            (length, max((next(longest) for _ in example.answers), default=length))
            for length, example in zip(self._count(prompts), examples, strict=True)
        ]

    def _said(self, history: Sequence[Turn], answer: str | None, tools: str | None) -> str:
        whole = self.prompt(history)
        if answer is not None:
            whole += self.answer(answer)
        if not self.conversational:
            return str(whole)
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    whole,
                    tokenize=False,
                    add_generation_prompt=answer is None,
                    tools=json.loads(tools) if tools else None,
                    **self.chat_template_kwargs,
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(turn["role"] for turn in whole)
            raise ModelError(
                f"the chat template refuses a conversation of {roles}: {error}. Use another "
                "template, or `format: text`."
            ) from error

    def _count(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        special = not self.conversational
        ids = self.tokenizer(list(texts), add_special_tokens=special, verbose=False)["input_ids"]
        return [len(one) for one in ids]

    def __str__(self) -> str:
        if self.conversational:
            return "conversational (the tokenizer has a chat template)"
        return f"text, by the template {self.template!r} and {self.response_template!r}"

"""Convert chat examples to TRL's columns (messages or templated text), and count tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.data.arrow_rows import exact_json
from hf_rlhf.data.chat import Turn
from hf_rlhf.data.examples import Example
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import arrow_problem
from hf_rlhf.errors import DataError, ModelError

if TYPE_CHECKING:
    from hf_rlhf.data.chat_arguments import ChatRowArguments

ChatForm = Literal["sft", "messages", "preference", "unpaired", "prompts"]
COLUMNS: Mapping[ChatForm, tuple[str, ...]] = {
    "sft": ("prompt", "completion"),
    "messages": ("messages",),
    "preference": ("prompt", "chosen", "rejected"),
    "unpaired": ("prompt", "completion"),
    "prompts": ("prompt",),
}
"""TRL's formats: https://huggingface.co/docs/trl/dataset_formats."""

_THOUGHT = "thought_a8f3e2b1"
_PLACEHOLDERS = {
    "template": "{prompt}",
    "response_template": "{response}",
    "system_template": "{system}",
}


@dataclass(frozen=True)
class TrlFormat:
    """Makes the columns of a row from an Example.

    The default text templates are hh-rlhf's transcripts (Bai et al. 2022).
    """

    form: ChatForm
    conversational: bool
    tokenizer: Any
    template: str = "\n\nHuman: {prompt}\n\nAssistant:"
    response_template: str = " {response}"
    system_template: str = "{system}"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, placeholder in _PLACEHOLDERS.items():
            if getattr(self, name).count(placeholder) != 1:
                raise DataError(
                    f"`{name}` is {getattr(self, name)!r}, expected a text that holds "
                    f"{placeholder} once."
                )

    @classmethod
    def of(cls, form: ChatForm, arguments: "ChatRowArguments") -> "TrlFormat":
        """Choose between messages and text.

        Raises:
            ModelError: messages are wanted, and the tokenizer has no chat template.
            DataError: arguments contradict each other.
        """
        has_template = bool(getattr(arguments.tokenizer, "chat_template", None))
        if arguments.format == "conversational" and not has_template:
            raise ModelError(
                "`format: conversational` needs a tokenizer with a chat template, and this one has "
                "none. Use an instruction-tuned model, or write `format: text`."
            )
        conversational = has_template and arguments.format in ("auto", "conversational")
        templates = {
            name: getattr(arguments, name)
            for name in _PLACEHOLDERS
            if getattr(arguments, name) is not None
        }
        if conversational and templates:
            raise DataError(
                f"`{next(iter(templates))}` has no effect on messages, which the tokenizer's chat "
                "template formats. Remove it, or write `format: text`."
            )
        if form == "messages" and not conversational:
            raise DataError(
                "`target: every` gives messages, which need a tokenizer with a chat template and "
                "no `format: text`. Use `target: final`, or such a tokenizer."
            )
        return cls(
            form,
            conversational,
            arguments.tokenizer,
            **templates,
            chat_template_kwargs=dict(arguments.chat_template_kwargs or {}),
        )

    def check(self, row: Row, example: Example) -> None:
        """Raise BadRow for turns that this format cannot express."""
        keys = {key for turn in (*example.history, *example.answers) for key in turn}
        roles = {turn["role"] for turn in example.history}
        if not self.conversational and ("tool" in roles or not keys <= {"role", "content"}):
            has = "a thought" if "reasoning_content" in keys else "a tool call"
            raise BadRow(
                "needs_messages",
                f"{row.where}: has {has}, which only a chat template can write: not `format: text`."
                " Keys of turns that are named in `ignore` are left out.",
            )
        if "tool_calls" in keys:
            _check_calls(row, [*example.history, *example.answers])
        if "reasoning_content" in keys and self.thought_key is None:
            raise BadRow(
                "thought_not_written",
                f"{row.where}: has a thought, and the tokenizer's chat template writes none. Use "
                "one that does (`chat_template`), or name the key of the thought in `ignore`.",
            )

    def columns(self, example: Example) -> dict[str, Any]:
        """Return the columns of TRL's format."""
        if self.form == "messages":
            return {"messages": self.prompt([*example.history, example.answers[0]])}
        parts = [self.prompt(example.history), *map(self.answer, example.answers)]
        return dict(zip(COLUMNS[self.form], parts, strict=True))

    def prompt(self, history: Sequence[Turn]) -> Any:
        """Return the turns before the answer, or their text."""
        if self.conversational:
            return list(map(self._turn, history))
        templates = {
            "system": (self.system_template, "{system}"),
            "user": (self.template, "{prompt}"),
            "assistant": (self.response_template, "{response}"),
        }
        texts = []
        for turn in history:
            template, placeholder = templates[turn["role"]]
            texts.append(template.replace(placeholder, turn["content"]))
        return "".join(texts)

    def answer(self, turn: Turn) -> Any:
        """Return an answer as one assistant turn, or as text."""
        if self.conversational:
            return [self._turn(turn)]
        return self.response_template.replace("{response}", turn["content"])

    def _turn(self, turn: Turn) -> Turn:
        """Return a turn with its thoughts under the key that the chat template writes."""
        thought = turn.get("reasoning_content")
        if thought is None:
            return turn
        others = {key: value for key, value in turn.items() if key != "reasoning_content"}
        return {**others, self.thought_key or "reasoning_content": thought}

    @cached_property
    def thought_key(self) -> str | None:
        """The key whose value the chat template renders as a thought; None if there is none."""
        if not hasattr(self.tokenizer, "apply_chat_template"):  # rows are read without a model
            return "reasoning_content"
        user = {"role": "user", "content": "question"}
        for key in ("reasoning_content", "thinking", "reasoning"):
            turns = [user, {"role": "assistant", "content": "answer", key: _THOUGHT}]
            if _THOUGHT in self._rendered(turns, None, False):
                return key
        return None

    def lengths(
        self, examples: Sequence[Example], tools: Sequence[str | None]
    ) -> list[tuple[int, int]]:
        """Return the tokens of each prompt, alone and with its longest answer.

        `tools` (JSON text, one per prompt) are passed to the chat template. Special tokens that the
        tokenizer adds to text are counted; an EOS that TRL adds is not.
        """
        pairs = list(zip(examples, tools, strict=True))
        prompts = [self._text(example.history, None, row_tools) for example, row_tools in pairs]
        texts = [
            self._text(example.history, answer, row_tools)
            for example, row_tools in pairs
            for answer in example.answers
        ]
        longest = iter(self._count(texts))
        return [
            (length, max((next(longest) for _ in example.answers), default=length))
            for length, example in zip(self._count(prompts), examples, strict=True)
        ]

    def _text(self, history: Sequence[Turn], answer: Turn | None, tools: str | None) -> str:
        turns_or_text = self.prompt(history)
        if answer is not None:
            turns_or_text += self.answer(answer)
        if not self.conversational:
            return str(turns_or_text)
        return self._rendered(turns_or_text, tools, answer is None)

    def _rendered(self, turns: Sequence[Turn], tools: str | None, is_open: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self.tokenizer.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=is_open,
                    tools=json.loads(tools) if tools else None,
                    **self.chat_template_kwargs,
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(turn["role"] for turn in turns)
            raise ModelError(
                f"the chat template refuses a conversation of {roles}: {error}. Use another "
                "template, or `format: text`."
            ) from error

    def _count(self, texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        special = not self.conversational
        ids = self.tokenizer(list(texts), add_special_tokens=special, verbose=False)["input_ids"]
        return [len(tokens) for tokens in ids]

    def __str__(self) -> str:
        if self.conversational:
            return "conversational (the tokenizer has a chat template)"
        return f"text, by the template {self.template!r} and {self.response_template!r}"


def _check_calls(row: Row, turns: Sequence[Turn]) -> None:
    """Raise BadRow for call arguments that a table cannot reproduce exactly."""
    calls = [turn["tool_calls"] for turn in turns if "tool_calls" in turn]
    try:
        problem = arrow_problem(calls)
        exact_json(calls).encode()
    except ValueError as error:
        problem = str(error)
    if problem:
        raise BadRow("unfit:tool_calls", f"{row.where}: the arguments of a tool call: {problem}.")

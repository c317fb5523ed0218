"""Build the refiner's prompt from a question, reasoning and tool results, within a cap.

The cap is in tokens of the finished prompt, measured with the tokenizer's chat template as the
trainer applies it. Above the cap, whole tool results are dropped; the most relevant results that
fit remain. If the most relevant result alone is too long, it is cut to its most relevant snippets,
and its best snippet to its most relevant passages. The question and the reasoning are never cut: a
prompt without room for them and some tool output is a `BadRow`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jinja2

from hf_rlhf.data import BadRow
from hf_rlhf.errors import DataError, ModelError
from hf_rlhf_refiner.answer import Source
from hf_rlhf_refiner.relevance import bm25, most_relevant_first, passages

SYSTEM_PROMPT = """\
You turn the raw results of a search agent into a short, grounded answer. You are given a \
question, the agent's reasoning, and the output of its tools, in which every snippet has an id: \
<snippet id=ID>text</snippet>.

Write exactly one <answer>...</answer> and nothing outside it. Inside:
- Put every factual claim in a tag that cites its sources: <snippet id=ID1,ID2>claim</snippet>. \
Cite only ids that occur in the tool output, and only those that support the claim.
- Answer the question asked. Leave out what it does not ask for, and facts about other entities.
- The agent's reasoning is not a source: repeat from it only what a snippet supports.
- If the tool output does not answer the question, or only in part, say so without a citation."""

PASSAGE_CHARS = 240
"""The unit in which a single snippet is cut, about two sentences."""

ELLIPSIS = " […] "
"""Marks missing passages in a cut snippet."""


@dataclass(frozen=True)
class Result:
    """A tool call's result: its snippets and a line that describes it (or "")."""

    sources: tuple[Source, ...]
    head: str = ""

    @property
    def text(self) -> str:
        """Return the result's text in the prompt."""
        return "\n".join([*([self.head] if self.head else []), *map(_snippet, self.sources)])


@dataclass(frozen=True)
class Prompt:
    """A finished prompt, and what was cut to make it fit."""

    messages: list[dict[str, str]]
    results: tuple[Result, ...]
    tokens: int
    results_dropped: int = 0
    results_cut: int = 0

    @property
    def sources(self) -> list[Source]:
        """Return the snippets in the prompt, in order."""
        return [source for result in self.results for source in result.sources]


@dataclass(frozen=True)
class PromptMaker:
    """Builds prompts for a tokenizer under a cap. Raises ModelError for an unusable tokenizer."""

    tokenizer: Any
    max_tokens: int
    system_prompt: str = SYSTEM_PROMPT
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_tokenizer(self.tokenizer)
        if self.max_tokens < 1:
            raise DataError(f"max_prompt_tokens is {self.max_tokens}, expected at least 1.")

    def make(self, where: str, question: str, reasoning: str, results: Sequence[Result]) -> Prompt:
        """Return the prompt of a row, cut to the cap. Raise BadRow if that cannot be done."""
        question, reasoning = self._defused(question), self._defused(reasoning)
        results = [self._defused_result(result) for result in results]

        def built(selected: Sequence[Result]) -> Prompt:
            return self._prompt(question, reasoning, selected)

        whole = built(results)
        if whole.tokens <= self.max_tokens:
            return whole
        scores = _scores(question, results)
        order = sorted(range(len(results)), key=lambda index: -scores[index])
        texts = [result.text for result in results]
        fitted = self._fill(order, texts, lambda kept: built([results[index] for index in kept]))
        if fitted is None:
            fitted = self._cut_result(question, results[order[0]], built)
            if fitted is None:
                raise BadRow(
                    "prompt_too_long",
                    f"{where}: field 'tool_output': no part of it fits into {self.max_tokens} "
                    f"tokens; the rest of the prompt alone takes {built([]).tokens}. Raise "
                    "`max_prompt_tokens`, or drop such rows (`on_long_prompt: drop`).",
                )
            fitted = replace(fitted, results_cut=1)
        return replace(fitted, results_dropped=len(results) - len(fitted.results))

    def _cut_result(
        self, question: str, best: Result, built: Callable[[list[Result]], Prompt]
    ) -> Prompt | None:
        """Reduce a result to the snippets that fit, or to passages of its best snippet."""
        texts = [source["text"] for source in best.sources]
        order = most_relevant_first(question, texts)
        source = best.sources[order[0]]
        parts = passages(source["text"], PASSAGE_CHARS)

        def with_snippets(selected: list[int]) -> Prompt:
            return built([replace(best, sources=tuple(best.sources[index] for index in selected))])

        def with_passages(selected: list[int]) -> Prompt:
            cut = Source(id=source["id"], text=_joined(parts, selected))
            return built([replace(best, sources=(cut,))])

        snippets = [_snippet(source) for source in best.sources]
        return self._fill(order, snippets, with_snippets) or self._fill(
            most_relevant_first(question, parts), parts, with_passages
        )

    def _fill(
        self, order: list[int], texts: list[str], build: Callable[[list[int]], Prompt]
    ) -> Prompt | None:
        """Select, in `order`, the `texts` that fit; return None if the first does not fit.

        Sizes are first summed by text, then the whole prompt is measured. Joins can change the
        count by a few tokens, so the last selected texts may be removed again.
        """
        encoded = self.tokenizer(texts, add_special_tokens=False, verbose=False)
        sizes = [len(ids) for ids in encoded["input_ids"]]
        room = self.max_tokens - build([]).tokens if texts else 0
        selected: list[int] = []
        for index in order:
            if sizes[index] <= room:
                selected.append(index)
                room -= sizes[index]
            elif not selected:
                return None
        while selected:
            prompt = build(sorted(selected))
            if prompt.tokens <= self.max_tokens:
                return prompt
            selected.pop()
        return None

    def _prompt(self, question: str, reasoning: str, results: Sequence[Result]) -> Prompt:
        sections = [("Question", question), ("Agent's reasoning", reasoning)]
        sections.append(("Tool output", "\n\n".join(result.text for result in results)))
        user = "\n\n".join(f"{name}:\n{text}" for name, text in sections if text)
        messages = [{"role": "user", "content": user}]
        if self.system_prompt:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return Prompt(messages, tuple(results), self.count(messages))

    def count(self, messages: list[dict[str, str]]) -> int:
        """Return the number of tokens of `messages` with the generation prompt appended."""
        try:
            encoded = self.tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                # Long texts are cut here, so a warning about them would only alarm.
                tokenizer_kwargs={"verbose": False},
                **self.chat_template_kwargs,
            )
        except jinja2.TemplateError as error:
            raise ModelError(
                f"the tokenizer's chat template refuses a system and a user message: {error}. "
                'If it knows no system role, set `system_prompt: ""`.'
            ) from error
        return len(encoded["input_ids"])

    @cached_property
    def _control(self) -> re.Pattern[str]:
        tokens = [token for token in self.tokenizer.all_special_tokens if len(token) > 2]
        return re.compile("|".join([r"<(?=\s*+/?+\s*+snippet\b)", *map(re.escape, tokens)]), re.I)

    def _defused(self, text: str) -> str:
        # A web page can contain `<|im_end|>` or `<snippet id=1>`. Unescaped, the first would end
        # the turn and the second would be a source without a tool's id.
        return self._control.sub(lambda match: match[0][0] + " " + match[0][1:], text).strip()

    def _defused_result(self, result: Result) -> Result:
        sources = tuple(
            Source(id=source["id"], text=self._defused(source["text"])) for source in result.sources
        )
        return Result(sources, self._defused(result.head))


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ModelError unless the tokenizer can make training prompts."""
    name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"{name}: has no chat template, so a conversation cannot become a prompt. Use an "
            "instruction-tuned model's tokenizer, or set `tokenizer.chat_template` and save it."
        )
    if getattr(tokenizer, "pad_token", None) is None:
        raise ModelError(f"{name}: has no pad token. Set `tokenizer.pad_token` and save it.")


def _snippet(source: Source) -> str:
    return f"<snippet id={source['id']}>{source['text']}</snippet>"


def _scores(question: str, results: Sequence[Result]) -> list[float]:
    """Score each result by its best snippet, so that length alone neither helps nor harms.

    Word frequencies come from all snippets of the row.
    """
    texts = [source["text"] for result in results for source in result.sources]
    scores = iter(bm25(question, texts))
    return [max([next(scores) for _ in result.sources], default=0.0) for result in results]


def _joined(parts: Sequence[str], selected: Sequence[int]) -> str:
    text = "".join(parts[index] for index in selected[:1])
    for before, index in zip(selected, selected[1:], strict=False):
        text += (" " if index == before + 1 else ELLIPSIS) + parts[index]
    return text

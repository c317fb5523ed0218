"""Convert traces to training text in tags and templates, and back.

A turn of the agent is `<think>…</think>` and then `<search>…</search>` (several if parallel) or
`<answer>…</answer>`; results are `<information>` blocks. The tag names are fields. Content is
escaped, so that a tag in it ends nothing, and unescaped when read.

The tags are from Search-R1 (Jin et al. 2025, https://arxiv.org/abs/2503.09516).
"""

import html
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.config import bind, load_yaml, read_text
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_rollouts import (
    SEARCH_TOOL,
    Answer,
    Document,
    Reasoning,
    Search,
    SearchResult,
    Step,
    pairs,
)

if TYPE_CHECKING:
    from hf_rlhf_traces.store import Store

_TURN_TAGS = ("think", "search", "information", "answer", "summary")
TAGS = (*_TURN_TAGS, "question", "reasoning", "evidence", "quote")
"""The tag fields that templates may use."""


@dataclass(frozen=True)
class Format:
    """Tags and templates."""

    think: str = "think"
    search: str = "search"
    information: str = "information"
    answer: str = "answer"
    summary: str = "summary"
    question: str = "question"
    reasoning: str = "reasoning"
    evidence: str = "evidence"
    quote: str = "quote"
    """Tags of the parts of a summary, and of each quote in its evidence."""
    document: str = "Doc {number} (Title: {title})\n{content}"
    """A document of an `<information>` block; `{number}` counts from 1 in each block."""

    system: str = ""
    """A system turn before every conversation, unless empty."""
    multiturn: str = (
        "Answer the question below. Think in <{think}> tags each time you have learned something "
        "new. If you lack knowledge, search by a query in <{search}> tags; what is found is "
        "returned in <{information}> tags, and you may search as often as you need. When you know "
        "enough, give the answer, and nothing else, in <{answer}> tags.\n\nQuestion: {context}"
    )
    """The first turn in `multiturn`; `{context}` is the question."""
    multiturn_without_reasoning: str = (
        "Answer the question below. If you lack knowledge, search by a query in <{search}> tags; "
        "what is found is returned in <{information}> tags, and you may search as often as you "
        "need. When you know enough, give the answer, and nothing else, in <{answer}> tags."
        "\n\nQuestion: {context}"
    )
    """The first turn if the reasoning was dropped, without a request for reasoning."""
    summary_prefix: str = (
        "Below is a question and what a search agent has thought and found so far. First "
        "summarise it in <{summary}> tags: the <{question}>, the <{reasoning}> so far, and as "
        "<{evidence}> what matters of the results, each <{quote}> word for word. Then go on from "
        "your summary: think in <{think}> tags, and either search in <{search}> tags or give the "
        "answer in <{answer}> tags.\n\n{context}"
    )
    """The prompt of `summary_prefix`; `{context}` is the prompt of a sample of `steps`."""
    summary_only: str = (
        "Below is the summary of what a search agent has thought and found so far. Go on from it: "
        "think in <{think}> tags, and either search in <{search}> tags or give the answer in "
        "<{answer}> tags.\n\n{context}"
    )
    """The prompt of `summary_only`; `{context}` is the summary."""

    def __post_init__(self) -> None:
        """Raise ConfigError, with all problems, for unusable tags and templates."""
        if problems := [*_bad_tags(self), *_bad_templates(self)]:
            raise ConfigError(problems)

    @classmethod
    def of(cls, settings: Mapping[str, object], where: str = "format") -> "Format":
        """Return the format of settings. Raises ConfigError with their location `where`."""
        arguments, problems = bind(
            cls, settings, where=lambda name: f"{where}: {name}", title="format"
        )
        if problems:
            raise ConfigError(problems)
        return cls(**arguments)

    @cached_property
    def names(self) -> dict[str, str]:
        """Return all tags by field: contents must not contain them."""
        return {name: getattr(self, name) for name in TAGS}

    def fill(self, template: str, context: str) -> str:
        """Fill a template with its tags and its context."""
        return template.format(context=context, **self.names)

    @cached_property
    def _tag(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, self.names.values()))
        return re.compile(rf"<(\\*)(?=/?(?:{names})\b)", re.IGNORECASE)

    @cached_property
    def _block(self) -> re.Pattern[str]:
        names = "|".join(re.escape(self.names[name]) for name in _TURN_TAGS)
        return re.compile(rf'<({names})(?: tool="([^"<>]*)")?>')

    @cached_property
    def _document_parts(self) -> list[tuple[str, str | None]]:
        return [(text, name) for text, name, _, _ in string.Formatter().parse(self.document)]

    def escape(self, text: str) -> str:
        r"""Escape all tags of the format in a text: `<think>` becomes `<\think>`."""
        return self._tag.sub(r"<\1\\", text) if "<" in text else text

    def unescape(self, text: str) -> str:
        r"""Undo `escape`."""
        if "<\\" not in text:
            return text
        return self._tag.sub(lambda tag: f"<{tag[1][1:]}", text)

    def turn_text(self, steps: Iterable[Step], *, think_tags: bool = True) -> str:
        """Return the agent's actions in a turn, in tags; unknown steps and results are left out.

        Without `think_tags`, thoughts are plain text.
        """
        return "\n".join(filter(None, (self._step_text(step, think_tags) for step in steps)))

    def _step_text(self, step: Step, think_tags: bool) -> str:
        if isinstance(step, Reasoning):
            text = self.escape(step.content)
            return f"<{self.think}>{text}</{self.think}>" if think_tags else text
        if isinstance(step, Search):
            tool = "" if step.tool == SEARCH_TOOL else f' tool="{html.escape(step.tool)}"'
            return f"<{self.search}{tool}>{self.escape(step.query)}</{self.search}>"
        if isinstance(step, Answer):
            return f"<{self.answer}>{self.escape(step.content)}</{self.answer}>"
        return ""

    def results_text(self, results: Sequence[SearchResult]) -> str:
        """Return results as `<information>` blocks."""
        blocks = []
        for result in results:
            numbered = enumerate(result.documents, start=1)
            texts = (self._document_text(number, document) for number, document in numbered)
            text = self.escape("\n".join(texts))
            blocks.append(f"<{self.information}>{text}</{self.information}>")
        return "\n".join(blocks)

    def _document_text(self, number: int, document: Document) -> str:
        # `str.format` takes twice as long, and this runs for every document.
        values = {"number": str(number), "title": document.title, "content": document.content}
        return "".join(text + values[name] if name else text for text, name in self._document_parts)

    def blocks(self, text: str) -> list[tuple[str, str]]:
        """Return the blocks of a text in order, as (field, unescaped content); skip other text."""
        kinds = {tag: name for name, tag in self.names.items()}
        found = pairs(self._block, text)
        return [(kinds[pair.opened[1]], self.unescape(pair.inside)) for pair in found]

    def steps(self, text: str) -> list[Step]:
        """Return the reasoning, searches and answers in a model's text, in order."""
        steps: list[Step] = []
        for block in pairs(self._block, text):
            (tag, tool), content = block.opened.groups(), self.unescape(block.inside)
            if tag == self.think:
                steps.append(Reasoning(content))
            elif tag == self.search:
                steps.append(Search(content, SEARCH_TOOL if tool is None else html.unescape(tool)))
            elif tag == self.answer:
                steps.append(Answer(content))
        return steps

    def question_text(self, text: str) -> str:
        """Return a question in its tag, the start of the prompts of `steps`."""
        return f"<{self.question}>{self.escape(text)}</{self.question}>"

    def settings(self) -> dict[str, str]:
        """Return the fields, for records and cards."""
        return asdict(self)


_TAG_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
_PLACEHOLDERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "document": (("number", "title", "content"), "content"),
    "system": (TAGS, ""),
    **dict.fromkeys(
        ("multiturn", "multiturn_without_reasoning", "summary_prefix", "summary_only"),
        ((*TAGS, "context"), "context"),
    ),
}
"""Template -> its allowed placeholders, and its required placeholder."""


def _bad_tags(form: Format) -> Iterable[Problem]:
    fields_by_tag: dict[str, str] = {}
    for field in TAGS:
        tag = getattr(form, field)
        if not _TAG_NAME.fullmatch(tag):
            yield Problem(
                f"format: {field}",
                f"{tag!r} cannot be the name of a tag.",
                "Use letters, digits, - and _, a letter first and no - last.",
            )
        elif (other := fields_by_tag.setdefault(tag.lower(), field)) != field:
            yield Problem(f"format: {field}", f"{tag!r} is the tag of {other} too.", "Rename one.")


def _bad_templates(form: Format) -> Iterable[Problem]:
    for field, (allowed, required) in _PLACEHOLDERS.items():
        values = {name: object() for name in allowed}  # without formats and items
        try:
            text = getattr(form, field).format(**values)
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            fix = (
                f"Use {', '.join(f'{{{name}}}' for name in allowed)} only; a brace is {{{{ or }}}}."
            )
            yield Problem(f"format: {field}", f"it cannot be filled: {error}.", fix)
            continue
        if required and str(values[required]) not in text:
            yield Problem(f"format: {field}", f"it lacks {{{required}}}.", "Say where that goes.")


def read_format(file: Path | None) -> Format:
    """Return the format whose fields are in a YAML file. Raises ConfigError for wrong fields."""
    if file is None:
        return Format()
    document = load_yaml(read_text(file), str(file))
    if document.problems:
        raise ConfigError(document.problems)
    if not isinstance(document.value, dict):
        fix = "Write fields of the format: `think: reasoning`."
        raise ConfigError([Problem(str(file), "holds no fields.", fix)])
    return Format.of(document.value, str(file))


def store_format(
    store: "Store", wanted: Format | None = None, *, overwrite: bool = False
) -> Format:
    """Return a store's format: `wanted`, or the default if it has none yet.

    A store has a single format for all its contents, recorded as a step; a new format makes all of
    them stale. Raises RunFolderError, with the differences, if the format differs from `wanted`
    without `overwrite`.
    """
    if wanted is None:
        wanted = Format.of(store.settings("format"), f"{store.folder}: format")
    if store.check("format", wanted.settings(), overwrite=overwrite) != "done":
        with store.recording("format", wanted.settings()):
            pass
    return wanted

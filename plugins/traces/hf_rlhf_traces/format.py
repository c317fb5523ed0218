"""How a trace is written as text that a model learns: tags and templates, and back.

A turn of the agent is `<think>…</think>` and then `<search>…</search>` (several if parallel) or
`<answer>…</answer>`; results are `<information>` blocks. The names are fields. What stands in
a tag is escaped, so that contents which hold tags cannot end it, and unescaped when read.

The tags are those of Search-R1 (Jin et al. 2025, https://arxiv.org/abs/2503.09516).
"""

import argparse
import html
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.trace import (
    SEARCH_TOOL,
    Answer,
    Document,
    Reasoning,
    Search,
    SearchResult,
    Step,
)

if TYPE_CHECKING:
    from hf_rlhf_traces.store import Store

TAGS = (
    *("think", "search", "information", "answer", "summary"),
    *("question", "reasoning", "evidence", "quote"),
)
"""The fields that name tags, as templates name them."""


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
    """The parts of a summary, and what each quote of its evidence stands in."""
    document: str = "Doc {number} (Title: {title})\n{content}"
    """One document of an `<information>` block; `{number}` counts from 1 in each block."""

    system: str = ""
    """A system turn before every conversation, if it is not empty."""
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
    """The same where the reasoning was dropped, so that none is asked for."""
    summary_prefix: str = (
        "Below is a question and what a search agent has thought and found so far. First "
        "summarise it in <{summary}> tags: the <{question}>, the <{reasoning}> so far, and as "
        "<{evidence}> what matters of the results, each <{quote}> word for word. Then go on from "
        "your summary: think in <{think}> tags, and either search in <{search}> tags or give the "
        "answer in <{answer}> tags.\n\n{context}"
    )
    """What is asked for in `summary_prefix`; `{context}` is the prompt of a sample of `steps`."""
    summary_only: str = (
        "Below is the summary of what a search agent has thought and found so far. Go on from it: "
        "think in <{think}> tags, and either search in <{search}> tags or give the answer in "
        "<{answer}> tags.\n\n{context}"
    )
    """What is asked for in `summary_only`; `{context}` is the summary."""

    def __post_init__(self) -> None:
        """Raise ConfigError, with all that is wrong, for tags and templates that cannot work."""
        if problems := [*_bad_tags(self), *_bad_templates(self)]:
            raise ConfigError(problems)

    @classmethod
    def of(cls, settings: Mapping[str, object], where: str = "format") -> "Format":
        """Return the format that `settings` or a file gave. Raises ConfigError, naming `where`."""
        known = {field.name for field in fields(cls)}
        problems = [
            Problem(f"{where}: {name}", "is no field of the format.", f"Known: {sorted(known)}.")
            if name not in known
            else Problem(f"{where}: {name}", f"is {value!r}, expected text.")
            for name, value in settings.items()
            if name not in known or not isinstance(value, str)
        ]
        if problems:
            raise ConfigError(problems)
        return cls(**{name: str(value) for name, value in settings.items()})

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that turns are written in."""
        return (self.think, self.search, self.information, self.answer, self.summary)

    @property
    def names(self) -> dict[str, str]:
        """All tags, by field: contents may hold none of them."""
        return {name: getattr(self, name) for name in TAGS}

    def ask(self, template: str, context: str) -> str:
        """Return a template with its tags named and its context in place."""
        return template.format(context=context, **self.names)

    @cached_property
    def _tag(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.names.values())
        return re.compile(rf"<(\\*)(?=/?(?:{names})\b)", re.IGNORECASE)

    @cached_property
    def _percent(self) -> str:
        """`document` for the operator `%`, which takes half of the time; "" in another order."""
        parts = list(string.Formatter().parse(self.document))
        if [name for _, name, _, _ in parts if name] != ["number", "title", "content"]:
            return ""
        return "".join(text.replace("%", "%%") + ("%s" if name else "") for text, name, *_ in parts)

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.names.values())
        return re.compile(rf"<(\\*)\\(?=/?(?:{names})\b)", re.IGNORECASE)

    @cached_property
    def _block(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.tags)
        return re.compile(rf'<({names})(?: tool="([^"<>]*)")?>(.*?)</\1>', re.DOTALL)

    def escape(self, text: str) -> str:
        r"""Return text in which no tag of ours stands: `<think>` becomes `<\think>`."""
        return self._tag.sub(r"<\1\\", text) if "<" in text else text

    def unescape(self, text: str) -> str:
        r"""Undo `escape`."""
        return self._escaped.sub(r"<\1", text) if "<\\" in text else text

    def said(self, steps: Iterable[Step], *, think_tags: bool = True) -> str:
        """Return what the agent said at one go, in tags; unknown steps and results have none.

        Without `think_tags`, thoughts stand there as plain text.
        """
        return "\n".join(filter(None, (self._step(step, think_tags) for step in steps)))

    def _step(self, step: Step, think_tags: bool) -> str:
        if isinstance(step, Reasoning):
            if not think_tags:
                return self.escape(step.content)
            return f"<{self.think}>{self.escape(step.content)}</{self.think}>"
        if isinstance(step, Search):
            tool_attribute = "" if step.tool == SEARCH_TOOL else f' tool="{html.escape(step.tool)}"'
            return f"<{self.search}{tool_attribute}>{self.escape(step.query)}</{self.search}>"
        if isinstance(step, Answer):
            return f"<{self.answer}>{self.escape(step.content)}</{self.answer}>"
        return ""

    def found(self, results: Sequence[SearchResult]) -> str:
        """Return results as `<information>` blocks, one for each."""
        return "\n".join(self._information(step.documents) for step in results)

    def _information(self, documents: Sequence[Document]) -> str:
        numbered = enumerate(documents, start=1)
        if usual := self._percent:
            texts = [usual % (number, step.title, step.content) for number, step in numbered]
        else:
            template = self.document
            texts = [
                template.format(number=number, title=step.title, content=step.content)
                for number, step in numbered
            ]
        inside = self.escape("\n".join(texts))
        return f"<{self.information}>{inside}</{self.information}>"

    def read(self, text: str) -> list[tuple[str, str]]:
        """Return the blocks of a text in order, as (tag, content unescaped); others are skipped."""
        return [(tag, self.unescape(inside)) for tag, _, inside in self._block.findall(text)]

    def steps(self, text: str) -> list[Step]:
        """Return the reasoning, searches and answers that a model wrote, in order."""
        steps: list[Step] = []
        for block in self._block.finditer(text):
            tag, tool, content = block[1], block[2], self.unescape(block[3])
            if tag == self.think:
                steps.append(Reasoning(content))
            elif tag == self.search:
                steps.append(Search(content, SEARCH_TOOL if tool is None else html.unescape(tool)))
            elif tag == self.answer:
                steps.append(Answer(content))
        return steps

    def asked(self, text: str) -> str:
        """Return a question in its tag, as the prompts of `steps` begin."""
        return f"<{self.question}>{self.escape(text)}</{self.question}>"

    def settings(self) -> dict[str, str]:
        """Return the fields, for records and cards.

        A field that came later is left out while it has its default: folders and summaries that
        were made before stay those of this format.
        """
        later = {"multiturn_without_reasoning"}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in later or value != getattr(Format, name)
        }


_TAG_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
_PLACEHOLDERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "document": (("number", "title", "content"), "content"),
    "system": (TAGS, ""),
    **dict.fromkeys(
        ("multiturn", "multiturn_without_reasoning", "summary_prefix", "summary_only"),
        ((*TAGS, "context"), "context"),
    ),
}
"""Template -> the placeholders it may have, and the one that it must have."""


def _bad_tags(form: Format) -> Iterable[Problem]:
    visited: dict[str, str] = {}
    for field in TAGS:
        name = getattr(form, field)
        if not _TAG_NAME.fullmatch(name):
            yield Problem(
                f"format: {field}",
                f"{name!r} cannot be the name of a tag.",
                "Use letters, digits, - and _, a letter first and no - last.",
            )
        elif (other := visited.setdefault(name.lower(), field)) != field:
            yield Problem(f"format: {field}", f"{name!r} is the tag of {other} too.", "Rename one.")


def _bad_templates(form: Format) -> Iterable[Problem]:
    for field, (known, needed) in _PLACEHOLDERS.items():
        try:
            parts = list(string.Formatter().parse(getattr(form, field)))
        except ValueError as error:
            yield Problem(f"format: {field}", f"{error}.", "Write a brace as {{ or }}.")
            continue
        used = [name for _, name, _, _ in parts if name is not None]
        odd = [
            f"{{{name}}}"
            for _, name, spec, how in parts
            if name not in (None, *known) or spec or how
        ]
        if odd:
            placeholders = ", ".join(f"{{{name}}}" for name in known)
            yield Problem(
                f"format: {field}",
                f"it has {', '.join(odd)}.",
                f"Use {placeholders} only; write a brace as {{{{ or }}}}.",
            )
        elif needed and needed not in used:
            yield Problem(f"format: {field}", f"it lacks {{{needed}}}.", "Say where that goes.")


_PREFIX = "format."


def add_format_options(parser: argparse.ArgumentParser) -> None:
    """Add `--format FILE` and an option for each field: `--format.think reasoning`."""
    group = parser.add_argument_group(
        "format",
        "Tags and templates; a folder has one format for all that is made in it. Fields, as in the "
        "file: "
        + ", ".join(field.name for field in fields(Format))
        + ". Each is an option, too, as "
        "--format.think TEXT.",
    )
    group.add_argument("--format", type=Path, metavar="FILE.yaml", help="fields that differ")
    for field in fields(Format):
        group.add_argument(f"--{_PREFIX}{field.name}", metavar="TEXT", help=argparse.SUPPRESS)


def format_from_options(chosen: argparse.Namespace) -> Format | None:
    """Return the format that is asked for, or None if nothing is said of it.

    Raises ConfigError, with every field that is wrong.
    """
    options = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(chosen).items()
        if name.startswith(_PREFIX) and value is not None
    }
    if chosen.format is None and not options:
        return None
    return Format.of({**_in_file(chosen.format), **options}, str(chosen.format or "options"))


def _in_file(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    document = plain_yaml.load(plain_yaml.read(path), str(path))
    if document.problems:
        raise ConfigError(document.problems)
    if not isinstance(document.value, dict):
        fix = "Write fields of the format: `think: reasoning`."
        raise ConfigError([Problem(str(path), "holds no fields.", fix)])
    return document.value


def store_format(
    store: "Store", wanted: Format | None = None, *, overwrite: bool = False
) -> Format:
    """Return the format of a store: `wanted`, or the default, where it has none yet.

    A folder has one format for all that is made in it, which is a step of the store. Raises
    RunFolderError, with the differences, when it has another one than `wanted` and `overwrite` is
    not set. With it, all that was made in the other format is stale.
    """
    if wanted is None:
        wanted = Format.of(store.settings("format"), f"{store.folder}: format")
    if store.check("format", wanted.settings(), overwrite=overwrite) != "done":
        with store.recording("format", wanted.settings()):
            pass
    return wanted

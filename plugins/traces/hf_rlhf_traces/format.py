"""How a trace is written as text that a model learns: tags and templates, and back.

A turn of the agent is `<think>…</think>` and then `<search>…</search>` (several if parallel) or
`<answer>…</answer>`; results are `<information>` blocks. The names are fields. What stands in
a tag is escaped, so that contents which hold tags cannot end it, and unescaped when read.

The tags are those of Search-R1 (Jin et al. 2025, https://arxiv.org/abs/2503.09516).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from hf_rlhf_traces.trace import (
    SEARCH_TOOL,
    Answer,
    Document,
    Reasoning,
    Search,
    SearchResult,
    Step,
)

SUMMARY_PARTS = ("question", "reasoning", "evidence")


@dataclass(frozen=True)
class Format:
    """Tags and templates."""

    think: str = "think"
    search: str = "search"
    information: str = "information"
    answer: str = "answer"
    summary: str = "summary"
    document: str = "Doc {number} (Title: {title})\n{content}"
    """One document of an `<information>` block; `{number}` counts from 1 in each block."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that contents may not hold."""
        return (self.think, self.search, self.information, self.answer, self.summary)

    @cached_property
    def _tag(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.tags)
        return re.compile(rf"<(\\*)(?=/?(?:{names})\b)", re.IGNORECASE)

    @cached_property
    def _escaped(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.tags)
        return re.compile(rf"<(\\*)\\(?=/?(?:{names})\b)", re.IGNORECASE)

    @cached_property
    def _block(self) -> re.Pattern[str]:
        names = "|".join(re.escape(name) for name in self.tags)
        return re.compile(rf"<({names})(?: tool=\"([^\"<>]*)\")?>(.*?)</\1>", re.DOTALL)

    def escape(self, text: str) -> str:
        r"""Return text in which no tag of ours stands: `<think>` becomes `<\think>`."""
        return self._tag.sub(r"<\1\\", text) if "<" in text else text

    def unescape(self, text: str) -> str:
        r"""Undo `escape`."""
        return self._escaped.sub(r"<\1", text) if "<\\" in text else text

    def said(self, steps: Iterable[Step]) -> str:
        """Return what the agent said at one go, in tags; unknown steps and results have none."""
        return "\n".join(filter(None, map(self._step, steps)))

    def _step(self, step: Step) -> str:
        match step:
            case Reasoning(content):
                return f"<{self.think}>{self.escape(content)}</{self.think}>"
            case Search(query, tool):
                named = "" if tool == SEARCH_TOOL else f' tool="{_plain(tool)}"'
                return f"<{self.search}{named}>{self.escape(query)}</{self.search}>"
            case Answer(content):
                return f"<{self.answer}>{self.escape(content)}</{self.answer}>"
            case _:
                return ""

    def found(self, results: Sequence[SearchResult]) -> str:
        """Return results as `<information>` blocks, one for each."""
        return "\n".join(self._information(one.documents) for one in results)

    def _information(self, documents: Sequence[Document]) -> str:
        shown = (
            self.document.format(number=number, title=one.title, content=one.content)
            for number, one in enumerate(documents, start=1)
        )
        inside = self.escape("\n".join(shown))
        return f"<{self.information}>{inside}</{self.information}>"

    def read(self, text: str) -> list[tuple[str, str]]:
        """Return the blocks of a text in order, as (tag, content unescaped); others are skipped."""
        return [(tag, self.unescape(inside)) for tag, _, inside in self._block.findall(text)]

    def steps(self, text: str) -> list[Step]:
        """Return the reasoning, searches and answers that a model wrote, in order."""
        made: list[Step] = []
        for tag, tool, inside in self._block.findall(text):
            content = self.unescape(inside)
            if tag == self.think:
                made.append(Reasoning(content))
            elif tag == self.search:
                made.append(Search(content, tool or SEARCH_TOOL))
            elif tag == self.answer:
                made.append(Answer(content))
        return made

    def settings(self) -> dict[str, str]:
        """Return the fields, for records and cards."""
        return asdict(self)


def _plain(tool: str) -> str:
    """A tool's name as an attribute: what would end it is left out."""
    return re.sub(r'["<>]', "", tool)

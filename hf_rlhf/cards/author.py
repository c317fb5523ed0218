"""The author's own parts of a card: Markdown, checked for mistakes that would hide the rest."""

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate

from hf_rlhf.formatting import fence
from hf_rlhf.storage.record_schema import Author

MAX_SECTIONS, MAX_TEXT = 20, 20_000
"""The most sections, and characters of one text."""
OWN_HEADINGS = frozenset(
    {
        *("results", "how to load", "intended use", "known notes", "training", "contact"),
        *("sample completions", "reproduction", "citation", "compared with other models"),
        *("how this was measured", "settings", "reward", "data", "exactness", "during training"),
        "provenance",
        *("environment", "validation of the reward", "all measures"),
    }
)
"""Headings that every card has, and what is folded under them."""
_HEADING = re.compile(r"[^\W_][^\n#<>`|]{0,79}")
_BIBTEX = re.compile(r"@\w+\s*\{[^,{}]+,.*\}", re.DOTALL)
_END = "end-of-the-authors-text"


def author_problems(author: Author) -> list[str]:
    """Return what is wrong with the author's texts, as `key: problem`."""
    problems = [f"sections.{heading}: {why}" for heading, why in _bad_headings(author.sections)]
    if len(author.sections) > MAX_SECTIONS:
        problems.append(f"sections: {len(author.sections)}; at most {MAX_SECTIONS} are allowed.")
    texts = {f"sections.{heading}": text for heading, text in author.sections.items()}
    texts |= {f"known_notes.{n}": text for n, text in enumerate(author.known_notes)}
    texts |= {"intended_use": author.intended_use or "", "contact": author.contact or ""}
    citation = (author.citation or "").strip()
    if citation.startswith("@"):
        if not _BIBTEX.fullmatch(citation) or citation.count("{") != citation.count("}"):
            problems.append("citation: not a complete BibTeX entry, `@type{key, ...}`.")
    else:
        texts["citation"] = citation
    problems += [f"{key}: {why}" for key, text in texts.items() if (why := markdown_problem(text))]
    return problems


def _bad_headings(headings: Iterable[str]) -> Iterator[tuple[str, str]]:
    seen = set[str]()
    for heading in headings:
        name = " ".join(re.findall(r"\w+", heading.casefold()))
        if not _HEADING.fullmatch(heading):
            yield heading, "expected plain text on one line, at most 80 characters."
        elif name in OWN_HEADINGS:
            key = name.replace(" ", "_")
            cure = f"Write `card.{key}`." if key in Author.model_fields else "Choose another."
            yield heading, f"every card already has a section with this heading. {cure}"
        elif name in seen:
            yield heading, "occurs twice."
        seen.add(name)


def markdown_problem(text: str) -> str | None:
    """Return the mistake by which a text would swallow what follows it on a card, or None.

    The author is trusted: this is no defence against intent.
    """
    from markdown_it import MarkdownIt

    if len(text) > MAX_TEXT:
        return f"{len(text):,} characters; at most {MAX_TEXT:,} are allowed."
    tokens = MarkdownIt("commonmark").parse(f"{text}\n\n# {_END}\n")
    if any(token.type == "heading_open" and token.tag in ("h1", "h2") for token in tokens[:-3]):
        return "a heading of level 1 or 2 would begin a section of its own. Begin it with `###`."
    html = "".join(token.content for token in tokens if token.type == "html_block")
    opened = list(accumulate(-1 if end else 1 for end in re.findall(r"<(/?)details\b", html, re.I)))
    # A code fence or comment that is not closed swallows the heading behind it.
    end = [(token.type, token.level) for token in tokens[-3:-2]]
    if min(opened, default=0) < 0 or opened[-1:] > [0] or end != [("heading_open", 0)]:
        return "something in it is not closed: a code fence, a comment or `<details>`."
    return None


def citation_of(author: Author) -> str:
    """Return the citation as Markdown: BibTeX as a code block."""
    text = (author.citation or "").strip()
    return fence(text, "bibtex") if text.startswith("@") else text

"""Write the pages of the documentation that follow from the installed code and from other pages.

`make docs` runs it before the site is built; the pages are not in git. docs/reference/settings/ has
the arguments of all components and the settings of all trainers, as `hf-rlhf describe NAME` prints
them; docs/decisions/index.md lists the decision records. Packages from elsewhere that are installed
beside, such as a plugin made with `hf-rlhf new`, have no page.
"""

import html
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from importlib.metadata import EntryPoint, version
from itertools import groupby
from pathlib import Path
from typing import Any

from hf_rlhf.cli.describe import describe
from hf_rlhf.config import load_component, registry
from hf_rlhf.config.settings import refusals

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDER = DOCS / "reference" / "settings"
KINDS: tuple[registry.Kind, ...] = ("datasets", "rewards", "judges")
CODE_OR_LINK = re.compile(r"(`[^`]+`|\[[^]]+\]\(https?://[^)\s]+\))")
LONGEST_DEFAULT = 60
"""In characters; a longer default is cut."""


def main() -> None:
    """Replace the pages."""
    (DOCS / "decisions" / "index.md").write_text(decisions(), encoding="utf-8")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for package, text in component_pages():
        (FOLDER / f"{package}.md").write_text(text, encoding="utf-8")
    for name, text in trainer_pages():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")


def decisions() -> str:
    """Return the index of the decision records: the heading of each, with a link."""
    records = sorted((DOCS / "decisions").glob("0*.md"))
    headings = [record.read_text(encoding="utf-8").splitlines()[0] for record in records]
    lines = [
        f"- [{heading.removeprefix('# ')}]({record.name})"
        for heading, record in zip(headings, records, strict=True)
    ]
    return "\n".join(["# Decisions\n", "Each page has context, decision and cost.\n", *lines, ""])


def offered_here(kind: registry.Kind) -> list[EntryPoint]:
    """Return the components of a kind that packages of this checkout offer."""
    manifests = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    here = {tomllib.loads(path.read_text("utf-8"))["project"]["name"] for path in manifests}
    return [point for point in registry.offered(kind) if registry.package(point)[0] in here]


def component_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and text of a page for each package whose components a run file configures."""
    components = [(kind, point) for kind in KINDS for point in offered_here(kind)]

    def package_of(item: tuple[registry.Kind, EntryPoint]) -> str:
        return registry.package(item[1])[0]

    for package, group in groupby(sorted(components, key=package_of), key=package_of):
        parts = [f"# Components of {package}\n"]
        for kind, point in group:
            parts += [f"## {point.name} ({registry.singular(kind)})\n", component(kind, point)]
        yield package, "\n".join(parts)


def component(kind: registry.Kind, point: EntryPoint) -> str:
    """Return what `hf-rlhf describe` prints of a component, with its arguments as a table."""
    _, _, *lines = describe(kind, point.name, point)
    head, separator, rest = "\n".join(lines).partition("\ntakes:\n")
    text = paragraphs(head)
    if not separator:
        return text
    arguments, _, tail = rest.partition("\n\n")
    rows: list[list[str]] = []
    for line in arguments.splitlines():
        if line.startswith(" " * 6):
            rows[-1][2] = f"{rows[-1][2]} {line.strip()}".strip()
        else:
            name, _, signature = line.strip().partition(": ")
            rows.append([code(name), code(signature), ""])
    cells = [[name, signature, escape(text)] for name, signature, text in rows]
    filled = table(("argument", "type and default", "meaning"), cells)
    return f"{text}{filled}\n\n{escape(tail)}".rstrip() + "\n"


def paragraphs(text: str) -> str:
    """Return indented plain text as Markdown paragraphs; a deeper line stays in a code block."""
    lines = (line.removeprefix("  ") for line in text.splitlines())
    blocks = "\n".join(lines).strip().split("\n\n")
    # What a function returns and raises does not concern a run file.
    prose = (block for block in blocks if not block.startswith(("Returns:", "Raises:")))
    return "".join(
        f"```text\n{block}\n```\n\n" if "\n " in block else f"{escape(' '.join(block.split()))}\n\n"
        for block in prose
    )


def trainer_pages() -> Iterator[tuple[str, str]]:
    """Yield the common page, and the name and text of one for each group of equal trainers."""
    from transformers import TrainingArguments
    from trl import ModelConfig

    trainers = {
        point.name: load_component("trainers", point.name) for point in offered_here("trainers")
    }
    common = {item.name: item for cls in (ModelConfig, TrainingArguments) for item in fields(cls)}
    refused = {name: set(refusals(trainer)) for name, trainer in trainers.items()}
    refused_by_all = set.intersection(*refused.values())
    yield "common", common_page(common, refused_by_all)

    def own_settings(name: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
        items = (item for item in fields(trainers[name].Config) if item.init)
        items = (item for item in items if item.name not in refused[name])
        rows = [row(item) for item in items if differs(item, common.get(item.name))]
        return tuple(sorted(rows)), tuple(sorted(refused[name] & set(common) - refused_by_all))

    for (rows, missing), group in groupby(sorted(trainers, key=own_settings), key=own_settings):
        names = sorted(group)
        parts = [
            f"# Settings of {', '.join(map(code, names))}",
            f"In addition to [the common ones](common.md). {library_versions()}",
            f"Refused here: {', '.join(map(code, missing))}." if missing else "",
            table(("setting", "type", "default", "meaning"), rows),
        ]
        yield names[0], "\n\n".join(filter(None, parts)) + "\n"


def common_page(common: dict[str, "Field[Any]"], refused: Iterable[str]) -> str:
    """Return the page of transformers' TrainingArguments and TRL's ModelConfig."""
    rows = [row(item) for name, item in sorted(common.items()) if name not in set(refused)]
    parts = [
        "# Settings of every trainer",
        "transformers' `TrainingArguments` and TRL's `ModelConfig`, without the settings that "
        "every trainer refuses. A trainer may have other defaults: see its own page. "
        + library_versions(),
        table(("setting", "type", "default", "meaning"), rows),
    ]
    return "\n\n".join(parts) + "\n"


def library_versions() -> str:
    """Return a sentence with the versions that the defaults come from."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers"))
    return f"Defaults and help are those of {versions}."


def differs(item: "Field[Any]", common: "Field[Any] | None") -> bool:
    """Return whether a trainer's setting is not a common one, or has another default."""
    return common is None or default(item) != default(common)


def default(item: "Field[Any]") -> str:
    """Return a field's default as text."""
    value = item.default if item.default_factory is MISSING else item.default_factory()
    text = "required" if value is MISSING else repr(value)
    return text if len(text) <= LONGEST_DEFAULT else f"{text[:LONGEST_DEFAULT]}…"


def row(item: "Field[Any]") -> tuple[str, ...]:
    """Return the cells of one setting."""
    kind = item.type if isinstance(item.type, str) else getattr(item.type, "__name__", item.type)
    text = " ".join(str(item.metadata.get("help") or "").split()).replace("%%", "%")
    return code(item.name), code(str(kind)), code(default(item)), escape(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(text: str) -> str:
    """Return text as a code span that may stand in a table, where even code must not have a bar."""
    if "|" not in text:
        return f"`{text}`"
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


def escape(text: str) -> str:
    """Return plain text in Markdown for a table; code spans and links stay what they are."""
    pieces = CODE_OR_LINK.split(text)  # the odd pieces match
    pieces[::2] = [markdown_free(piece) for piece in pieces[::2]]
    pieces[1::2] = [code(piece.strip("`")) if piece[0] == "`" else piece for piece in pieces[1::2]]
    return "".join(pieces)


def markdown_free(text: str) -> str:
    """Return text whose characters mean nothing to Markdown."""
    text = html.escape(text, quote=False)
    return text.translate({ord(letter): f"\\{letter}" for letter in "*_[]|"})


if __name__ == "__main__":
    main()

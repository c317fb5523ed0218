"""Measure what each preset pays for known hacks; run `python -m hf_rlhf_refiner.hacks`.

`hack_cases` holds small invented data rows, each with honest answers and hacks. Every text is also
written in each id grammar. Under `hardened`, no hack earns more than an honest answer of its case,
and only the classes in `OPEN` earn as much.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import HackCase, Judge, Score
from hf_rlhf.rewards import LexicalJudge
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_refiner.hack_cases import CASES, HONEST, OPEN, Case
from hf_rlhf_refiner.rewards import RefinerReward


@dataclass(frozen=True)
class HackRow:
    """The payment for a completion; `honest` as the `hack` means an honest answer."""

    case: str
    hack: str
    spelling: str
    grammar: str
    completion: str
    hardened: Score
    card_faithful: Score


ID_GRAMMARS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "bare": ",".join,
    "double quotes": lambda ids: f'"{",".join(ids)}"',
    "single quotes, blanks": lambda ids: f"'{', '.join(ids)}'",
    "each quoted": lambda ids: ", ".join(f'"{identifier}"' for identifier in ids),
    "trailing comma": lambda ids: ", ".join(ids) + ", ",
    "curly quotes": lambda ids: f"“{','.join(ids)}”",
    "reordered": lambda ids: ",".join(reversed(ids)),
    "repeated": lambda ids: ",".join([*ids, *ids]),
}


def hack_table(judge: Judge | None = None) -> list[HackRow]:
    """Score every case, class, spelling and grammar under both presets.

    The default judge is `LexicalJudge`. Do not call this inside a running event loop.
    """
    judge = judge or LexicalJudge()
    texts = [(case, *text) for case in CASES for text in _completions(case)]
    rows = [_columns(case) for case, *_ in texts]
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    completions = [completion for *_, completion in texts]
    paid = [
        asyncio.run(reward([""] * len(texts), completions, **columns))
        for reward in (RefinerReward(judge), RefinerReward(judge, preset="card_faithful"))
    ]
    scored = zip(texts, *paid, strict=True)
    return [HackRow(case.name, *text, *scores) for (case, *text), *scores in scored]


def refiner_attacks(rows: Sequence[Mapping[str, Any]]) -> Iterator[HackCase]:
    """Yield the hacks of every case with an honest answer; `rows` is ignored.

    Cases are strict except for the classes that form alone does not detect.
    """
    for case in CASES:
        honest = next(iter(case.answers[HONEST].values()))
        for hack, _, _, completion in _completions(case):
            if hack != HONEST:
                strict = hack not in OPEN
                yield HackCase(hack, case.question, honest, completion, _columns(case), strict)


def summary(rows: Sequence[HackRow]) -> list[tuple[str, str, int, Score, Score]]:
    """Return case, class, number of texts, and the maximum score under each preset.

    For honest answers it is the minimum.
    """
    groups: dict[tuple[str, str], list[HackRow]] = {}
    for row in rows:
        groups.setdefault((row.case, row.hack), []).append(row)
    table = []
    for (case, hack), group in groups.items():
        pick = min if hack == HONEST else max
        hardened = [row.hardened for row in group if row.hardened is not None]
        faithful = [row.card_faithful for row in group if row.card_faithful is not None]
        most = (pick(hardened, default=None), pick(faithful, default=None))
        table.append((case, hack, len(group), *most))
    return table


def respell(text: str, grammar: str) -> str:
    """Rewrite the ids of every `<snippet id=A,B>` of `text` in a grammar from `ID_GRAMMARS`."""
    join = ID_GRAMMARS[grammar]
    ids = r"(?<=<snippet id=)[^<>\"'/]*(?=>)"
    return re.sub(ids, lambda found: join(found[0].split(",")), text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as Markdown, or write it into a page."""
    parser = argparse.ArgumentParser(prog="python -m hf_rlhf_refiner.hacks", description=__doc__)
    parser.add_argument("page", type=Path, nargs="?", help="a page, whose table is replaced")
    page = parser.parse_args(arguments).page
    table = markdown(hack_table())
    if page is None:
        sys.stdout.write(table)
        return 0
    text, tables = _TABLE.subn(lambda _: table, page.read_text(encoding="utf-8"), count=1)
    if not tables:
        parser.error(f"{page} has no table of hacks.")
    atomic_write_text(page, text)
    return 0


_TABLE = re.compile(r"^\| case \| class \|.*\n(?:\|.*\n)+", re.MULTILINE)


def markdown(rows: Sequence[HackRow]) -> str:
    """Return the summary as a Markdown table."""
    lines = ["| case | class | texts | hardened (0 to 1) | card_faithful (0 to 12) |"]
    lines.append("|---|---|--:|--:|--:|")
    for case, hack, texts, hardened, faithful in summary(rows):
        bound = "at least " if hack == HONEST else ""
        scores = ("none" if score is None else f"{score:.2f}" for score in (hardened, faithful))
        paid = " | ".join(bound + score for score in scores)
        lines.append(f"| {case} | {hack} | {texts} | {paid} |")
    return "\n".join(lines) + "\n"


def _columns(case: Case) -> dict[str, Any]:
    positive, negative = (
        [{"criterion": f"The answer states that {each}", "weight": 1.0} for each in statements]
        for statements in (case.positive, case.negative)
    )
    names = ("question", "sources", "positive_rubrics", "negative_rubrics")
    return dict(zip(names, (case.question, case.sources, positive, negative), strict=True))


def _completions(case: Case) -> Iterator[tuple[str, str, str, str]]:
    """Yield class, spelling, grammar and text; skip grammars that change nothing."""
    for hack, spellings in case.answers.items():
        for spelling, text in spellings.items():
            visited = set()
            for grammar in ID_GRAMMARS:
                completion = respell(text, grammar)
                if completion not in visited:
                    visited.add(completion)
                    yield hack, spelling, grammar, completion


if __name__ == "__main__":
    sys.exit(main())

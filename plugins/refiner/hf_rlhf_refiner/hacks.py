"""What each preset pays for known ways to cheat: `python -m hf_rlhf_refiner.hacks` prints it.

`hack_cases` holds three small made-up rows of data (one that can be answered, one whose sources
do not tell, one without sources), each with honest answers and with hacks. Every text is also
written in each of the id grammars. Under `hardened`, every honest answer is worth more than every
hack of its case.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_rlhf.contracts import HackCase, Judge, Score
from hf_rlhf.rewards import LexicalJudge
from hf_rlhf_refiner.hack_cases import CASES, HONEST, OPEN, Case
from hf_rlhf_refiner.rewards import RefinerReward


@dataclass(frozen=True)
class HackRow:
    """What one completion is paid. A `hack` called `honest` is none."""

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

    The default judge is `LexicalJudge`. Not for use inside a running event loop.
    """
    judge = judge or LexicalJudge()
    columns: dict[str, Any] = {name: [] for name in _COLUMNS}
    keys = []
    for case in CASES:
        for hack, spelling, grammar, completion in _completions(case):
            keys.append((case.name, hack, spelling, grammar, completion))
            for name, value in zip(_COLUMNS, _columns(case), strict=True):
                columns[name].append(value)
    completions = [completion for *_, completion in keys]
    paid = [
        asyncio.run(reward([""] * len(keys), completions, **columns))
        for reward in (RefinerReward(judge), RefinerReward(judge, preset="card_faithful"))
    ]
    return [HackRow(*key, *scores) for key, *scores in zip(keys, *paid, strict=True)]


def refiner_attacks(rows: Sequence[Mapping[str, Any]]) -> Iterator[HackCase]:
    """Yield the hacks of every case, beside an honest answer; `rows` are left aside.

    Strict, apart from the classes that form alone does not tell from honest answers.
    """
    for case in CASES:
        honest = next(iter(case.answers[HONEST].values()))
        columns = dict(zip(_COLUMNS, _columns(case), strict=True))
        for hack, _, _, completion in _completions(case):
            if hack != HONEST:
                strict = hack not in OPEN
                yield HackCase(hack, case.question, honest, completion, columns, strict)


def summary(rows: Sequence[HackRow]) -> list[tuple[str, str, int, Score, Score]]:
    """Return case, class, number of texts, and the most that one earned under each preset.

    Of the honest answers it is the least that one earned.
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
    """Write the ids of every `<snippet id=A,B>` of `text` in one of `ID_GRAMMARS`."""

    def written(tag: re.Match[str]) -> str:
        ids = tag.group(1).split(",")
        return f"<snippet id={ID_GRAMMARS[grammar](ids)}>"

    return re.sub(r"<snippet id=([^<>\"'/]*)>", written, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as Markdown; with `--json`, every row as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m hf_rlhf_refiner.hacks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print every row as a line of JSON")
    rows = hack_table()
    if parser.parse_args(arguments).json:
        for row in rows:
            sys.stdout.write(json.dumps(asdict(row)) + "\n")
        return 0
    sys.stdout.write(markdown(rows))
    return 0


def markdown(rows: Sequence[HackRow]) -> str:
    """Return the summary as a Markdown table."""
    lines = ["| case | class | texts | hardened (0 to 1) | card_faithful (0 to 12) |"]
    lines.append("|---|---|--:|--:|--:|")
    for case, hack, texts, hardened, faithful in summary(rows):
        bound = "at least " if hack == HONEST else ""
        paid = " | ".join(bound + _written(score) for score in (hardened, faithful))
        lines.append(f"| {case} | {hack} | {texts} | {paid} |")
    return "\n".join(lines) + "\n"


_COLUMNS = ("question", "sources", "positive_rubrics", "negative_rubrics")


def _columns(case: Case) -> tuple[Any, ...]:
    positive = [{"criterion": criterion, "weight": 1.0} for criterion in case.positive]
    negative = [{"criterion": criterion, "weight": 1.0} for criterion in case.negative]
    return case.question, case.sources, positive, negative


def _completions(case: Case) -> Iterator[tuple[str, str, str, str]]:
    """Yield class, spelling, grammar and text; a grammar that changes nothing is left out."""
    for hack, spellings in case.answers.items():
        for spelling, text in spellings.items():
            visited = set()
            for grammar in ID_GRAMMARS:
                completion = respell(text, grammar)
                if completion not in visited:
                    visited.add(completion)
                    yield hack, spelling, grammar, completion


def _written(score: Score) -> str:
    return "none" if score is None else f"{score:.2f}"


if __name__ == "__main__":
    sys.exit(main())

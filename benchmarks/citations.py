"""The citation parser's speed on answers as policies write them, and on answers made to be slow.

The alternatives read the same claims with their ids, and nothing else: ours also names what is
malformed, tells cited from uncited and abstaining sentences, and counts words.

* regular expressions, as reward scripts have them: `<snippet id=(.*?)>(.*?)</snippet>`;
* `html.parser`, and, where they are installed, lxml and BeautifulSoup (on lxml).

Of each kind of hostile text three sizes are read, 1x, 2x and 4x. Linear time is a ratio of 1
between the time at 4x and four times the time at 1x.
"""

import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from html.parser import HTMLParser
from importlib.util import find_spec

from side_by_side import Comparison, Report, in_turn, parser

from hf_rlhf_refiner.answer import parse_answer

Claims = list[tuple[tuple[str, ...], str]]
_CLAIM = re.compile(r"<snippet id=(.*?)>(.*?)</snippet>", re.DOTALL)
_WORDS = """
    the bridge was built in by engineers from a nearby town which had about inhabitants when its
    railway station opened for trains between capital and coast according to parish records
""".split()  # noqa: SIM905 - shorter so

HOSTILE: dict[str, Callable[[int], str]] = {
    "openings, never closed": lambda n: "<answer>" + "<snippet id=S1>a b c " * (n // 21),
    "deeply nested": lambda n: (
        "<answer>" + "<snippet id=S1>" * (n // 25) + "a" + "</snippet>" * (n // 25) + "</answer>"
    ),
    "closings, never opened": lambda n: "<answer>" + "</snippet>" * (n // 10),
    "less-than signs": lambda n: "<answer>" + "<" * n,
    "tags cut short": lambda n: "<answer>" + "<snippet id=" * (n // 12),
    "one long list of ids": lambda n: "<answer><snippet id=" + "S1," * (n // 3) + ">a</snippet>",
    "blanks in a tag": lambda n: "<answer><snippet id=S1" + " " * n + "x",
    "answers in answers": lambda n: "<answer>" * (n // 8),
    "almost abstaining": lambda n: "<answer>" + "sources do not " * (n // 15) + "</answer>",
}


def realistic(total: int) -> list[str]:
    """Return answers of one to twelve claims, `total` bytes; some have reasoning or prose."""
    rng = random.Random(0)
    answers: list[str] = []
    written = 0
    while written < total:
        parts = []
        for _ in range(rng.randint(1, 12)):
            ids = ",".join(f"S_{n:x}" for n in rng.sample(range(1, 41), rng.randint(1, 3)))
            parts.append(f"<snippet id={ids}>{_sentence(rng)}</snippet>")
            if rng.random() < 0.2:
                parts.append(_sentence(rng))
        thought = f"<think>{' '.join(_sentence(rng) for _ in range(6))}</think>\n"
        answer = (thought if rng.random() < 0.3 else "") + f"<answer>{' '.join(parts)}</answer>"
        answers.append(answer)
        written += len(answer)
    return answers


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(8, 30))).capitalize() + "."


def ours(text: str) -> Claims:
    """Return the claims by our parser."""
    ids = [f"S_{number:x}" for number in range(1, 41)]
    return [(claim.ids, claim.text) for claim in parse_answer(text, ids).claims]


def by_regex(text: str) -> Claims:
    """Return the claims as reward scripts do."""
    block = text.rpartition("<answer>")[2].partition("</answer>")[0]
    return [(tuple(ids.split(",")), claim) for ids, claim in _CLAIM.findall(block)]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.claims: Claims = []
        self.open: list[tuple[tuple[str, ...], list[str]]] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "snippet":
            self.open.append((tuple((dict(attrs).get("id") or "").split(",")), []))

    def handle_endtag(self, tag: str) -> None:
        if tag == "snippet" and self.open:
            ids, parts = self.open.pop()
            self.claims.append((ids, "".join(parts)))

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][1].append(data)


def by_html_parser(text: str) -> Claims:
    """Return the claims by the standard library's HTML parser."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.claims


def by_lxml(text: str) -> Claims:
    """Return the claims by lxml."""
    from lxml import html

    tags = html.fromstring(f"<div>{text}</div>").iter("snippet")
    return [(tuple(tag.get("id", "").split(",")), tag.text_content()) for tag in tags]


def by_soup(text: str) -> Claims:
    """Return the claims by BeautifulSoup."""
    from bs4 import BeautifulSoup

    tags = BeautifulSoup(text, "lxml").find_all("snippet")
    return [(tuple(str(tag.get("id", "")).split(",")), tag.get_text()) for tag in tags]


def seconds(read: Callable[[str], Claims], texts: Sequence[str]) -> float:
    """Return the processor time that reading all texts takes, which other load hardly changes."""
    begun = time.process_time()
    for text in texts:
        read(text)
    return time.process_time() - begun


def readers() -> dict[str, Callable[[str], Claims]]:
    """Return the alternatives that are installed."""
    readers: dict[str, Callable[[str], Claims]] = {
        "regular expressions": by_regex,
        "html.parser": by_html_parser,
    }
    if find_spec("lxml"):
        readers["lxml"] = by_lxml
        if find_spec("bs4"):
            readers["BeautifulSoup"] = by_soup
    return readers


def on_real_text(total: int, rounds: int) -> list[Comparison]:
    """Compare MB/s on answers as policies write them; all must find the same claims."""
    texts = realistic(total)
    others = readers()
    for name, read in others.items():
        wrong = sum(read(text) != ours(text) for text in texts[:200])
        if wrong:
            raise SystemExit(f"{name} reads {wrong} of 200 answers otherwise")
    size = sum(len(text.encode()) for text in texts) / 1e6
    calls = {"ours": ours, **others}
    timed = {name: partial(seconds, read, texts) for name, read in calls.items()}
    measured = in_turn(rounds, timed)
    rates = {name: [size / value for value in values] for name, values in measured.items()}
    return [
        Comparison("answers", rates["ours"], rates[name], "MB/s", name, higher_is_better=True)
        for name in others
    ]


def on_hostile_text(size: int, rounds: int) -> list[Comparison]:
    """Compare our time at 4x and 2x with what it would be if linear."""
    comparisons = []
    for name, make in HOSTILE.items():
        calls = {
            factor: partial(seconds, ours, [make(factor * size)] * (4 // factor))
            for factor in (1, 2, 4)
        }
        measured = in_turn(rounds, {str(factor): call for factor, call in calls.items()})
        # Each call read the same number of bytes: 4 texts of 1x, 2 of 2x, 1 of 4x.
        comparisons += [
            Comparison(
                f"{name}, {factor} x {size // 1000} kB",
                [1000 * value for value in measured[str(factor)]],
                [1000 * value for value in measured["1"]],
                "ms",
                "as much text in pieces of 1x",
            )
            for factor in (2, 4)
        ]
    return comparisons


def regex_on_hostile_text(size: int) -> list[str]:
    """Say how the alternative's time grows on the first kind of hostile text."""
    make = HOSTILE["openings, never closed"]
    times = [seconds(by_regex, [make(factor * size)]) for factor in (1, 2, 4)]
    listed = ", ".join(f"{1000 * value:.0f} ms" for value in times)
    return [f"Regular expressions, openings never closed, {size} bytes x 1, 2, 4: {listed}."]


def main() -> None:
    """Measure both kinds of text and print the table."""
    chosen = parser(__doc__, rounds=7).parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    report = Report("Citation parser")
    report.comparisons += on_real_text(50_000 if chosen.quick else 1_000_000, rounds)
    size = 8_000 if chosen.quick else 128_000
    report.comparisons += on_hostile_text(size, rounds)
    report.notes += regex_on_hostile_text(1000)
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()

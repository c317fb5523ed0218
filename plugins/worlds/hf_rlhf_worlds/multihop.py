"""Towns and people, multi-hop questions about them, and traces of a search agent.

A question is a chain of relations from a starting entity: "Who is the mentor of the mayor of
Barham?" starts at Barham and takes two hops. Names are the same in all worlds, facts are not, so
only the documents of a trace contain the facts of its world. A trace is a row of JSON in the
search-agent form: `{"id", "question", "trace": [{"type", ...}], "fields"}`.
"""

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

from hf_rlhf.errors import DataError

Kind = Literal["town", "person"]

PARTS: dict[Kind, tuple[str, str]] = {
    "town": (
        "Bar Bel Cor Dan Del Fen Gal Har Ker Lan Mar Mil Nor Ost Pen Ros Sal Tal Ver Wil",
        "by dale den ford gate ham holt ley mere stow ton wick",
    ),
    "person": (
        "Ad Al Ber Cas Dor Ed Fal Gri Hel Id Jor Kal Lor Mat Nel Or Per Ri Syl Tor",
        "a an e el en ia il in is o on us",
    ),
}

NAMES: dict[Kind, tuple[str, ...]] = {
    kind: tuple(stem + end for stem in stems.split() for end in endings.split())
    for kind, (stems, endings) in PARTS.items()
}
"""240 names of each kind, without overlap."""

RELATIONS: dict[Kind, dict[str, Kind]] = {
    "town": {
        **dict.fromkeys(("mayor", "founder", "judge", "baker", "doctor"), "person"),
        **dict.fromkeys(("neighbour", "port"), "town"),
    },
    "person": {
        **dict.fromkeys(("mentor", "rival", "friend", "heir", "guest"), "person"),
        **dict.fromkeys(("home", "birthplace"), "town"),
    },
}
"""Kind of an entity -> relation -> kind of the related entity."""

MOST_HOPS = 4
FAMILIES = 4
"""Seeds that differ modulo this never share a question, because the starting entities differ."""


@dataclass(frozen=True)
class Hop:
    """A fact: the `relation` of `subject` is `value`."""

    relation: str
    subject: str
    value: str

    @property
    def sentence(self) -> str:
        """Return the fact as documents state it."""
        return f"The {self.relation} of {self.subject} is {self.value}."


@dataclass(frozen=True)
class Question:
    """A question, and the facts that answer it, in lookup order."""

    text: str
    hops: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        """Return the requested name."""
        return self.hops[-1].value


@cache
def chains(kind: Kind, hops: int) -> tuple[tuple[str, ...], ...]:
    """Return the chains of `hops` different relations that start at a kind of entity."""
    if hops == 1:
        return tuple((relation,) for relation in RELATIONS[kind])
    return tuple(
        (relation, *rest)
        for relation, leads_to in RELATIONS[kind].items()
        for rest in chains(leads_to, hops - 1)
        if relation not in rest
    )


class World:
    """The facts of a single seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(f"facts/{seed}")
        self._facts = {
            (relation, subject): _other(rng, leads_to, subject)
            for kind, relations in RELATIONS.items()
            for relation, leads_to in relations.items()
            for subject in NAMES[kind]
        }

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Return every fact as documents state it."""
        return tuple(Hop(r, s, value).sentence for (r, s), value in self._facts.items())

    def hop(self, relation: str, subject: str) -> Hop:
        """Return a fact."""
        return Hop(relation, subject, self._facts[relation, subject])

    def number_of_questions(self, hops: int) -> int:
        """Return the number of this world's questions with `hops` hops."""
        return sum(len(self._starts(kind)) * len(chains(kind, hops)) for kind in NAMES)

    def question(self, hops: int, number: int) -> Question:
        """Return a question; numbers below `number_of_questions(hops)` give distinct questions.

        Neighbouring numbers give dissimilar questions. Higher numbers repeat.
        """
        count = self.number_of_questions(hops)
        stride, offset = _shuffle(self.seed, hops, count)
        index = (number * stride + offset) % count
        for kind in NAMES:
            of_kind = chains(kind, hops)
            size = len(self._starts(kind)) * len(of_kind)
            if index < size:
                start, chain = divmod(index, len(of_kind))
                return self._question(self._starts(kind)[start], kind, of_kind[chain])
            index -= size
        raise AssertionError("an index is below the number of questions")

    def _starts(self, kind: Kind) -> tuple[str, ...]:
        return NAMES[kind][self.seed % FAMILIES :: FAMILIES]

    def _question(self, start: str, kind: Kind, chain: tuple[str, ...]) -> Question:
        hops: list[Hop] = []
        subject = start
        for relation in chain:
            hops.append(self.hop(relation, subject))
            subject, kind = hops[-1].value, RELATIONS[kind][relation]
        relations = " of the ".join(reversed(chain))
        who = "Who" if kind == "person" else "Which town"
        return Question(f"{who} is the {relations} of {start}?", tuple(hops))


def kind_of(name: str) -> Kind:
    """Return whether a name is a town's or a person's."""
    return "town" if name in _TOWN_NAMES else "person"


_TOWN_NAMES = frozenset(NAMES["town"])


def _other(rng: random.Random, kind: Kind, subject: str) -> str:
    """Draw a name of a kind other than the subject's own."""
    while (name := rng.choice(NAMES[kind])) == subject:
        pass
    return name


@cache
def _shuffle(seed: int, hops: int, count: int) -> tuple[int, int]:
    """Return an affine shuffle of `range(count)`: a stride without common factor, and an offset."""
    rng = random.Random(f"questions/{seed}/{hops}")
    stride = rng.randrange(count // 3, count)
    while math.gcd(stride, count) != 1:
        stride += 1
    return stride, rng.randrange(count)


Row = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """Properties of a file's traces."""

    seed: int = 0
    hops: tuple[int, int] = (1, 3)
    """Minimum and maximum hops; traces cycle through the range."""
    documents: int = 2
    """Documents per search result. A single document states the requested fact."""
    sentences: int = 2
    """Sentences per document; determines the length of contexts."""
    repeats: float = 0.0
    """Share of traces that repeat the question of an earlier trace."""

    def __post_init__(self) -> None:
        """Raise DataError for an impossible recipe."""
        fewest, most = self.hops
        if not 1 <= fewest <= most <= MOST_HOPS:
            raise DataError(f"--hops {fewest}-{most}: hops are from 1 to {MOST_HOPS}.")
        if self.documents < 1 or self.sentences < 1:
            raise DataError("--documents and --document_sentences must be at least 1.")
        if not 0 <= self.repeats < 1:
            raise DataError(f"--repeats {self.repeats}: it must be at least 0 and below 1.")


def trace_rows(recipe: Recipe, count: int) -> Iterator[Row]:
    """Yield traces individually: the first `n` of a recipe do not depend on `count`."""
    world = World(recipe.seed)
    return (trace_row(world, recipe, number) for number in range(count))


def trace_row(world: World, recipe: Recipe, number: int) -> Row:
    """Return the trace of a number, independently of others, for writing files in parallel."""
    rng = random.Random(f"trace/{recipe.seed}/{number}")
    fewest, most = recipe.hops
    turn, kind = divmod(_first_with_question(recipe, number), most - fewest + 1)
    question = world.question(fewest + kind, turn)
    return {
        "id": f"world-{recipe.seed}-{number:06}",
        "question": question.text,
        "trace": list(_steps(world, recipe, question, rng)),
        "fields": {"expected_answer": question.answer, "hops": len(question.hops)},
    }


def _first_with_question(recipe: Recipe, number: int) -> int:
    """Return the number of the first trace with this trace's question: often itself."""
    while number and recipe.repeats:
        rng = random.Random(f"repeats/{recipe.seed}/{number}")
        if rng.random() >= recipe.repeats:
            break
        number = rng.randrange(number)
    return number


def _steps(world: World, recipe: Recipe, question: Question, rng: random.Random) -> Iterator[Row]:
    """Return the steps: state the last fact and the need, search, read; finally answer."""
    fact = ""
    for hop in question.hops:
        needed = f"{hop.relation} of {hop.subject}"
        yield {"type": "reasoning", "content": f"{fact}I need the {needed}."}
        yield {"type": "search", "query": needed}
        yield {"type": "search_result", "documents": documents(world, recipe, hop, rng)}
        fact = hop.sentence + " "
    yield {"type": "reasoning", "content": fact.strip()}
    yield {"type": "CorrectAnswer", "content": question.answer}


def documents(world: World, recipe: Recipe, hop: Hop, rng: random.Random) -> list[dict[str, str]]:
    """Return the document that states a fact among misleading documents of other entities.

    Each has a `title` and `content`, and states the same relation of its own entity, so that only
    the name distinguishes them.
    """
    others = [name for name in NAMES[kind_of(hop.subject)] if name != hop.subject]
    names = [hop.subject, *(rng.choice(others) for _ in range(recipe.documents - 1))]
    rng.shuffle(names)
    return [_document(world, recipe, name, hop.relation, rng) for name in names]


def _document(
    world: World, recipe: Recipe, name: str, relation: str, rng: random.Random
) -> dict[str, str]:
    """Return a document with a relation of an entity, its other facts, then any facts."""
    others = [other for other in RELATIONS[kind_of(name)] if other != relation]
    relations = (relation, *rng.sample(others, min(recipe.sentences - 1, len(others))))
    lines = [world.hop(each, name).sentence for each in relations]
    lines += rng.choices(world.sentences, k=recipe.sentences - len(lines))
    rng.shuffle(lines)
    return {"title": name, "content": " ".join(lines)}


def _with_results(row: Row, change: Callable[[Row], list[Row]]) -> str:
    """Return the line of a row with its search results changed by `change`."""
    steps = (change(s) if s["type"] == "search_result" else [s] for s in row["trace"])
    return _line({**row, "trace": [step for several in steps for step in several]})


FAULTS: dict[str, Callable[[Row, str], str]] = {
    "truncated": lambda row, _: _line(row)[: len(_line(row)) // 2],
    "no_trace": lambda row, _: _line({k: value for k, value in row.items() if k != "trace"}),
    "no_documents": lambda row, _: _with_results(row, lambda step: [{**step, "documents": None}]),
    "no_results": lambda row, _: _with_results(row, lambda _: []),
    "duplicate_id": lambda row, last: _line({**row, "id": last or row["id"]}),
}
"""Name of a fault -> the line of a row with it; the second argument is the previous id."""


def lines_with_faults(
    rows: Iterable[Row], share: float, seed: int, counts: dict[str, int]
) -> Iterator[str]:
    """Yield rows as JSON lines, a share of them broken, by each fault in turn; count in `counts`.

    The faults are common in real files, and test that no row is lost silently.
    """
    rng = random.Random(f"faults/{seed}")
    names = list(FAULTS)
    last, number = "", 0
    for row in rows:
        # Without a previous row there is no id to repeat.
        if last and rng.random() < share:
            name = names[number % len(names)]
            number += 1
            counts[name] = counts.get(name, 0) + 1
            yield FAULTS[name](row, last)
        else:
            last = row["id"]
            yield _line(row)


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)

"""The facts of a world, drawn from a seed, and every question that can be asked about them.

A question is a chain of relations from a starting entity: "Who is the mentor of the mayor of
Barham?" starts at Barham and takes two hops. Names are the same in all worlds, facts are not, so
that only the documents of a trace say what is true in its world.
"""

import math
import random
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

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
"""240 names of each kind; none is of both."""

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
"""Kind of an entity -> relation -> kind of the entity that it leads to."""

MOST_HOPS = 4
FAMILIES = 4
"""Seeds that differ modulo this never share a question: theirs start at other entities."""


@dataclass(frozen=True)
class Hop:
    """One fact: the `relation` of `subject` is `value`."""

    relation: str
    subject: str
    value: str

    @property
    def sentence(self) -> str:
        """The fact as documents state it."""
        return f"The {self.relation} of {self.subject} is {self.value}."


@dataclass(frozen=True)
class Question:
    """A question, and the facts that answer it, in the order in which they are looked up."""

    text: str
    hops: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        """The name that is asked for."""
        return self.hops[-1].value


@cache
def chains(kind: Kind, hops: int) -> tuple[tuple[str, ...], ...]:
    """Return the chains of so many different relations that start at a kind of entity."""
    if hops == 1:
        return tuple((relation,) for relation in RELATIONS[kind])
    return tuple(
        (relation, *rest)
        for relation, leads_to in RELATIONS[kind].items()
        for rest in chains(leads_to, hops - 1)
        if relation not in rest
    )


class World:
    """The facts of one seed."""

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
        """Every fact, as documents state it."""
        return tuple(Hop(r, s, value).sentence for (r, s), value in self._facts.items())

    def hop(self, relation: str, subject: str) -> Hop:
        """Return a fact."""
        return Hop(relation, subject, self._facts[relation, subject])

    def number_of_questions(self, hops: int) -> int:
        """Return how many questions of so many hops this world asks."""
        return sum(len(self._starts(kind)) * len(chains(kind, hops)) for kind in NAMES)

    def question(self, hops: int, number: int) -> Question:
        """Return a question; numbers below `number_of_questions(hops)` give different ones.

        Neighbouring numbers give unlike questions. Higher numbers give the same ones again.
        """
        count = self.number_of_questions(hops)
        stride, offset = _shuffle(self.seed, hops, count)
        place = (number * stride + offset) % count
        for kind in NAMES:
            of_kind = chains(kind, hops)
            here = len(self._starts(kind)) * len(of_kind)
            if place < here:
                start, chain = divmod(place, len(of_kind))
                return self._ask(self._starts(kind)[start], kind, of_kind[chain])
            place -= here
        raise AssertionError("a place is below the number of questions")

    def _starts(self, kind: Kind) -> tuple[str, ...]:
        return NAMES[kind][self.seed % FAMILIES :: FAMILIES]

    def _ask(self, start: str, kind: Kind, chain: tuple[str, ...]) -> Question:
        found: list[Hop] = []
        subject = start
        for relation in chain:
            found.append(self.hop(relation, subject))
            subject, kind = found[-1].value, RELATIONS[kind][relation]
        asked = " of the ".join(reversed(chain))
        who = "Who" if kind == "person" else "Which town"
        return Question(f"{who} is the {asked} of {start}?", tuple(found))


def kind_of(name: str) -> Kind:
    """Return whether a name is a town's or a person's."""
    return "town" if name in _TOWN_NAMES else "person"


_TOWN_NAMES = frozenset(NAMES["town"])


def _other(rng: random.Random, kind: Kind, subject: str) -> str:
    """Draw a name of a kind that is not the subject's own."""
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

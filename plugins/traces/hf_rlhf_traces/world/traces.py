"""Traces of an agent that looks up the facts of a question one after the other."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.trace import Answer, Document, Reasoning, Search, SearchResult, Step, Trace
from hf_rlhf_traces.world.facts import MOST_HOPS, NAMES, RELATIONS, Hop, Question, World, kind_of


@dataclass(frozen=True)
class Recipe:
    """What the traces of a file are like."""

    seed: int = 0
    hops: tuple[int, int] = (1, 3)
    """Fewest and most hops; traces take each number of them in turn."""
    documents: int = 2
    """Documents of a search result. One of them states the fact that was searched for."""
    sentences: int = 2
    """Sentences of a document; what makes contexts long."""
    repeats: float = 0.0
    """Share of traces that ask the question of an earlier trace again."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn, with DataError."""
        fewest, most = self.hops
        if not 1 <= fewest <= most <= MOST_HOPS:
            raise DataError(f"--hops {fewest}-{most}: hops are from 1 to {MOST_HOPS}.")
        if self.documents < 1 or self.sentences < 1:
            raise DataError("--documents and --document_sentences must be at least 1.")
        if not 0 <= self.repeats < 1:
            raise DataError(f"--repeats {self.repeats}: it must be at least 0 and below 1.")


def traces(recipe: Recipe, count: int) -> Iterator[Trace]:
    """Yield traces one by one: the first `n` of a recipe are the same whatever `count` is."""
    world = World(recipe.seed)
    return (trace(world, recipe, number) for number in range(count))


def trace(world: World, recipe: Recipe, number: int) -> Trace:
    """Return the trace of a number, which needs no other: files can be made in parallel."""
    rng = random.Random(f"trace/{recipe.seed}/{number}")
    fewest, most = recipe.hops
    turn, kind = divmod(_first_to_ask(recipe, number), most - fewest + 1)
    question = world.question(fewest + kind, turn)
    fields: dict[str, Any] = {"expected_answer": question.answer, "hops": len(question.hops)}
    steps = tuple(_steps(world, recipe, question, rng))
    return Trace(f"world-{recipe.seed}-{number:06}", question.text, steps, fields)


def _first_to_ask(recipe: Recipe, number: int) -> int:
    """Return the number of the first trace with the question of this one: often itself."""
    while number and recipe.repeats:
        rng = random.Random(f"repeats/{recipe.seed}/{number}")
        if rng.random() >= recipe.repeats:
            break
        number = rng.randrange(number)
    return number


def _steps(world: World, recipe: Recipe, question: Question, rng: random.Random) -> Iterator[Step]:
    """Say what is known and what is needed, search, read; say the last fact, and answer."""
    known = ""
    for hop in question.hops:
        needed = f"{hop.relation} of {hop.subject}"
        yield Reasoning(f"{known}I need the {needed}.")
        yield Search(needed)
        yield SearchResult(tuple(documents(world, recipe, hop, rng)))
        known = hop.sentence + " "
    yield Reasoning(known.strip())
    yield Answer(question.answer)


def documents(world: World, recipe: Recipe, hop: Hop, rng: random.Random) -> Sequence[Document]:
    """Return the document that states a fact among those of other entities, which mislead.

    Each states the same relation of its own entity, so that only the name tells which is right.
    """
    others = [name for name in NAMES[kind_of(hop.subject)] if name != hop.subject]
    names = [hop.subject, *(rng.choice(others) for _ in range(recipe.documents - 1))]
    rng.shuffle(names)
    return [_document(world, recipe, name, hop.relation, rng) for name in names]


def _document(
    world: World, recipe: Recipe, name: str, relation: str, rng: random.Random
) -> Document:
    """State a relation of an entity among others of it, and, where those end, any facts."""
    others = [other for other in RELATIONS[kind_of(name)] if other != relation]
    told = rng.sample(others, min(recipe.sentences - 1, len(others)))
    lines = [world.hop(one, name).sentence for one in (relation, *told)]
    lines += rng.choices(world.sentences, k=recipe.sentences - len(lines))
    rng.shuffle(lines)
    return Document(name, " ".join(lines))

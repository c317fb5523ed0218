"""Small refiner problems with a known answer, so that a tiny policy can learn the real task.

A problem is one agent's search: facts about the question's entity and about another, each a snippet
with an id, and a question about a few of them. Full marks need every requested fact, each with its
own snippet's id, and nothing else; the rubrics follow from the facts.

The world suits a model that can barely copy: every word is a single token and every fact has the
same shape. Ids and values are drawn for every problem, so the model must read them. The traps are
as in real tool output: the same attribute of another entity, and unrequested facts of the right
entity.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_worlds.sampling import Split, build_splits, generator, split_of

_ENTITIES = """Alder Birch Cedar Dahlia Elder Fern Gorse Hazel Iris Juniper Laurel Maple Nettle Oak
Poplar Quince Rowan Sage Thyme Umber Vetch Willow Yarrow Zinnia"""

_VALUES = """mayor: Ada Bo Cy Dee Eli Fay Gus Hal Ivy Jo
river: Arno Boyne Clyde Drava Ebro Forth Loire Meuse Neva Oder
export: bread glass maps paper radios salt silk steel tea wool
fuel: coal diesel gas hydrogen peat solar steam tides wind wood
sport: archery chess cricket fencing golf hockey judo polo rowing tennis
color: amber black blue green orange pink purple red white yellow
dish: curry dumplings noodles pancakes pie pizza porridge soup stew tacos
bird: crane eagle finch heron kestrel owl plover raven robin swan"""

ENTITIES = tuple(_ENTITIES.split())
"""Fictional towns."""

VALUES: dict[str, tuple[str, ...]] = {
    attribute: tuple(values.split())
    for attribute, _, values in (line.partition(": ") for line in _VALUES.splitlines())
}
"""Attributes of a town, and their possible values."""

IDS = tuple(f"S{number}" for number in range(1, 10))


@dataclass(frozen=True)
class Fact:
    """An attribute of an entity."""

    entity: str
    attribute: str
    value: str

    @property
    def sentence(self) -> str:
        """Return the fact as every snippet words it."""
        return f"{self.cue} is {self.value}."

    @property
    def cue(self) -> str:
        """Return the fact without its value."""
        return f"The {self.attribute} of {self.entity}"


@dataclass(frozen=True)
class Problem:
    """A question about `entity`, and the search result that answers it."""

    entity: str
    wanted: tuple[str, ...]
    """Attributes, in the order of the question."""
    snippets: tuple[tuple[str, Fact], ...]
    """(id, fact), in the order of the tool output."""

    @property
    def facts(self) -> tuple[tuple[str, Fact], ...]:
        """Return the requested snippets in the order of the question: the ground truth."""
        by_attribute = {fact.attribute: (i, fact) for i, fact in self.snippets if self.owns(fact)}
        return tuple(by_attribute[attribute] for attribute in self.wanted)

    @property
    def distractors(self) -> tuple[tuple[str, Fact], ...]:
        """Return the unrequested snippets."""
        return tuple(pair for pair in self.snippets if pair not in self.facts)

    @property
    def split(self) -> Split:
        """Return the problem's split, which depends only on the entity and its facts.

        So no way of drawing problems (another seed, the policy's own warm start) can leak a
        held-out problem's facts into training.
        """
        facts = sorted((fact.attribute, fact.value) for _, fact in self.snippets if self.owns(fact))
        return split_of(repr((self.entity, facts)))

    @property
    def question(self) -> str:
        """Return the user's question."""
        *first, last = [f"the {attribute} of {self.entity}" for attribute in self.wanted]
        return f"What are {', '.join(first)} and {last}?" if first else f"What is {last}?"

    @property
    def reasoning(self) -> str:
        """Return the reasoning of the search agent."""
        return f"I searched for {self.entity}."

    @property
    def tool_output(self) -> str:
        """Return the raw search result."""
        return "\n".join(claim(i, fact) for i, fact in self.snippets)

    @property
    def prompt(self) -> str:
        """Return the user's turn: about 90 tokens for five snippets.

        The question comes last, so that the model has already read the tool output.
        """
        return (
            f"Tool output:\n{self.tool_output}\nReasoning: {self.reasoning}\n"
            f"Question: {self.question}"
        )

    @property
    def answer(self) -> str:
        """Return the answer that earns full marks."""
        return render(self.facts)

    @property
    def positive_rubrics(self) -> tuple[str, ...]:
        """Return a rubric for each requested fact."""
        return tuple(
            f"States that {fact.sentence[0].lower()}{fact.sentence[1:]}" for _, fact in self.facts
        )

    @property
    def negative_rubrics(self) -> tuple[str, ...]:
        """Return a rubric for each other entity, and for each unrequested fact of this entity."""
        unwanted = (
            f"the {fact.attribute} of {fact.entity}" if self.owns(fact) else fact.entity
            for _, fact in self.distractors
        )
        return tuple(f"Mentions {it}, which is not asked about." for it in dict.fromkeys(unwanted))

    def owns(self, fact: Fact) -> bool:
        """Return whether a fact is about the entity in question."""
        return fact.entity == self.entity

    def row(self, row_id: str) -> dict[str, Any]:
        """Return the problem as a refiner row: prompt, sources and weighted rubrics."""
        return {
            "row_id": row_id,
            "prompt": [{"role": "user", "content": self.prompt}],
            "question": self.question,
            "sources": [{"id": i, "text": fact.sentence} for i, fact in self.snippets],
            "positive_rubrics": [_rubric(criterion) for criterion in self.positive_rubrics],
            "negative_rubrics": [_rubric(criterion) for criterion in self.negative_rubrics],
        }


def render(cited: tuple[tuple[str, Fact], ...]) -> str:
    """Return an answer that states each fact and cites the id beside it."""
    return f"<answer>{''.join(claim(i, fact) for i, fact in cited)}</answer>"


def claim(identifier: str, fact: Fact) -> str:
    """Return a fact with its id: a snippet in a tool output, and a claim in an answer."""
    return f"<snippet id={identifier}>{fact.sentence}</snippet>"


def draw(rng: random.Random, facts: int = 3, wanted: int = 2, others: int = 2) -> Problem:
    """Draw a problem: `facts` of an entity, a question about `wanted` of them, and `others` about
    another entity.

    The first fact about the other entity has a requested attribute: the closest trap.
    """
    entity, other = rng.sample(ENTITIES, 2)
    attributes = rng.sample(tuple(VALUES), facts)
    questioned = tuple(rng.sample(attributes, wanted))
    near = rng.choice(questioned)
    elsewhere = [near, *rng.sample([a for a in VALUES if a != near], max(others - 1, 0))][:others]
    drawn = [Fact(entity, attribute, rng.choice(VALUES[attribute])) for attribute in attributes]
    taken = {fact.value for fact in drawn}
    drawn += [
        Fact(other, attribute, rng.choice([v for v in VALUES[attribute] if v not in taken]))
        for attribute in elsewhere
    ]
    rng.shuffle(drawn)
    ids = rng.sample(IDS, len(drawn))
    return Problem(entity, questioned, tuple(zip(ids, drawn, strict=True)))


def stream(rng: random.Random, split: Split, **shape: int) -> Iterator[Problem]:
    """Draw problems of a split without end."""
    while True:
        problem = draw(rng, **shape)
        if problem.split == split:
            yield problem


def tiny_world(
    train_rows: int = 512,
    test_rows: int = 200,
    seed: int = 0,
    facts: int = 3,
    wanted: int = 2,
    others: int = 2,
) -> Loaded:
    """Generate refiner problems about fictional towns, with exact rubrics; needs no file.

    `train_rows` and `test_rows` problems are drawn by `seed`; each has `facts` of an entity, asks
    for `wanted` of them, and adds `others` about another entity. The policy in the package was
    pretrained on the default shape. No town appears with the same facts in both splits.

    Raises `DataError` when there are not enough facts for these numbers.
    """
    shape = {"facts": facts, "wanted": wanted, "others": others}
    _check_shape(**shape)

    def rows(split: Split) -> Iterator[dict[str, Any]]:
        problems = stream(generator(seed, split), split, **shape)
        return (problem.row(f"{split}-{index}") for index, problem in enumerate(problems))

    read = {"source": "generated", "rows_read": train_rows + test_rows, "dropped": {}}
    report = {**read, "facts_shown": facts, "facts_asked_for": wanted, "distracting_facts": others}
    return build_splits("tiny_world", {"train": train_rows, "test": test_rows}, rows, report)


def _check_shape(facts: int, wanted: int, others: int) -> None:
    if not 1 <= wanted <= facts <= len(VALUES):
        raise DataError(
            f"tiny_world: wanted is {wanted} of {facts} facts; expected 1 <= wanted <= facts <= "
            f"{len(VALUES)}, the number of attributes that a town has."
        )
    if others < 0 or facts + others > len(IDS) or others > len(VALUES):
        raise DataError(
            f"tiny_world: {facts} facts and {others} others make {facts + others} snippets; "
            f"expected at most {len(IDS)}, the number of ids."
        )


def _rubric(criterion: str) -> dict[str, Any]:
    return {"criterion": criterion, "weight": 1.0}

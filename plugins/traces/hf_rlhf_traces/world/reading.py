"""What the tiny model reads before it is trained on traces: plain text about many other worlds.

Facts are looked up in what stands before, copied word for word, and followed from one to the next,
so that a model which has read it can copy names and knows what a chain of relations is. Tags stand
in it in no order, and no thought, search, summary or answer: the tasks are unknown to it.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from hf_rlhf_traces.format import Format
from hf_rlhf_traces.trace import Document, SearchResult
from hf_rlhf_traces.world.facts import MOST_HOPS, NAMES, RELATIONS, Hop, Question, World
from hf_rlhf_traces.world.traces import Recipe, documents

Passage = tuple[str, str]
"""What is read, and how it goes on, which can be known from it: only that is learned."""
_FIRST_WORLD = 1_000_000
"""Seeds of the worlds that are read about; traces are not generated from these."""
_PASSAGES_OF_A_WORLD = 100


def passages(seed: int, stage: int) -> Iterator[Passage]:
    """Yield passages of a stage for ever, the same for the same seed."""
    rng = random.Random(f"reading/{seed}/{stage}")
    number = _FIRST_WORLD * (seed + 1)
    kinds = STAGES[stage]
    while True:
        world = World(number)
        number += 1
        for _ in range(_PASSAGES_OF_A_WORLD):
            write = rng.choices(list(kinds), weights=list(kinds.values()))[0]
            yield write(world, rng)


def listed(_: World, rng: random.Random) -> Passage:
    """List names, and then the same again."""
    names = rng.choices([*NAMES["town"], *NAMES["person"]], k=rng.randint(4, 16))
    text = " ".join(names)
    return f"{text}\n", text


def marked(_: World, rng: random.Random) -> Passage:
    """List names and tags in no order, and then the same again: tags can be written, not used."""
    text = "".join(
        _tag(rng) if rng.random() < 0.5 else _name(rng) for _ in range(rng.randint(4, 16))
    )
    return f"{text}\n", text


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES[rng.choice(list(NAMES))])


def _tag(rng: random.Random) -> str:
    form = Format()
    if rng.random() < 0.2:
        return f'<{form.quote} title="{_name(rng)}">'
    name = rng.choice(list(form.names.values()))
    return f"<{rng.choice(('', '/'))}{name}>{rng.choice(('', chr(10)))}"


def paired(_: World, rng: random.Random) -> Passage:
    """Say of names who or what they are, and then again in another order."""
    names = rng.sample([*NAMES["town"], *NAMES["person"]], 2 * rng.randint(2, 7))
    pairs = [f"{one} is {other}." for one, other in zip(names[::2], names[1::2], strict=True)]
    again = rng.sample(pairs, len(pairs))
    return f"{' '.join(pairs)}\n", " ".join(again)


def _facts(world: World, rng: random.Random) -> list[Hop]:
    """Return some facts of few entities and few relations, so that neither alone tells a fact."""
    kind = rng.choice(list(NAMES))
    relations = rng.sample(list(RELATIONS[kind]), rng.randint(1, 3))
    names = rng.sample(NAMES[kind], rng.randint(2, 6 // len(relations)))
    return [world.hop(relation, name) for relation in relations for name in names]


def recalled(world: World, rng: random.Random) -> Passage:
    """State facts, and then again in another order."""
    facts = [hop.sentence for hop in _facts(world, rng)]
    rng.shuffle(facts)
    again = rng.sample(facts, len(facts))
    return f"{' '.join(facts)}\nSo ", " ".join(again)


def copied(world: World, rng: random.Random) -> Passage:
    """State facts, and then the same from the start."""
    facts = " ".join(hop.sentence for hop in rng.sample(_facts(world, rng), 2))
    return f"{facts}\n", facts


def _answered(world: World, rng: random.Random) -> tuple[Question, str, str]:
    """Return a question, what a search for each of its facts finds, in any order, and the facts."""
    hops = rng.randint(1, MOST_HOPS - 1)
    question = world.question(hops, rng.randrange(world.number_of_questions(hops)))
    recipe = Recipe(documents=rng.randint(1, 2), sentences=rng.randint(1, 2))
    found = [SearchResult(tuple(documents(world, recipe, hop, rng))) for hop in question.hops]
    rng.shuffle(found)
    facts = " ".join(hop.sentence for hop in question.hops)
    return question, Format().found(found), f"{facts} So {question.answer}."


def followed(world: World, rng: random.Random) -> Passage:
    """Ask a question after what answers it, and follow its facts."""
    question, found, facts = _answered(world, rng)
    return f"{found}\n{question.text} ", facts


def asked_first(world: World, rng: random.Random) -> Passage:
    """Ask a question, then state what answers it, and follow its facts."""
    question, found, facts = _answered(world, rng)
    return f"{question.text}\n{found}\n", facts


def titled(world: World, rng: random.Random) -> Passage:
    """Show documents, and then one of them again under its title."""
    recipe = Recipe(documents=3, sentences=rng.randint(1, 3))
    shown: Sequence[Document] = documents(world, recipe, rng.choice(_facts(world, rng)), rng)
    again = rng.choice(shown)
    return f"{Format().found([SearchResult(tuple(shown))])}\n{again.title}", f"\n{again.content}"


STAGES: Sequence[dict[Callable[[World, random.Random], Passage], int]] = (
    {listed: 2, copied: 1},
    {listed: 1, copied: 1, paired: 4},
    {listed: 1, paired: 2, recalled: 4, copied: 1, followed: 2, asked_first: 2, titled: 1},
    {marked: 3, recalled: 2, followed: 1, asked_first: 1, titled: 1},
)
"""What is read in each stage -> how often. A model that can copy soon learns to look up what stands
beside a name, and then a fact by its two keys; one that begins with facts learns none for long.
The last stage is short: without it training on traces takes most of its time to tell tags apart."""

"""What the tiny model reads before it is trained on traces: plain text about many other worlds.

Facts are looked up in what stands before, copied word for word, and followed from one to the next,
so that a model which has read it can copy names and knows what a chain of relations is. Tags stand
in it in no order, and no thought, search, summary or answer: the tasks are unknown to it.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from hf_rlhf_worlds.multihop import (
    MOST_HOPS,
    NAMES,
    RELATIONS,
    Hop,
    Question,
    Recipe,
    World,
    documents,
)

TAGS = (
    *("think", "search", "information", "answer", "summary"),
    *("question", "reasoning", "evidence", "quote"),
)
"""The default tags of hf_rlhf_traces."""
PHRASES = (
    "Answer the question below. Think in <think> tags each time you have learned something new. If "
    "you lack knowledge, search by a query in <search> tags; what is found is returned in "
    "<information> tags, and you may search as often as you need. When you know enough, give the "
    "answer, and nothing else, in <answer> tags.\n\nQuestion:",
    "Below is a question and what a search agent has thought and found so far. First summarise it "
    "in <summary> tags: the <question>, the <reasoning> so far, and as <evidence> what matters of "
    "the results, each <quote> word for word. Then go on from your summary: think in <think> tags, "
    "and either search in <search> tags or give the answer in <answer> tags.",
    "Below is the summary of what a search agent has thought and found so far. Go on from it: "
    "think in <think> tags, and either search in <search> tags or give the answer in <answer> "
    "tags.",
)
"""The fixed sentences of its prompts, as when the tokenizer was made."""
Passage = tuple[str, str]
"""A text, and its continuation, which follows from it: the loss is on the continuation."""
_FIRST_WORLD = 1_000_000
"""Worlds from this seed on are for reading; traces are not generated from these."""
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


def name_lists(_: World, rng: random.Random) -> Passage:
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
    if rng.random() < 0.2:
        return f'<quote title="{_name(rng)}">'
    name = rng.choice(TAGS)
    return f"<{rng.choice(('', '/'))}{name}>{rng.choice(('', chr(10)))}"


def paired(_: World, rng: random.Random) -> Passage:
    """State of names who or what they are, and then again in another order."""
    names = rng.sample([*NAMES["town"], *NAMES["person"]], 2 * rng.randint(2, 7))
    pairs = [f"{left} is {right}." for left, right in zip(names[::2], names[1::2], strict=True)]
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


def _question_and_facts(world: World, rng: random.Random) -> tuple[Question, str, str]:
    """Return a question, what a search for each of its facts finds, in any order, and the facts."""
    hops = rng.randint(1, MOST_HOPS - 1)
    question = world.question(hops, rng.randrange(world.number_of_questions(hops)))
    recipe = Recipe(documents=rng.randint(1, 2), sentences=rng.randint(1, 2))
    results = [_information(documents(world, recipe, hop, rng)) for hop in question.hops]
    rng.shuffle(results)
    facts = " ".join(hop.sentence for hop in question.hops)
    return question, "\n".join(results), f"{facts} So {question.answer}."


def followed(world: World, rng: random.Random) -> Passage:
    """Ask a question after what answers it, and follow its facts."""
    question, results, facts = _question_and_facts(world, rng)
    return f"{results}\n{question.text} ", facts


def question_first(world: World, rng: random.Random) -> Passage:
    """Ask a question, then state what answers it, and follow its facts."""
    question, results, facts = _question_and_facts(world, rng)
    return f"{question.text}\n{results}\n", facts


def titled(world: World, rng: random.Random) -> Passage:
    """Show documents, and then one of them again under its title."""
    recipe = Recipe(documents=3, sentences=rng.randint(1, 3))
    results = documents(world, recipe, rng.choice(_facts(world, rng)), rng)
    again = rng.choice(results)
    return f"{_information(results)}\n{again['title']}", f"\n{again['content']}"


def _information(results: Sequence[dict[str, str]]) -> str:
    """Return a search result as prompts show it."""
    texts = [
        f"Doc {number} (Title: {document['title']})\n{document['content']}"
        for number, document in enumerate(results, start=1)
    ]
    return f"<information>{chr(10).join(texts)}</information>"


STAGES: Sequence[dict[Callable[[World, random.Random], Passage], int]] = (
    {name_lists: 2, copied: 1},
    {name_lists: 1, copied: 1, paired: 4},
    {name_lists: 1, paired: 2, recalled: 4, copied: 1, followed: 2, question_first: 2, titled: 1},
    {marked: 3, recalled: 2, followed: 1, question_first: 1, titled: 1},
)
"""What is read in each stage -> how often. A model that can copy soon learns to look up what stands
beside a name, and then a fact by its two keys; one that begins with facts learns none for long.
The last stage is short: without it training on traces takes most of its time to tell tags apart."""

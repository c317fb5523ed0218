"""Questions of 1 to 12 hops over the facts of a made-up world, any number of them."""

import random
from collections.abc import Iterator
from functools import lru_cache

from hf_rlhf.errors import DataError
from hf_rlhf_agents.tasks import Call, Task
from hf_rlhf_worlds.multihop import NAMES, RELATIONS, World, kind_of

MOST_HOPS = 12

facts_of = lru_cache(maxsize=64)(World)
"""The world of a seed."""


def chain_tasks(hops: int, seed: int = 0, world: int = 0) -> Iterator[Task]:
    """Yield endless tasks of a number of hops; each visits no name twice.

    Args:
        hops: facts to look up, 1 to 12.
        seed: of the questions.
        world: seed of the facts.

    Raises:
        DataError: an impossible number of hops.
    """
    if not 1 <= hops <= MOST_HOPS:
        raise DataError(f"hops is {hops}. Expected 1 to {MOST_HOPS}.")
    facts, rng = facts_of(world), random.Random(f"chains/{seed}/{hops}")
    count = 0
    while True:
        start = rng.choice(NAMES[rng.choice(["town", "person"])])
        path, relations = [start], []
        for _ in range(hops):
            relation = rng.choice(list(RELATIONS[kind_of(path[-1])]))
            path.append(facts.hop(relation, path[-1]).value)
            relations.append(relation)
        if len(set(path)) < len(path):
            continue
        who = "Who" if kind_of(path[-1]) == "person" else "Which town"
        looked_up = zip(relations, path[:-1], strict=True)
        yield Task(
            id=f"chain-{world}-{seed}-{hops}-{count}",
            category=f"{hops} hops",
            tier="easy" if hops <= 3 else "medium" if hops <= 6 else "hard",
            question=f"{who} is the {' of the '.join(reversed(relations))} of {start}?",
            answers=(path[-1],),
            tools=("lookup",),
            calls=tuple(
                Call(tool="lookup", arguments={"relation": relation, "name": name})
                for relation, name in looked_up
            ),
            facts=world,
        )
        count += 1

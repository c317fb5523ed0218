"""Task sets as datasets, so that runs train and are evaluated on them by name."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_agents.chains import chain_tasks
from hf_rlhf_agents.demonstrations import answered, careless, demonstrate
from hf_rlhf_agents.desk import schemas
from hf_rlhf_agents.tasks import Task, read_set, select

Form = Literal["prompts", "calls", "answers"]

INSTRUCTION = (
    "Answer the question with the help of the tools. If it cannot be answered, say so. "
    "End with a line `ANSWER: ` and the answer alone."
)
TEST_WORLD = 1
"""World of held-out chains; training has world 0."""


def agent_tasks(
    tasks: str = "agentbench_mini",
    categories: Sequence[str] = (),
    tiers: Sequence[Literal["easy", "medium", "hard"]] = (),
    max_per_category: int | None = None,
    form: Form = "prompts",
    instruction: str = INSTRUCTION,
) -> Loaded:
    """Return the tasks of a set, half of each category for training and half held out.

    Columns: `prompt` (messages), `task` (JSON for the environment and the rewards), `id`,
    `category` and `answer`; with a form to imitate also `completion`, and `tools` of `calls`.

    Args:
        tasks: a set of this package (`agentbench_mini`, `gaia_mini`, `code_repair`, `practice`) or
            a YAML file.
        categories: only these.
        tiers: only these.
        max_per_category: the first tasks of each category and half.
        form: `calls` adds the expected calls, `answers` the answer at once.
        instruction: the system message; empty for none.

    Raises:
        DataError: an unknown set, category or tier, or an invalid task.
    """
    chosen = read_set(tasks)
    halves = {
        half: [
            chosen.of(task)
            for task in select(chosen.tasks, categories, tiers, max_per_category, half)
        ]
        for half in ("train", "test")
    }
    if form == "calls" and any(task.scored == "cases" for task in chosen.tasks):
        raise DataError(f"{tasks}: code has no calls to imitate. Write `form: prompts`.")
    return _loaded(halves, instruction, form, 0.0, {"tasks": tasks})


def agent_chains(
    hops: Sequence[int] = (2, 3, 4),
    test_hops: Sequence[int] = (),
    train_rows: int = 256,
    test_rows: int = 64,
    seed: int = 0,
    form: Form = "prompts",
    mistakes: float = 0.0,
    instruction: str = INSTRUCTION,
) -> Loaded:
    """Return chains of lookups, an equal number of each length; the halves have different facts.

    Args:
        hops: lengths of the chains, 1 to 12.
        test_hops: those of held-out chains, if others.
        train_rows: number of training rows.
        test_rows: number of held-out rows.
        seed: of the questions, and of the mistakes.
        form: `calls` adds all lookups, `answers` the answer at once.
        mistakes: share of the training rows of `calls` that stop a lookup early, or make one twice.
        instruction: the system message; empty for none.
    """
    kinds = {"train": (train_rows, 0, hops), "test": (test_rows, TEST_WORLD, test_hops or hops)}
    halves = {half: list(_chains(seed, *kind)) for half, kind in kinds.items()}
    report = {"hops": list(hops), "test_hops": list(test_hops or hops)}
    return _loaded(halves, instruction, form, mistakes, report, seed)


def _chains(seed: int, rows: int, world: int, hops: Sequence[int]) -> Iterator[Task]:
    """Yield chains of each length in turn."""
    kinds = [chain_tasks(each, seed, world) for each in hops]
    return islice((task for several in zip(*kinds, strict=True) for task in several), rows)


def _loaded(
    halves: Mapping[str, Sequence[Task]],
    instruction: str,
    form: Form,
    mistakes: float,
    report: Mapping[str, Any],
    seed: int = 0,
) -> Loaded:
    from datasets import Dataset, DatasetDict

    if any(task.scored == "gaia" for tasks in halves.values() for task in tasks):
        _need_inspect()
    rng = random.Random(f"mistakes/{seed}")
    splits = {}
    for half, tasks in halves.items():
        share = mistakes if half == "train" else 0.0
        rows = [{**_row(task, instruction), **_shown(task, form, rng, share)} for task in tasks]
        splits[half] = Dataset.from_list(rows)
    counts = {half: len(tasks) for half, tasks in halves.items()}
    return Loaded(DatasetDict(splits), {**report, "form": form, "rows": counts})


def _row(task: Task, instruction: str) -> dict[str, Any]:
    return {
        "prompt": asked(task, instruction),
        "task": task.model_dump_json(exclude_defaults=True),
        "id": task.id,
        "category": task.category,
        "answer": task.answers[0] if task.answers else "",
    }


def _shown(task: Task, form: Form, rng: random.Random, mistakes: float) -> dict[str, Any]:
    """Return the columns of a row to imitate."""
    if form == "prompts":
        return {}
    if form == "answers":
        return {"completion": [answered(task)]}
    completion = demonstrate(task, careless(task, rng, mistakes))
    return {"completion": completion, "tools": json.dumps(schemas(task.tools))}


def asked(task: Task, instruction: str) -> list[dict[str, str]]:
    """Return the messages that begin a run, without a system message if `instruction` is empty."""
    system = [{"role": "system", "content": instruction}] if instruction else []
    return [*system, {"role": "user", "content": question(task)}]


def question(task: Task) -> str:
    """Return the text of the question, with the broken code and the names of attachments."""
    parts = [task.question]
    if task.files:
        parts.append(f"Attached, to be read by title: {', '.join(task.files)}.")
    if task.code:
        parts.append(f"```python\n{task.code.strip()}\n```")
    return "\n\n".join(parts)


def _need_inspect() -> None:
    if find_spec("inspect_evals") is None:
        raise DataError(
            "GAIA's official scorer is part of inspect_evals, which is not installed: "
            "`pip install 'hf-rlhf-agents[inspect]'`."
        )


def held_out_chains(hops: Iterable[int], count: int) -> list[Task]:
    """Return held-out chains for an evaluation, `count` of each length."""
    return [task for each in hops for task in islice(chain_tasks(each, 0, TEST_WORLD), count)]

"""Task sets as datasets, so that runs train and are evaluated on them by name."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_agents.chains import chain_tasks
from hf_rlhf_agents.tasks import SETS, Task, read_set, select

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
    instruction: str = INSTRUCTION,
) -> Loaded:
    """Return the tasks of a set, half of each category for training and half held out.

    Columns: `prompt` (messages), `task` (JSON for the environment and the rewards), `id`,
    `category` and `answer`.

    Args:
        tasks: a set of this package (`agentbench_mini`, `gaia_mini`, `code_repair`) or a YAML file.
        categories: only these.
        tiers: only these.
        max_per_category: the first tasks of each category and half.
        instruction: the system message.

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
    return _loaded(halves, instruction, {"tasks": tasks})


def agent_chains(
    hops: Sequence[int] = (2, 3, 4),
    test_hops: Sequence[int] = (),
    train_rows: int = 256,
    test_rows: int = 64,
    seed: int = 0,
    instruction: str = INSTRUCTION,
) -> Loaded:
    """Return chains of lookups, an equal number of each length; the halves have different facts.

    Args:
        hops: lengths of the chains, 1 to 12.
        test_hops: those of held-out chains, if others.
        train_rows: number of training rows.
        test_rows: number of held-out rows.
        seed: of the questions.
        instruction: the system message.
    """
    halves = {
        half: [
            task
            for several in zip(
                *(
                    islice(chain_tasks(each, seed, world), -(-rows // len(lengths)))
                    for each in lengths
                ),
                strict=True,
            )
            for task in several
        ][:rows]
        for half, rows, world, lengths in (
            ("train", train_rows, 0, hops),
            ("test", test_rows, TEST_WORLD, test_hops or hops),
        )
    }
    return _loaded(halves, instruction, {"hops": list(hops), "test_hops": list(test_hops or hops)})


def _loaded(halves: dict[str, list[Task]], instruction: str, report: dict[str, Any]) -> Loaded:
    from datasets import Dataset, DatasetDict

    if any(task.scored == "gaia" for tasks in halves.values() for task in tasks):
        _need_inspect()
    splits = {
        half: Dataset.from_list(list(_rows(tasks, instruction))) for half, tasks in halves.items()
    }
    counts = {half: len(tasks) for half, tasks in halves.items()}
    return Loaded(DatasetDict(splits), {**report, "rows": counts})


def _rows(tasks: Iterable[Task], instruction: str) -> Iterable[dict[str, Any]]:
    for task in tasks:
        yield {
            "prompt": [
                {"role": "system", "content": instruction},
                {"role": "user", "content": question(task)},
            ],
            "task": task.model_dump_json(exclude_defaults=True),
            "id": task.id,
            "category": task.category,
            "answer": task.answers[0] if task.answers else "",
        }


def question(task: Task) -> str:
    """Return the text of the question, with the broken code and the names of attachments."""
    parts = [task.question]
    if task.files:
        parts.append(f"Attached, to be read by title: {', '.join(task.files)}.")
    if task.code:
        parts.append(f"```python\n{task.code.strip()}\n```")
    return "\n\n".join(parts)


def _need_inspect() -> None:
    from importlib.util import find_spec

    if find_spec("inspect_evals") is None:
        raise DataError(
            "GAIA's official scorer is part of inspect_evals, which is not installed: "
            "`pip install 'hf-rlhf-agents[inspect]'`."
        )


__all__ = ["INSTRUCTION", "SETS", "agent_chains", "agent_tasks", "question"]

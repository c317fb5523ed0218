"""`traces_multihop`: the datasets of the synthetic world, made in memory of nothing but a seed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_traces.dataset import as_prompt_completion
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.rows import FORMS, arrow_schema
from hf_rlhf_traces.samples import multiturn_rows, step_rows
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.trace import Trace
from hf_rlhf_traces.world.traces import Recipe
from hf_rlhf_traces.world.traces import traces as world_traces

if TYPE_CHECKING:
    from datasets import Dataset

_FORMS = tuple(one for one in FORMS if one != "steps")
_SPLITS = {"train": "train", "validation": "test"}


def traces_multihop(
    *,
    form: Literal["multiturn", "summary_prefix", "summary_only", "summary_both"] = "multiturn",
    traces: int = 200,
    seed: int = 0,
    hops: Sequence[int] = (1, 3),
    documents: int = 2,
    validation_ratio: float = 0.1,
    split_seed: int = 42,
    think_drop_prob: float = 0.3,
    max_test_rows: int | None = None,
) -> Loaded:
    """Make synthetic multi-hop search traces, and of them the rows that `hf-rlhf traces` builds.

    They are those that the verbs would build of a file of `hf-rlhf traces generate`, with summaries
    by the embedded extractive summariser; no file is read or written.

    Args:
        form: which of the datasets; `summary_both` is `summary_prefix` and `summary_only`.
        traces: how many traces; one of n hops gives n + 1 conversations and n summaries.
        seed: of facts and questions.
        hops: fewest and most searches of a trace.
        documents: found by a search; one of them says what was searched for.
        validation_ratio: share of the questions that are held out, in all forms the same.
        split_seed: which they are.
        think_drop_prob: how often a turn before the reply has its thoughts without their tags
            (`multiturn`).
        max_test_rows: at most so many held-out rows of each dataset, the first; at least 1.

    Returns:
        Splits `train` and `test`, as `traces` gives them.

    Raises:
        DataError: for sizes that no world has.
    """
    from datasets import DatasetDict

    if max_test_rows is not None and max_test_rows < 1:
        raise DataError(f"max_test_rows is {max_test_rows}, expected 1 or more.")
    if form not in _FORMS:
        raise DataError(f"`form` is {form!r}, expected one of {', '.join(_FORMS)}.")
    if traces < 2 or len(hops) != 2:
        raise DataError("`traces` must be at least 2, and `hops` two numbers: [fewest, most].")
    recipe = Recipe(seed=seed, hops=(hops[0], hops[1]), documents=documents)
    made = list(world_traces(recipe, traces))
    split = Split.choose((rank(one.key, split_seed) for one in made), validation_ratio, split_seed)
    rows: dict[str, list[Mapping[str, Any]]] = {"train": [], "validation": []}
    for name in FORMS[form]:
        held_out: list[Mapping[str, Any]] = []
        for row in _rows(made, name, split_seed, think_drop_prob):
            (rows["train"] if split.of(row["question_key"]) == "train" else held_out).append(row)
        rows["validation"] += held_out[:max_test_rows]
    found = {_SPLITS[side]: _dataset(form, some) for side, some in rows.items() if some}
    report = {
        "world": "multihop",
        "form": form,
        "traces": len(made),
        "questions": len({one.key for one in made}),
        "splits": {name: len(some) for name, some in found.items()},
        "held_out": "questions that no row of train has, in no form",
    }
    return Loaded(DatasetDict(found), report)


def _rows(
    made: Sequence[Trace], form: str, seed: int, think_drop_prob: float
) -> Iterator[Mapping[str, Any]]:
    from hf_rlhf_traces.summaries.extractive import Extractive
    from hf_rlhf_traces.summaries.split_summary import only_row, prefix_row

    tags = Format()
    if form == "multiturn":
        for one in made:
            yield from multiturn_rows(one, tags, seed=seed, think_drop_prob=think_drop_prob)[0]
        return
    writer, row_of = Extractive(tags), prefix_row if form == "summary_prefix" else only_row
    for one in made:
        for step in step_rows(one, tags)[0]:
            # Cut out of the documents, so that every quote stands there.
            yield row_of(step, writer.summarise(step), 1.0, tags)


def _dataset(form: str, rows: Sequence[Mapping[str, Any]]) -> "Dataset":
    import pyarrow as pa
    from datasets import Dataset

    schema = arrow_schema(FORMS[form][0])
    return as_prompt_completion(Dataset(pa.Table.from_pylist(list(rows), schema)), form)

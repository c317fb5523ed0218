"""Synthetic traces with known answers: `traces_multihop` and `hf-rlhf traces generate`.

The world is `hf_rlhf_worlds.multihop`: towns and people, and questions that take several searches.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from annotated_types import Ge

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf.storage import atomic_file
from hf_rlhf_rollouts import Rollout
from hf_rlhf_traces.dataset import Positive, as_prompt_completion
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.options import count, share, verb_parser
from hf_rlhf_traces.rows import FORMS, arrow_schema
from hf_rlhf_traces.samples import multiturn_rows, step_rows
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.trace import question_key
from hf_rlhf_worlds.multihop import Recipe, lines_with_faults, trace_rows

if TYPE_CHECKING:
    from datasets import Dataset

_SPLITS = {"train": "train", "validation": "test"}


def synthetic_traces(recipe: Recipe, number: int) -> Iterator[Rollout]:
    """Yield the traces of a recipe, as if read from the file of `generate`."""
    return (msgspec.convert(row, Rollout) for row in trace_rows(recipe, number))


def traces_multihop(
    *,
    form: Literal["multiturn", "summary_prefix", "summary_only", "summary_both"] = "multiturn",
    traces: Annotated[int, Ge(2)] = 200,
    seed: int = 0,
    hops: Sequence[int] = (1, 3),
    documents: int = 2,
    validation_ratio: float = 0.1,
    split_seed: int = 42,
    think_drop_prob: float = 0.3,
    max_test_rows: Positive | None = None,
) -> Loaded:
    """Generate synthetic multi-hop search traces, as rows of a dataset of `hf-rlhf traces`.

    The rows equal what the verbs would build from a file of `hf-rlhf traces generate`, with
    summaries by the extractive summariser. No file is read or written.

    Args:
        form: the dataset; `summary_both` is `summary_prefix` and `summary_only`.
        traces: number of traces; a trace of n hops gives n + 1 conversations and n summaries.
        seed: of facts and questions.
        hops: fewest and most searches of a trace.
        documents: per search; a single document has the requested fact.
        validation_ratio: share of held-out questions, the same in all forms.
        split_seed: of the held-out questions.
        think_drop_prob: share of turns before the reply with untagged thoughts (`multiturn`).
        max_test_rows: maximum number of held-out rows of each dataset, from the first; at least 1.

    Returns:
        Splits `train` and `test`, as `traces` gives them.

    Raises:
        DataError: for impossible sizes.
    """
    from datasets import DatasetDict

    if len(hops) != 2:
        raise DataError("`hops` must be two numbers: [fewest, most].")
    recipe = Recipe(seed=seed, hops=(hops[0], hops[1]), documents=documents)
    drawn = list(synthetic_traces(recipe, traces))
    ranks = (rank(question_key(trace.question), split_seed) for trace in drawn)
    split = Split.choose(ranks, validation_ratio, split_seed)
    rows: dict[str, list[Mapping[str, Any]]] = {"train": [], "validation": []}
    for name in FORMS[form]:
        held_out: list[Mapping[str, Any]] = []
        for row in _rows(drawn, name, split_seed, think_drop_prob):
            (rows["train"] if split.of(row["question_key"]) == "train" else held_out).append(row)
        rows["validation"] += held_out[:max_test_rows]
    splits = {
        _SPLITS[side]: _dataset(form, side_rows) for side, side_rows in rows.items() if side_rows
    }
    report = {
        "world": "multihop",
        "form": form,
        "traces": len(drawn),
        "questions": len({question_key(trace.question) for trace in drawn}),
        "splits": {name: len(dataset) for name, dataset in splits.items()},
        "held_out": "questions that no row of train has, in no form",
    }
    return Loaded(DatasetDict(splits), report)


def _rows(
    drawn: Sequence[Rollout], form: str, seed: int, think_drop_prob: float
) -> Iterator[Mapping[str, Any]]:
    from hf_rlhf_traces.summaries.extractive import Extractive
    from hf_rlhf_traces.summaries.split_summary import only_row, prefix_row

    tags = Format()
    if form == "multiturn":
        for trace in drawn:
            yield from multiturn_rows(trace, tags, seed=seed, think_drop_prob=think_drop_prob)[0]
        return
    writer, row_of = Extractive(tags), prefix_row if form == "summary_prefix" else only_row
    for trace in drawn:
        for step in step_rows(trace, tags)[0]:
            # Extracted from the documents, so every quote occurs in them.
            yield row_of(step, writer.summarise(step), 1.0, tags)


def _dataset(form: str, rows: Sequence[Mapping[str, Any]]) -> "Dataset":
    import pyarrow as pa
    from datasets import Dataset

    schema = arrow_schema(FORMS[form][0])
    return as_prompt_completion(Dataset(pa.Table.from_pylist(list(rows), schema)), form)


def generate(
    out: Path, number: int, recipe: Recipe, share_of_faults: float = 0.0
) -> dict[str, int]:
    """Write a file of traces row by row, and return the number of rows with each fault.

    The same arguments write the same bytes. Raises RunFolderError if the file cannot be written.
    """
    counts: dict[str, int] = {}
    rows = trace_rows(recipe, number)
    with atomic_file(out) as file:
        for line in lines_with_faults(rows, share_of_faults, recipe.seed, counts):
            file.write(line.encode() + b"\n")
    return counts


def main(arguments: Sequence[str]) -> int:
    """Write a file and describe its content."""
    chosen = _parser().parse_args(arguments)
    if chosen.out.exists() and not chosen.overwrite:
        raise RunFolderError(f"{chosen.out} exists. Choose another --out, or give --overwrite.")
    recipe = Recipe(
        seed=chosen.seed,
        hops=chosen.hops,
        documents=chosen.documents,
        sentences=chosen.document_sentences,
        repeats=chosen.repeats,
    )
    counts = generate(chosen.out, chosen.traces, recipe, chosen.faults)
    size = chosen.out.stat().st_size
    print(f"{chosen.out}: {chosen.traces:,} traces, {size:,} bytes.")
    if counts:
        broken = ", ".join(f"{many} {kind}" for kind, many in counts.items())
        print(f"Broken on purpose: {sum(counts.values())} of them ({broken}).")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("generate", "Write synthetic search traces with known answers.")
    parser.add_argument("--out", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--traces", type=count, default=500, help="how many (500)")
    parser.add_argument("--seed", type=int, default=0, help="of facts and questions (0)")
    parser.add_argument("--hops", type=_hops, default=(1, 3), help="searches of a trace (1-3)")
    parser.add_argument("--documents", type=int, default=2, help="found by a search (2)")
    parser.add_argument("--document_sentences", type=int, default=2, help="of each document (2)")
    parser.add_argument("--repeats", type=float, default=0.0, help="share of repeated questions")
    parser.add_argument("--faults", type=share, default=0.0, help="of rows to break (0)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file")
    return parser


def _hops(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition("-")
    try:
        return int(fewest), int(most or fewest)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2 or 1-3") from None

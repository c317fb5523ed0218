"""`hf-rlhf traces generate`: a file of synthetic traces, in the search-agent form."""

import argparse
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf_traces.options import count, real, verb_parser
from hf_rlhf_traces.trace import to_json
from hf_rlhf_traces.world import faults
from hf_rlhf_traces.world.traces import Recipe, traces

_share_below_1 = real("a share from 0 on, below 1", lambda number: 0 <= number < 1)


def generate(
    out: Path, number: int, recipe: Recipe, share_of_faults: float = 0.0
) -> dict[str, int]:
    """Write a file of traces, row by row, and return how many rows have which fault.

    The same arguments write the same bytes. Raises DataError for a number below 1, RunFolderError
    when the file cannot be written.
    """
    if number < 1:
        raise DataError(f"{number} traces were asked for, expected at least 1.")
    if not 0 <= share_of_faults < 1:
        raise DataError(f"the share of faults is {share_of_faults}, expected from 0 on, below 1.")
    made: dict[str, int] = {}
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                for line in faults.lines(_rows(recipe, number), share_of_faults, recipe.seed, made):
                    file.write(line + "\n")
            os.replace(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"{out} cannot be written: {error.strerror or error}.") from error
    return made


def _rows(recipe: Recipe, number: int) -> Iterator[dict[str, Any]]:
    for one in traces(recipe, number):
        row = to_json(one)
        del row["where"]
        yield row


def main(arguments: Sequence[str]) -> int:
    """Write a file and say what is in it."""
    chosen = _parser().parse_args(arguments)
    if chosen.out.exists() and not chosen.overwrite:
        raise RunFolderError(f"{chosen.out} exists. Choose another --out, or say --overwrite.")
    recipe = Recipe(
        seed=chosen.seed,
        hops=chosen.hops,
        documents=chosen.documents,
        sentences=chosen.document_sentences,
        repeats=chosen.repeats,
    )
    made = generate(chosen.out, chosen.traces, recipe, chosen.faults)
    size = chosen.out.stat().st_size
    print(f"{chosen.out}: {chosen.traces:,} traces, {size:,} bytes.")
    if made:
        broken = ", ".join(f"{many} {kind}" for kind, many in made.items())
        print(f"Broken on purpose: {sum(made.values())} of them ({broken}).")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser("generate", "Write synthetic search traces of which the truth is known.")
    parser.add_argument("--out", type=Path, required=True, help="the JSONL file to write")
    parser.add_argument("--traces", type=count, default=500, help="how many (500)")
    parser.add_argument("--seed", type=int, default=0, help="of facts and questions (0)")
    parser.add_argument("--hops", type=_hops, default=(1, 3), help="searches of a trace (1-3)")
    parser.add_argument("--documents", type=int, default=2, help="found by a search (2)")
    parser.add_argument("--document_sentences", type=int, default=2, help="of each document (2)")
    parser.add_argument("--repeats", type=float, default=0.0, help="share of repeated questions")
    parser.add_argument("--faults", type=_share_below_1, default=0.0, help="of rows to break (0)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file")
    return parser


def _hops(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition("-")
    try:
        return int(fewest), int(most or fewest)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2 or 1-3") from None

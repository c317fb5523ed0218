"""The extractive summariser of `plugins/traces` on synthetic traces: what it keeps, and how fast.

    python benchmarks/summaries.py

For each shape of traces: how long contexts are, in how many summaries the fact stands that the next
reply needs, how long a summary is beside its context, and samples a minute of one core. Traces are
made in memory; the clock, of the processor, runs for the summaries and the check of their quotes.
"""

import re
import sys
from time import process_time

from hf_rlhf_traces.format import Format
from hf_rlhf_traces.samples import step_rows
from hf_rlhf_traces.summaries.extractive import Extractive
from hf_rlhf_traces.summaries.summary import are_verbatim, render
from hf_rlhf_traces.synthetic import synthetic_traces
from hf_rlhf_worlds.multihop import Recipe, World

SHAPES = (
    (Recipe(seed=1), 1000),
    (Recipe(seed=2, hops=(2, 4), documents=4, sentences=10), 300),
    (Recipe(seed=3, hops=(2, 4), documents=8, sentences=40), 60),
    (Recipe(seed=4, hops=(2, 4), documents=10, sentences=130), 20),
)
"""Recipes, and how many traces are made by each."""


def measure(recipe: Recipe, count: int) -> tuple[str, ...]:
    """Return a row of the table."""
    form, world = Format(), World(recipe.seed)
    rows = [row for trace in synthetic_traces(recipe, count) for row in step_rows(trace, form)[0]]
    summariser = Extractive(form)
    began = process_time()
    summaries = [summariser.summarise(row) for row in rows]
    verbatim = [
        are_verbatim(summary.quotes, row["prompt"], form)
        for summary, row in zip(summaries, rows, strict=True)
    ]
    seconds = process_time() - began
    assert all(map(all, verbatim))
    facts_kept = 0
    for summary, row in zip(summaries, rows, strict=True):
        needed = re.findall(r"<search>(\w+) of (\w+)</search>", row["prompt"])[-1]
        fact = world.hop(*needed).sentence
        assert fact in row["answer"]
        facts_kept += any(fact in quote.text for quote in summary.quotes)
    context = sum(len(row["prompt"]) for row in rows)
    length = sum(len(render(summary, form)) for summary in summaries)
    return (
        f"{len(rows):,}",
        f"{context / len(rows) / 1000:,.1f} kB",
        f"{max(len(row['prompt']) for row in rows) / 1000:,.0f} kB",
        f"{facts_kept / len(rows):.1%}",
        f"{length / context:.1%}",
        f"{60 * len(rows) / seconds:,.0f}",
    )


def main() -> int:
    """Print a Markdown table."""
    heads = ("samples", "context", "longest", "fact kept", "length", "samples/min")
    for line in (heads, ["---"] * len(heads), *(measure(*shape) for shape in SHAPES)):
        print("| " + " | ".join(line) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

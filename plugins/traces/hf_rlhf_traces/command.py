"""Process raw agent traces to a published, evaluated model: `hf-rlhf traces VERB`."""

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module

from hf_rlhf_traces.options import Parser


def command(argv: Sequence[str]) -> int:
    """Build training data from agent traces, train on it in phases, evaluate, analyse."""
    if not argv or argv[0] not in VERBS:
        _parser().parse_args(list(argv[:1]) or ["--help"])
    module, name, _ = VERBS[argv[0]]
    try:
        return int(getattr(import_module(f"hf_rlhf_traces.{module}"), name)(argv[1:]))
    except KeyboardInterrupt as stopped:
        if argv[0] != "train":  # which says more
            stopped.add_note(f"The same command continues:\n  hf-rlhf traces {shlex.join(argv)}")
        raise


def _parser() -> Parser:
    lines = [f"  {verb:14} {text}" for verb, (_, _, text) in VERBS.items()]
    parser = Parser(
        prog="hf-rlhf traces",
        description="verbs:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=list(VERBS), metavar="VERB")
    return parser


VERBS: dict[str, tuple[str, str, str]] = {
    "generate": ("synthetic", "main", "write synthetic traces with known answers"),
    "build": ("build_command", "build_main", "raw files to datasets, every row accounted for"),
    "summarize": (
        "summaries.command",
        "summarize_main",
        "summarise each sample, by a model if named",
    ),
    "split_summary": (
        "summaries.command",
        "split_summary_main",
        "build the two datasets with summaries, and compare their tokens",
    ),
    "train": ("train_command", "train_main", "train in phases, or by one strategy alone"),
    "eval": ("evaluation.command", "main", "measure models on held-out questions, in both tasks"),
    "analyze": (
        "evaluation.analysis",
        "main",
        "where they do well and badly, by depth of the trace",
    ),
    "push": ("push_command", "push_main", "push the datasets and their card to the Hub"),
    "run": ("run_command", "main", "all of build to analyze, with one command"),
}
"""Verb -> module, function and summary, in the order of use."""

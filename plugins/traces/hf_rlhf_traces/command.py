"""`hf-rlhf traces VERB`: from raw agent traces to a published, evaluated model."""

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module

from hf_rlhf_traces.options import Parser


def command(argv: Sequence[str]) -> int:
    """Make training data of agent traces, train on it in phases, evaluate and analyse."""
    if not argv or argv[0] not in VERBS:
        _parser().parse_args(list(argv[:1]) or ["--help"])
    module, name, _ = VERBS[argv[0]]
    try:
        return int(getattr(import_module(f"hf_rlhf_traces.{module}"), name)(argv[1:]))
    except KeyboardInterrupt as stopped:
        if state := KEPT.get(argv[0]):
            again = f"hf-rlhf traces {shlex.join(argv)}"
            stopped.add_note(f"{state} The same command goes on:\n  {again}")
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
    "generate": ("synthetic", "main", "write synthetic traces of which the truth is known"),
    "read": ("read_command", "read_main", "raw files to typed traces, every row accounted for"),
    "multiturn": ("datasets_command", "multiturn_main", "build conversations, a sample each reply"),
    "steps": ("datasets_command", "steps_main", "build a sample for each result of a trace"),
    "pipeline": ("datasets_command", "pipeline_main", "read and steps in one pass, without traces"),
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
        "evaluation.analyze_command",
        "main",
        "where they do well and badly: tables, pictures, worst cases",
    ),
    "push": ("push_command", "push_main", "the datasets and their card, as a dataset on the Hub"),
    "run": ("run_command", "main", "all of read to analyze, with one command"),
}
"""Verb -> module, function, and what it does. In the order in which they are used."""

_WHOLE = "Nothing is written by halves: what was there before stays."
KEPT: dict[str, str] = {
    **dict.fromkeys(("read", "multiturn", "steps", "split_summary"), _WHOLE),
    "pipeline": f"{_WHOLE} Of --tasks, finished tasks are kept.",
    "summarize": "The summaries made so far are kept.",
    "eval": "The replies made so far are kept.",
    "run": "The steps that are done are kept.",
}
"""Verb -> what is there after Ctrl-C. Training says its own."""

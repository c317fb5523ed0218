"""`hf-rlhf data VERB`: training data that models make or choose."""

import argparse
import shlex
from collections.abc import Sequence
from importlib import import_module

VERBS: dict[str, tuple[str, str, str]] = {
    "confident_pairs": (
        "pairs.command",
        "confident_pairs",
        "keep the preference pairs that reward models are sure of",
    ),
}
"""Verb -> module of this package, function, and what it does."""


def data(argv: Sequence[str]) -> int:
    """Make training data with models: choose the pairs that reward models are sure of."""
    if not argv or argv[0] not in VERBS:
        _parser().parse_args(list(argv[:1]) or ["--help"])
    module, name, _ = VERBS[argv[0]]
    try:
        return int(getattr(import_module(f"hf_rlhf_lab.{module}"), name)(argv[1:]))
    except KeyboardInterrupt as stopped:
        words = shlex.join(["hf-rlhf", "data", *argv])
        stopped.add_note(f"Finished steps are kept. The same command continues:\n  {words}")
        raise


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {verb:16} {text}" for verb, (_, _, text) in VERBS.items()]
    parser = argparse.ArgumentParser(
        prog="hf-rlhf data",
        description="verbs:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("verb", choices=list(VERBS), metavar="VERB")
    return parser

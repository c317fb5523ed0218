"""Make a tiny model again: `python -m hf_rlhf_worlds.recipes NAME --out FOLDER`.

The same seed gives the same weights, up to rounding, which depends on the processor and the number
of threads; one is used.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf_worlds.recipes import calculator, classic, refiner, traces, untrained

RECIPES: dict[str, tuple[Callable[..., Any], int]] = {
    "worlds": (calculator.build, len(calculator.STEPS)),
    "classic": (classic.build, len(classic.STEPS)),
    "refiner": (refiner.build, len(refiner.STEPS)),
    "traces": (traces.build, len(traces.STEPS)),
    "untrained": (untrained.build, 0),
}
"""Name -> the function that builds it, and its number of training stages."""


def main(arguments: Sequence[str]) -> int:
    """Build and save a model."""
    import torch

    parser = argparse.ArgumentParser(
        prog="python -m hf_rlhf_worlds.recipes", description="Make a shipped tiny model again."
    )
    parser.add_argument("name", choices=RECIPES, help="the package that ships it, or the model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, help="width; a multiple of 16")
    parser.add_argument("--layers", type=int, help="how many; 2 or more for refiner")
    parser.add_argument("--steps", type=int, nargs="+", help="of each stage of training")
    options = parser.parse_args(arguments)
    build, stages = RECIPES[options.name]
    if options.steps and len(options.steps) != stages:
        parser.error(f"--steps: {options.name} has {stages} stages, got {len(options.steps)}.")
    torch.set_num_threads(1)
    settings = {name: getattr(options, name) for name in ("hidden", "layers", "steps")}
    build(options.out, options.seed, **{k: v for k, v in settings.items() if v is not None})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

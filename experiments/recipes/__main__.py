"""Make a shipped tiny model again: `python experiments/recipes NAME --out FOLDER`.

The same seed gives the same weights, up to rounding, which depends on the processor and the number
of threads; one is used.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

RECIPES = {
    "worlds": ("calculator", "build"),
    "untrained": ("untrained", "build"),
    "classic": ("classic", "build"),
    "refiner": ("refiner", "build"),
    "traces": ("traces", "build"),
    "agents": ("agents", "build"),
    "speech_codec": ("speech", "make_codec"),
    "speech_references": ("speech", "make_references"),
    "speech_speaker": ("speech", "make_speaker"),
    "speech_feature_scorer": ("speech", "make_feature_scorer"),
}
"""Name -> the module and function that build it."""


def main(arguments: Sequence[str]) -> int:
    """Build and save what the arguments name."""
    import torch

    parser = argparse.ArgumentParser(prog="python experiments/recipes", description=__doc__)
    parser.add_argument("name", choices=RECIPES, help="the package that ships it, or the model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, help="width; a multiple of 16")
    parser.add_argument("--layers", type=int, help="how many; 2 or more for refiner")
    parser.add_argument("--steps", type=int, nargs="+", help="of each stage of training")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("hidden", "layers", "steps")}
    given = {key: value for key, value in settings.items() if value is not None}
    module, function = RECIPES[options.name]
    getattr(import_module(module), function)(options.out, seed=options.seed, **given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How long the command line takes to answer: `hf-rlhf` against `trl`.

Each command is a process of its own, of which the processor time is taken, with its files in the
page cache. `hf-rlhf list` reads
what every installed package offers; `hf-rlhf describe` shows what `trl grpo --help` shows, the
settings of the GRPO trainer.
"""

import shutil
import sys
from functools import partial
from pathlib import Path

from side_by_side import Comparison, Report, in_turn, parser, processor_time

PAIRS = (
    (["hf-rlhf", "--help"], ["trl", "--help"]),
    (["hf-rlhf", "list"], ["trl", "--help"]),
    (["hf-rlhf", "describe", "refiner_grpo"], ["trl", "grpo", "--help"]),
)


def command(words: list[str]) -> list[str]:
    """Return the command with the path of the program that stands beside this Python."""
    beside = Path(sys.executable).with_name(words[0])
    program = str(beside) if beside.exists() else shutil.which(words[0])
    if program is None:
        raise SystemExit(f"{words[0]} is not installed")
    return [program, *words[1:]]


def main() -> None:
    """Time every command in turn and print the table."""
    chosen = parser(__doc__, rounds=9).parse_args()
    pairs = PAIRS[:1] if chosen.quick else PAIRS
    commands = {" ".join(words): words for pair in pairs for words in pair}
    for words in commands.values():
        processor_time(command(words))
    seconds = in_turn(
        1 if chosen.quick else chosen.rounds,
        {name: partial(processor_time, command(words)) for name, words in commands.items()},
    )
    report = Report(
        "Start of the command line, processor time",
        [
            Comparison(
                " ".join(mine), seconds[" ".join(mine)], seconds[" ".join(other)], "s",
                " ".join(other),
            )
            for mine, other in pairs
        ],
    )  # fmt: skip
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()

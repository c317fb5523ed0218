"""What hf_rlhf adds to a run of 20 steps: the processor time of both processes, from start to end.

Each side trains the default run file of a stage for 20 steps, by its own command, as a process of
its own. Ours also checks the run, keeps a record, renders the card and its plots, and merges the
adapter; nothing is evaluated. The difference does not grow with the steps.
"""

import sys
from functools import partial
from pathlib import Path

from classic_step import theirs
from side_by_side import Comparison, Report, in_turn, parser, processor_time, scratch

STAGES = ("sft", "dpo", "grpo")


def seconds(side: str, stage: str, steps: int) -> float:
    """Return the processor seconds of one run."""
    with scratch() as folder:
        settings = {"max_steps": steps, "output_dir": f"{folder}/run"}
        ours = ["-m", "hf_rlhf.train", "--plugin", stage, "--evaluation", "null"]
        for key, value in settings.items():
            ours += [f"--{key}", str(value)]
        plain = [__file__, "--plain", stage, folder, str(steps)]
        return processor_time([sys.executable, *(ours if side == "ours" else plain)])


def main() -> None:
    """Compare each stage, and print the ratios."""
    options = parser(__doc__, rounds=3)
    options.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    options.add_argument("--plain", nargs=3, metavar=("STAGE", "FOLDER", "STEPS"))
    chosen = options.parse_args()
    if chosen.plain:
        stage, folder, count = chosen.plain
        for _ in theirs(stage, Path(folder), {"max_steps": int(count)}, Path(folder) / "steps"):
            pass
        return
    stages, rounds, steps = chosen.stages, chosen.rounds, 20
    if chosen.quick:
        stages, rounds, steps = stages[:1], 1, 2
    report = Report(f"Processor time of a run of {steps} steps")
    for stage in stages:
        sides = {side: partial(seconds, side, stage, steps) for side in ("ours", "theirs")}
        times = in_turn(rounds, sides)
        report.comparisons.append(Comparison(stage, *times.values(), "s", "TRL alone"))
    report.show(as_json=chosen.json)


if __name__ == "__main__":
    main()

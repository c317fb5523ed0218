"""Turn criteria into a reward for training: `hf-rlhf rewards method`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEFAULT_FILE = Path(__file__).parents[1] / "runs" / "method" / "tiny.yaml"
DESCRIPTION = """\
Lead from criteria to a reward that one may train on, and stop at the first step that fails:
grades of responses, calibration of each signal against them, weights, reward model, validation,
and a short training in which the grade has to rise with the reward.

FILE names the criteria, the responses and the signals; without it, a small offline example.
Any key of the file is an option too: `--rows 200`, `--survival.settings.max_steps 50`.

The results are written to --out: method.md, method.json, and rewards.yaml, the reward as a fragment
of a run file. The same command continues a method that was cut off, and repeats only
the steps whose inputs have changed. The exit status is 1 if a step stopped it."""


def add_parser(verbs: Any) -> None:
    """Add the verb `method`."""
    options = verbs.add_parser(
        "method",
        help="from criteria to a reward that one may train on",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="hf-rlhf rewards method [FILE] [options] [--key value ...]",
    )
    options.add_argument("--out", type=Path, help="default: evals/method-NAME")
    options.add_argument("--check", action="store_true", help="check everything, and do no step")
    options.add_argument(
        "--launch", default=shlex.quote(sys.executable), metavar="COMMAND",
        help="how trainings are launched, such as 'accelerate launch'; default: this Python",
    )  # fmt: skip


def method(chosen: argparse.Namespace, overrides: Sequence[str], command: Sequence[str]) -> int:
    """Run the steps, write the results, and return the exit status."""
    from hf_rlhf.training import quiet_libraries
    from hf_rlhf_lab.method.file import Method
    from hf_rlhf_lab.method.page import NAME, write
    from hf_rlhf_lab.method.prepare import plan, prepare

    quiet_libraries()
    file = Path(chosen.target or DEFAULT_FILE)
    folder = chosen.out or Path("evals") / f"method-{file.stem}"
    pipeline = prepare(Method.read(file, overrides), folder, shlex.split(chosen.launch))
    print(plan(pipeline))
    if chosen.check:
        return 0
    stopped = pipeline.run()
    headline = write(pipeline, stopped, shlex.join(command))
    if not stopped:  # otherwise the line before gives the reason
        print(headline)
    print(f"Report: {folder / f'{NAME}.md'}")
    return int(bool(stopped))

"""`hf-rlhf eval`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_rlhf.config import RunFile

_DESCRIPTION = """\
Measure saved models on the same held-out prompts: reward, win rate, KL, length,
in one table.

FILE is an evaluation file, or the run file of a training, of which the dataset,
the judges, the rewards and `evaluation:` are taken. Any key of it is an option
too: `--evaluation.rows 200`, `--rewards.0.name NAME`. The same command resumes
where it stopped; another `--model` is added to the table.
docs/how-to/evaluate.md describes it."""


def command(argv: Sequence[str]) -> int:
    """Compare saved models on the same held-out prompts in a single table."""
    # Not a positional of argparse, which would take the value of an override for it.
    path = argv[0] if argv and not argv[0].startswith("-") else None
    chosen, overrides = _parser().parse_known_args(argv[1:] if path else argv)

    from hf_rlhf.config import RunFile, choose_run_file
    from hf_rlhf.errors import ConfigError
    from hf_rlhf.training import quiet_libraries
    from hf_rlhf_classic.evaluation.benchmarks import suite_of_benchmarks
    from hf_rlhf_classic.evaluation.plan import make_plan
    from hf_rlhf_classic.evaluation.task import suite_of

    quiet_libraries()
    if path or chosen.plugin:
        file = choose_run_file(chosen.plugin, chosen.run, path)
    else:
        file = RunFile.from_mapping({}, "command line")
    try:
        file = _with_options(file.override(overrides), chosen)
        if chosen.benchmark and "dataset" not in file.values:
            suite = suite_of_benchmarks(file, chosen.out or Path("evals/benchmarks"))
        else:
            plan = make_plan(file)
            out = chosen.out or Path("evals") / Path(file.name if path else plan.data_name).stem
            suite = suite_of(plan, out)
    except ConfigError as error:
        raise ConfigError(error.problems, subject="evaluation") from None
    suite.show(suite.run(["hf-rlhf", "eval", *argv], record=chosen.record))
    return 0


def _with_options(file: "RunFile", chosen: argparse.Namespace) -> "RunFile":
    """Return the file with the options that add to its sections."""
    from hf_rlhf.config import value_of
    from hf_rlhf.evaluation import Candidate

    tasks = [value_of(it) if it.startswith("{") else {"name": it} for it in chosen.benchmark]
    added: dict[tuple[str, str], Any] = {
        ("eval", "models"): Candidate.parse(chosen.model),
        ("eval", "baseline"): chosen.baseline,
        ("eval", "reference"): chosen.reference,
        ("eval", "compare"): chosen.compare,
        ("evaluation", "benchmarks"): tasks,
    }
    options = []
    for (section, key), value in added.items():
        values = file.values.get(section)
        own = values.get(key) if isinstance(values, dict) else None
        if value and own and not isinstance(value, str):
            if not isinstance(own, type(value)):
                continue  # which is reported, with the line of the file
            value = [*own, *value] if isinstance(value, list) else own | value
        if value:
            options += [f"--{section}.{key}", json.dumps(value)]
    return file.override(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-rlhf eval",
        usage="hf-rlhf eval [FILE] --model NAME=WHERE ... [--baseline NAME]\n"
        "                    [--KEY VALUE ...]",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=WHERE",
        help="a run folder, a folder of weights, an adapter, a Hub id (@REVISION), or "
        "'{base: BASE, adapter: ADAPTER}'; one name several times: its training seeds",
    )
    parser.add_argument("--baseline", metavar="NAME", help="default: the first model")
    parser.add_argument(
        "--reference", metavar="NAME", help="KL is measured from it; default: the baseline; none"
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="BY",
        help="win rate by: total (default), a reward's label, judge, judge:LABEL; repeatable",
    )
    parser.add_argument(
        "--benchmark",
        action="append",
        default=[],
        metavar="TASK",
        help="a task of lm-eval, such as gsm8k, the YAML file of one, or '{name: TASK, limit: 9}'; "
        "without FILE and --plugin, benchmarks alone; repeatable",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: evals/FILE, or evals/DATASET"
    )
    parser.add_argument(
        "--record", action="store_true", help="add the results to the run folders' record and card"
    )
    parser.add_argument("--plugin", metavar="NAME", help="a trainer whose default run file is FILE")
    parser.add_argument(
        "--run", metavar="NAME", help="another run file that the trainer's package ships"
    )
    return parser

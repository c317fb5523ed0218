"""`hf-rlhf traces eval`."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from hf_rlhf.errors import ModelError
from hf_rlhf_traces.evaluation.metrics import TASKS
from hf_rlhf_traces.options import Parser, count, not_negative, seed, verb_parser
from hf_rlhf_traces.store import Store

QUICK = 20
_WEIGHTS = Path("merged", "config.json")


def main(argv: Sequence[str]) -> int:
    """Measure models on held-out samples of a store."""
    chosen = eval_parser().parse_args(argv)
    store = Store.open(chosen.folder)

    from hf_rlhf.evaluation import Candidate
    from hf_rlhf.training import quiet_libraries
    from hf_rlhf_traces.evaluation.task import Options, make_suite

    models = Candidate.parse(chosen.model) or newest_run(store)
    quiet_libraries()
    chosen.tasks = chosen.tasks or tuple(TASKS)
    if chosen.quick:
        chosen.num_samples = min(QUICK, chosen.num_samples)
    options = Options(**{field.name: getattr(chosen, field.name) for field in fields(Options)})
    suite = make_suite(store, models, options)
    results = suite.run(["hf-rlhf", "traces", "eval", *argv], record=chosen.record)
    if results and chosen.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    elif results:
        suite.show(results)
        print(f"next: hf-rlhf traces analyze {store.folder}")
    return 0


def newest_run(store: Store) -> dict[str, list[str]]:
    """Return the store's last trained run. Raises ModelError if there is none."""
    # For a run in phases, the folder of all phases, which has the last model.
    runs = [
        path.parent
        for path in (store.folder / "runs").glob("*/run.json")
        if (path.parent / _WEIGHTS).exists()
    ]
    if not runs:
        raise ModelError(
            f"{store.folder / 'runs'} has no run that is trained to its end. Train one (hf-rlhf "
            f"traces train {store.folder}), or name a model: --model WHERE."
        )
    newest = max(runs, key=lambda run: (run / _WEIGHTS).stat().st_mtime)
    return {newest.name: [str(newest)]}


def eval_parser() -> Parser:
    """Return the options of the verb."""
    parser = verb_parser(
        "eval",
        "Measure models on held-out questions in the two tasks: to summarise a full context and go "
        "on (prefix), and to go on from a given summary (only). What each number is: "
        "docs/how-to/traces-eval.md. The same command resumes where it stopped.",
        folder="the folder that the verbs work in",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]WHERE",
        help="a run folder, merged weights, an adapter, a checkpoint, or a Hub id (ID@REVISION); "
        "repeatable, the others are compared with the first; one name several times: its training "
        "seeds; default: the newest run in DIR/runs",
    )
    add(
        "--task",
        dest="tasks",
        choices=list(TASKS),
        action="append",
        help="repeatable; default: both",
    )
    add("--num_samples", type=count, default=50, help="of each task; default: %(default)s")
    add("--quick", action="store_true", help=f"{QUICK} samples, which are among the others")
    add("--max_new_tokens", type=count, default=1024, help="default: %(default)s")
    add("--temperature", type=not_negative, default=0.0, help="default: 0, greedy")
    add("--batch_size", type=count, default=8, help="default: %(default)s")
    add("--seed", type=seed, default=42, help="seed of the samples; default: %(default)s")
    add("--record", action="store_true", help="put the table on the card of each run, too")
    add("--use_cpu", action="store_true", help="also where there is a GPU")
    add("--json", action="store_true", help="print the results as JSON instead of tables")
    return parser

"""`hf-rlhf traces eval`."""

from collections.abc import Sequence
from dataclasses import fields

from hf_rlhf_traces.evaluation.metrics import TASKS
from hf_rlhf_traces.options import Parser, count, not_negative, seed, verb_parser
from hf_rlhf_traces.store import Store


def main(argv: Sequence[str]) -> int:
    """Measure models on held-out samples of a store."""
    chosen = eval_parser().parse_args(argv)
    store = Store.open(chosen.folder)

    from hf_rlhf.evaluation import Candidate
    from hf_rlhf.training import quiet_libraries
    from hf_rlhf_traces.evaluation.task import Options, make_suite

    models = Candidate.parse(chosen.model)
    quiet_libraries()
    chosen.tasks = chosen.tasks or tuple(TASKS)
    options = Options(**{field.name: getattr(chosen, field.name) for field in fields(Options)})
    suite = make_suite(store, models, options)
    results = suite.run(["hf-rlhf", "traces", "eval", *argv], record=chosen.record)
    if results:
        suite.show(results)
        print(f"next: hf-rlhf traces analyze {store.folder}")
    return 0


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
        required=True,
        metavar="[NAME=]WHERE",
        help="a run folder, merged weights, an adapter, a checkpoint, or a Hub id (ID@REVISION); "
        "repeatable, the others are compared with the first; one name several times: its training "
        "seeds",
    )
    add(
        "--task",
        dest="tasks",
        choices=list(TASKS),
        action="append",
        help="repeatable; default: both",
    )
    add("--num_samples", type=count, default=50, help="of each task; default: %(default)s")
    add("--max_new_tokens", type=count, default=1024, help="default: %(default)s")
    add("--temperature", type=not_negative, default=0.0, help="default: 0, greedy")
    add("--batch_size", type=count, default=8, help="default: %(default)s")
    add("--seed", type=seed, default=42, help="seed of the samples; default: %(default)s")
    add("--record", action="store_true", help="put the table on the card of each run, too")
    add("--use_cpu", action="store_true", help="also where there is a GPU")
    return parser

"""`hf-rlhf traces analyze`."""

from collections.abc import Sequence

from hf_rlhf_traces.options import Parser, count, verb_parser
from hf_rlhf_traces.store import Store

FOLDER = "analysis"


def main(argv: Sequence[str]) -> int:
    """Say where the models of the last evaluation do well and badly."""
    chosen = analyze_parser().parse_args(argv)
    store = Store.open(chosen.folder)

    from hf_rlhf.cards import terminal_table
    from hf_rlhf_traces.evaluation.analysis import depth_table, load, write_analysis
    from hf_rlhf_traces.evaluation.metrics import TITLES
    from hf_rlhf_traces.evaluation.tables import all_verdicts
    from hf_rlhf_traces.terminal import console

    analysis = load(store, chosen.model)
    for task in analysis.tasks:
        title = f"{TITLES[task].capitalize()}: by results in the whole trace"
        headings, rows = depth_table(analysis, task)
        rows = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
        console().print(terminal_table(headings, rows, title))
    for path in write_analysis(analysis, store.folder / FOLDER, worst_count=chosen.worst):
        print(path)
    for line in all_verdicts(analysis.results):
        print(line)
    return 0


def analyze_parser() -> Parser:
    """Return the options of the verb."""
    parser = verb_parser(
        "analyze",
        "The last evaluation of DIR by depth of the trace, all its models side by side, with the "
        "verdict and the worst cases: DIR/analysis/.",
        folder="the folder that the verbs work in",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        default=[],
        metavar="LABEL",
        help="a label of the evaluation; repeatable; default: all",
    )
    add("--worst", type=count, default=5, help="of each model and task; default: %(default)s")
    return parser

"""`hf-rlhf traces analyze`."""

from collections.abc import Sequence

from hf_rlhf_traces.options import Parser, count, verb_parser
from hf_rlhf_traces.store import Store

FOLDER = "analysis"


def main(argv: Sequence[str]) -> int:
    """Say where the models of the last evaluation do well and badly."""
    chosen = analyze_parser().parse_args(argv)
    store = Store.open(chosen.folder)

    from rich.table import Table

    from hf_rlhf_traces.evaluation.analysis import by_depth, load
    from hf_rlhf_traces.evaluation.metrics import SAID
    from hf_rlhf_traces.evaluation.report import depth_rows, write_analysis
    from hf_rlhf_traces.terminal import console

    analysed = load(store, chosen.model)
    shown = console()
    for task in analysed.tasks:
        found = by_depth(analysed, task)
        title = f"{SAID[task].capitalize()}: by {found.by}"
        table = Table(title=title, title_justify="left")
        for heading in ("metric", "model", *found.names):
            table.add_column(heading, justify="left" if heading in ("metric", "model") else "right")
        for row, ends in depth_rows(found):
            table.add_row(*row, end_section=ends)
        shown.print(table)
    made = write_analysis(
        analysed, store.folder / FOLDER, worst_count=chosen.worst, bins=chosen.bins
    )
    for path in made:
        print(path)
    return 0


def analyze_parser() -> Parser:
    """Return the options of the verb."""
    parser = verb_parser(
        "analyze",
        "The last evaluation of DIR by depth of the trace and length of the context, all its "
        "models side by side, and the worst cases: DIR/analysis/.",
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
    add("--bins", type=count, default=4, help="of context lengths; default: %(default)s")
    return parser

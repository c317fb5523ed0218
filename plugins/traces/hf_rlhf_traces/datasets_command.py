"""The verbs `multiturn` and `steps`: datasets that follow from the traces alone."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hf_rlhf_traces.engine import add_workers_option
from hf_rlhf_traces.format_options import add_format_options, asked_format, store_format
from hf_rlhf_traces.layout import add_layout_options, asked_layout
from hf_rlhf_traces.options import add_overwrite, seed, share, verb_parser
from hf_rlhf_traces.store import Store


def multiturn_main(argv: Sequence[str]) -> int:
    """Build the dataset `multiturn`."""
    parser = _parser(
        "multiturn",
        "Conversations up to each reply of a trace: a sample for the first reply, and one for each "
        "cut at a result. The last turn of a sample is learned.",
    )
    parser.add_argument("--seed", type=seed, default=42, help="of what is dropped; default: 42")
    parser.add_argument(
        "--think_drop_prob",
        type=share,
        default=0.3,
        metavar="P",
        help="how often a turn before the reply has its thoughts as plain text, without their "
        "tags; default: %(default)s",
    )
    parser.add_argument(
        "--reasoning_drop_prob",
        type=share,
        default=0.0,
        metavar="P",
        help="how often a conversation is written without any reasoning, under an opening that "
        "asks for none; default: %(default)s",
    )
    chosen = parser.parse_args(argv)
    drop = {
        name: getattr(chosen, name) for name in ("seed", "think_drop_prob", "reasoning_drop_prob")
    }

    from hf_rlhf_traces.samples import multiturn_rows

    return _built(chosen, drop, partial(multiturn_rows, **drop))


def steps_main(argv: Sequence[str]) -> int:
    """Build the dataset `steps`."""
    parser = _parser(
        "steps",
        "A sample for each result of a trace: what was asked, said and found up to it, and the "
        "reply. Summaries are made of these.",
    )
    chosen = parser.parse_args(argv)

    from hf_rlhf_traces.samples import growing_step_rows

    return _built(chosen, {}, growing_step_rows)


def _built(
    chosen: argparse.Namespace, settings: Mapping[str, Any], make: Callable[..., Any]
) -> int:
    from hf_rlhf_traces.building import Rows, build
    from hf_rlhf_traces.dataset_card import write_card

    asked, name = asked_format(chosen), chosen.dataset
    layout = asked_layout(chosen)
    settings = {**settings, **layout.settings()}
    store = Store.open(chosen.folder)
    store.report("read")
    form = store_format(store, asked, overwrite=chosen.overwrite)
    state = store.check(name, settings, overwrite=chosen.overwrite)
    if state == "done" and (store.folder / "datasets" / name / "train.parquet").exists():
        print(f"{name}: done already. {described(store.report(name))}")
    else:
        report = build(
            store,
            Rows(name, partial(make, form=form), layout),
            settings,
            workers=chosen.workers,
        )
        print(f"{name}: {described(report)}")
    if chosen.tokenizer:
        from rich.console import Console

        from hf_rlhf_traces.token_table import measured, token_table

        Console().print(token_table(measured(store, [name], chosen.tokenizer)))
    print(f"{store.folder / 'datasets' / name}, and its card: {write_card(store)}")
    return 0


def described(report: Mapping[str, Any]) -> str:
    """Return what came of a dataset, in a sentence or two."""
    samples, traces = report["samples"], report["traces"]
    told = (
        f"{sum(traces.values()):,} traces, {report['cuts']:,} cuts: "
        f"{sum(samples.values()):,} samples ({samples['train']:,} train, "
        f"{samples['validation']:,} validation)"
    )
    left = [f"{count:,} {why}" for why, count in report["skipped"].items() if count]
    if report.get("unknown_steps"):
        left.append(f"{report['unknown_steps']:,} unknown steps not written")
    told += f"; left out: {', '.join(left) or 'nothing'}."
    if dropped := report.get("think_dropped"):
        told += (
            f" {dropped:,} of {report['think_turns']:,} earlier turns have their thoughts without "
            "tags."
        )
    if dropped := report.get("reasoning_dropped"):
        told += f" {dropped:,} samples are without reasoning, under an opening that asks for none."
    return told


def _parser(dataset: str, description: str) -> argparse.ArgumentParser:
    parser = verb_parser(dataset, description, folder="what `read` wrote")
    parser.set_defaults(dataset=dataset)
    add_overwrite(parser)
    add_layout_options(parser)
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="measure samples in tokens, for the card, too"
    )
    add_workers_option(parser)
    add_format_options(parser)
    return parser

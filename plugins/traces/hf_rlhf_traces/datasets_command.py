"""The verbs `multiturn`, `steps` and `pipeline`: datasets that follow from the traces alone."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hf_rlhf_traces.blocks import add_workers_option
from hf_rlhf_traces.format import Format, add_format_options, format_from_options, store_format
from hf_rlhf_traces.options import Parser, add_overwrite, count, seed, share, verb_parser
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

    return _build("multiturn", chosen, drop, partial(multiturn_rows, **drop))


def steps_main(argv: Sequence[str]) -> int:
    """Build the dataset `steps`."""
    parser = _parser(
        "steps",
        "A sample for each result of a trace: the question with all that the agent wrote and found "
        "up to it, and the reply. Summaries are made of these.",
    )
    chosen = parser.parse_args(argv)

    from hf_rlhf_traces.samples import step_rows

    return _build("steps", chosen, {}, step_rows)


def _parser(dataset: str, description: str) -> Parser:
    parser = verb_parser(dataset, description, folder="what `read` wrote")
    add_overwrite(parser)
    add_workers_option(parser)
    add_format_options(parser)
    return parser


def _build(
    dataset: str,
    chosen: argparse.Namespace,
    settings: Mapping[str, Any],
    rows_of: Callable[..., Any],
) -> int:
    from hf_rlhf_traces.building import RowBuilder, build
    from hf_rlhf_traces.shards import shard_files

    wanted = format_from_options(chosen)
    store = Store.open(chosen.folder)
    store.report("read")
    form = store_format(store, wanted, overwrite=chosen.overwrite)
    state = store.check(dataset, settings, overwrite=chosen.overwrite)
    done = state == "done" and bool(shard_files(store.folder / "datasets" / dataset, "train"))
    if not done:
        builder = RowBuilder(dataset, partial(rows_of, form=form))
        build(store, builder, settings, workers=chosen.workers)
    return _finish(store, dataset, done=done)


def _finish(store: Store, dataset: str, *, done: bool) -> int:
    from hf_rlhf_traces.dataset_card import write_card

    print(f"{dataset}: {'done already. ' * done}{dataset_summary(store.report(dataset))}")
    print(f"{store.folder / 'datasets' / dataset}, and its card: {write_card(store)}")
    return 0


def pipeline_main(argv: Sequence[str]) -> int:
    """Read files and build their steps in one pass, here or as datatrove tasks."""
    from hf_rlhf_traces.pipeline import DATASET, run_pipeline
    from hf_rlhf_traces.read_command import reading_from_options, show_read
    from hf_rlhf_traces.shards import shard_files

    chosen = _pipeline_parser().parse_args(argv)
    reading, form = reading_from_options(chosen), format_from_options(chosen) or Format()
    store = Store.make(chosen.out)
    overwrite = chosen.overwrite
    states = {
        reading.is_done(store, reading.sources()),
        store.check("format", form.settings(), overwrite=overwrite) == "done",
        store.check(DATASET, {}, overwrite=overwrite) == "done",
        bool(shard_files(chosen.out / "datasets" / DATASET, "train")),
    }
    if done := states == {True}:
        return _finish(store, DATASET, done=done)
    if chosen.tasks or chosen.slurm:
        from hf_rlhf_traces.datatrove_tasks import run_tasks

        submitted = run_tasks(reading, form, chosen.tasks, chosen.workers, chosen.slurm)
        if submitted:
            print(submitted)
            return 0
    else:
        run_pipeline(reading, form, workers=chosen.workers)
    store = Store.open(chosen.out)
    show_read(store.report("read"), chosen.out)
    return _finish(store, DATASET, done=False)


def _pipeline_parser() -> Parser:
    from hf_rlhf_traces.read_command import add_reading_options

    parser = verb_parser(
        "pipeline",
        "Read agent traces and build their steps into DIR in one pass, without writing the traces: "
        "on the cores of this machine, or by datatrove with --tasks or --slurm. The counts, split "
        "and rows are those of `read` and `steps`.",
    )
    add_reading_options(parser)
    add_workers_option(parser)
    parser.add_argument("--tasks", type=count, metavar="N", help="datatrove tasks; default: none")
    parser.add_argument(
        "--slurm",
        metavar="KEY=VALUE,...",
        help="submit the tasks to Slurm, with arguments of datatrove's SlurmPipelineExecutor: "
        "partition=cpu,time=02:00:00 and others, such as mem_per_cpu_gb=4",
    )
    add_format_options(parser)
    return parser


def dataset_summary(report: Mapping[str, Any]) -> str:
    """Return the counts of a dataset in a sentence or two."""
    samples, traces = report["samples"], report["traces"]
    left_out = [f"{number:,} {why}" for why, number in report["skipped"].items() if number]
    if report.get("unknown_steps"):
        left_out.append(f"{report['unknown_steps']:,} unknown steps not written")
    text = (
        f"{sum(traces.values()):,} traces, {report['cuts']:,} cuts: "
        f"{sum(samples.values()):,} samples ({samples['train']:,} train, "
        f"{samples['validation']:,} validation); left out: {', '.join(left_out) or 'nothing'}."
    )
    if dropped := report.get("think_dropped"):
        text += (
            f" {dropped:,} of {report['think_turns']:,} earlier turns have their thoughts without "
            "tags."
        )
    if dropped := report.get("reasoning_dropped"):
        text += f" {dropped:,} samples are without reasoning, under an opening that asks for none."
    return text

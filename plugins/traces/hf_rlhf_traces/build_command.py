"""Convert raw files to datasets: `hf-rlhf traces build FILE... --out DIR`."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import did_you_mean
from hf_rlhf.formatting import visible
from hf_rlhf_rollouts import KNOWN, rollout_forms
from hf_rlhf_traces.format import Format, read_format
from hf_rlhf_traces.options import (
    Parser,
    add_overwrite,
    count,
    json_object,
    number_type,
    ratio,
    share,
    verb_parser,
)
from hf_rlhf_traces.options import seed as a_seed
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.read_files import Reading
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.store import REJECTS, Store
from hf_rlhf_traces.terminal import no_bars_of_datasets

if TYPE_CHECKING:
    from hf_rlhf_traces.pipeline import RowBuilder

BUILT = ("multiturn", "steps")
"""The datasets to build from raw files."""


def build_main(argv: Sequence[str]) -> int:
    """Build datasets in a folder for the other verbs."""
    no_bars_of_datasets()
    from hf_rlhf_traces.pipeline import Build, row_builders, run_build

    chosen = build_parser().parse_args(argv)
    reading, form = _reading(chosen), read_format(chosen.format)
    names = ("seed", "think_drop_prob", "reasoning_drop_prob")
    drop = {name: getattr(chosen, name) for name in names}
    builders = row_builders(chosen.dataset or BUILT, form, drop)
    store = Store.make(chosen.out)
    due = _due(store, reading, form, builders)
    if due:
        build = Build(reading, form, due)
        if chosen.tasks or chosen.slurm:
            from hf_rlhf_traces.datatrove_tasks import run_tasks

            if submitted := run_tasks(build, chosen.tasks, chosen.workers, chosen.slurm):
                print(submitted)
                return 0
        else:
            run_build(build, workers=chosen.workers)
        report = store.report("build")
        _show_rows(report, f"Rows of {chosen.out}")
        if report["rejected"]:
            print(f"Rejected rows, with places and reasons: {chosen.out / REJECTS}")
    _show_datasets(store, builders, due)
    return 0


def _due(
    store: Store, reading: Reading, form: Format, builders: "Sequence[RowBuilder]"
) -> "list[RowBuilder]":
    """Return the datasets to build. Raises RunFolderError for changed settings."""
    from hf_rlhf_traces.shards import shard_files

    overwrite = reading.overwrite
    # Call all of them, because each refuses changed settings.
    is_read = reading.is_done(store, reading.sources())
    same_form = store.check("format", form.settings(), overwrite=overwrite) == "done"
    states = {
        builder.dataset: store.check(builder.dataset, builder.settings, overwrite=overwrite)
        for builder in builders
    }
    return [
        builder
        for builder in builders
        if not (is_read and same_form and states[builder.dataset] == "done")
        or not shard_files(store.folder / "datasets" / builder.dataset, "train")
    ]


def _show_datasets(
    store: Store, builders: "Sequence[RowBuilder]", due: "Sequence[RowBuilder]"
) -> None:
    from hf_rlhf_traces.dataset_card import write_card

    for builder in builders:
        done = "" if builder in due else "done already. "
        print(f"{builder.dataset}: {done}{_summary(store.report(builder.dataset))}")
    print(f"{store.folder / 'datasets'}, and their card: {write_card(store)}")


def _reading(chosen: argparse.Namespace) -> Reading:
    options = Options(**{each.name: getattr(chosen, each.name) for each in fields(Options)})
    return Reading.of(
        chosen.files,
        chosen.out,
        options,
        validation_ratio=chosen.validation_ratio,
        seed=chosen.seed,
        max_rejected_share=chosen.max_rejected_share,
        overwrite=chosen.overwrite,
    )


def build_parser() -> Parser:
    """Return the options of the verb."""
    parser = verb_parser(
        "build",
        "Build datasets of agent traces in DIR: every row becomes samples or is rejected with a "
        "reason. On the cores of this machine, or, with more machines, by datatrove with "
        "--tasks or --slurm.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="JSONL, JSON, Parquet, CSV (.gz); a folder of them; or the id of a Hub dataset",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="what all other verbs work in"
    )
    parser.add_argument(
        "--form",
        choices=list(rollout_forms()),
        help="the form of every row; default: found for each",
    )
    parser.add_argument(
        "--validation_ratio",
        type=ratio,
        default=0.1,
        metavar="SHARE",
        help="of the questions, held out of all datasets; default: %(default)s",
    )
    parser.add_argument(
        "--seed",
        type=a_seed,
        default=42,
        metavar="N",
        help="seed of the split and of dropped thoughts; default: %(default)s",
    )
    parser.add_argument(
        "--max_document_chars",
        type=count,
        default=100_000,
        metavar="N",
        help="longer documents are cut; default: %(default)s",
    )
    parser.add_argument(
        "--max_row_mb",
        type=count,
        default=64,
        metavar="MB",
        help="larger rows are rejected, and not held in memory; default: %(default)s",
    )
    parser.add_argument(
        "--max_rejected_share",
        type=share,
        default=0.05,
        metavar="SHARE",
        help="stop when more rows than this are rejected; default: %(default)s",
    )
    parser.add_argument("--subset", metavar="NAME", help="of a Hub dataset: its configuration")
    parser.add_argument(
        "--revision", metavar="REV", help="of a Hub dataset: a branch, tag or commit"
    )
    parser.add_argument(
        "--dataset",
        action="append",
        choices=BUILT,
        help="conversations up to each reply, or a sample for each result; default: both",
    )
    parser.add_argument(
        "--think_drop_prob",
        type=share,
        default=0.3,
        metavar="P",
        help="multiturn: how often a turn before the reply has its thoughts as plain text, without "
        "their tags; default: %(default)s",
    )
    parser.add_argument(
        "--reasoning_drop_prob",
        type=share,
        default=0.0,
        metavar="P",
        help="multiturn: how often a conversation is written without any reasoning, under an "
        "opening that asks for none; default: %(default)s",
    )
    add_overwrite(parser)
    parser.add_argument(
        "--workers",
        type=number_type(int, 0),
        metavar="N",
        help="processes; default: one for each core. The output does not depend on it",
    )
    parser.add_argument(
        "--format",
        type=Path,
        metavar="FILE.yaml",
        help="tags and templates that differ; a folder has one format for all that is made in it",
    )
    parser.add_argument("--tasks", type=count, metavar="N", help="datatrove tasks; default: none")
    parser.add_argument(
        "--slurm",
        type=json_object,
        metavar="JSON",
        help="submit the tasks to Slurm, with arguments of datatrove's SlurmPipelineExecutor: "
        '{"partition": "cpu", "time": "02:00:00"}',
    )
    return parser


def _show_rows(report: Mapping[str, Any], title: str) -> None:
    """Print the outcomes of the rows as a table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for heading in ("rows", "count", "meaning"):
        table.add_column(heading, justify="right" if heading == "count" else "left")
    for name, number, meaning in _lines(report):
        table.add_row(escape(visible(name)), f"{number:,}", escape(visible(meaning)))
    console = Console()
    console.print(table)
    notes = [
        f"Part of the input is lost: {row}" for row in report["places"].get("file_damaged", [])
    ]
    notes += [
        f"{source['path']}: the Hub could not be reached; the copy in the cache was read."
        for source in report["sources"]
        if source.get("commit", "") is None
    ]
    for note in notes:
        console.print(visible(note), soft_wrap=True, markup=False)


def _lines(report: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    sides = report["questions"]
    yield "rows", report["rows"], "= traces + rejected"
    shares = f"of {sides['train']:,} training and {sides['validation']:,} validation questions"
    yield "traces", report["traces"], shares
    for reason, number in report["rejected"].items():
        yield f"rejected: {reason}", number, REJECTED[reason]
    for heading, name in (("form", "forms"), ("steps", "steps")):
        for kind, number in report[name].items():
            yield f"{heading}: {kind}", number, ""
    for kind, number in report["answers"].items():
        yield f"answers: {kind}", number, "types in the source"
    for kind, number in report["unknown"].items():
        meaning = f"steps of a type that is not read{did_you_mean(kind, KNOWN)}"
        yield f"unknown: {kind}", number, meaning
    for note, number in report["noted"].items():
        yield note, number, NOTED.get(note.split(".")[0], "")


def _summary(report: Mapping[str, Any]) -> str:
    """Summarise the counts of a dataset in a sentence or two."""
    samples, traces = report["samples"], report["traces"]
    left_out = [f"{number:,} {why}" for why, number in report["skipped"].items() if number]
    if unknown := report.get("unknown_steps"):
        left_out.append(f"{unknown:,} unknown steps not written")
    text = (
        f"{sum(traces.values()):,} traces, {report['cuts']:,} cuts: "
        f"{sum(samples.values()):,} samples ({samples['train']:,} train, "
        f"{samples['validation']:,} validation); left out: {', '.join(left_out) or 'nothing'}."
    )
    if untagged := report.get("think_dropped"):
        turns = f"{report['think_turns']:,} earlier turns"
        text += f" {untagged:,} of {turns} have their thoughts without tags."
    if dropped := report.get("reasoning_dropped"):
        text += f" {dropped:,} samples are without reasoning, under an opening that asks for none."
    return text

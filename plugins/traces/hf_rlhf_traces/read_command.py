"""`hf-rlhf traces read FILE... --out DIR`: raw files to typed traces, every row accounted for."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.data import near
from hf_rlhf.errors import ConfigError
from hf_rlhf_traces.blocks import add_workers_option
from hf_rlhf_traces.options import add_overwrite, count, verb_parser
from hf_rlhf_traces.options import seed as a_seed
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.read_files import Reading, read
from hf_rlhf_traces.readers import FORMS
from hf_rlhf_traces.readers.search import KNOWN
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.selection import ANSWERS, condition
from hf_rlhf_traces.store import REJECTS


def read_main(argv: Sequence[str]) -> int:
    """Read files into a folder that the other verbs work in."""
    parser = verb_parser(
        "read",
        "Read agent traces into DIR: traces.jsonl, rejects.jsonl, and how many rows became what.",
    )
    add_reading_options(parser)
    add_workers_option(parser)
    chosen = parser.parse_args(argv)
    show_read(read(reading_from_options(chosen), chosen.workers), chosen.out)
    return 0


def reading_from_options(chosen: argparse.Namespace) -> Reading:
    """Return the reading that `add_reading_options` describes. Raises as `Reading.of` does."""
    options = Options(
        form=chosen.form,
        unknown=chosen.unknown,
        max_document_chars=chosen.max_document_chars,
        max_row_mb=chosen.max_row_mb,
        decontaminate=chosen.decontaminate,
        subset=chosen.subset,
        revision=chosen.revision,
        where=tuple(chosen.where),
        answers=chosen.answers,
    )
    return Reading.of(
        chosen.files,
        chosen.out,
        options,
        validation_ratio=chosen.validation_ratio,
        seed=chosen.seed,
        max_rejected_share=chosen.max_rejected_share,
        overwrite=chosen.overwrite,
    )


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add what says what is read, and how."""
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
        "--form", choices=list(FORMS), help="the form of every row; default: found for each"
    )
    parser.add_argument(
        "--unknown",
        choices=("keep", "drop_row", "refuse"),
        default="keep",
        help="steps of unknown type: kept, untrained, and reported; the row rejected; or the "
        "reading stopped; default: %(default)s",
    )
    parser.add_argument(
        "--validation_ratio",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="of the questions, held out of all datasets; default: %(default)s",
    )
    parser.add_argument(
        "--seed", type=a_seed, default=42, metavar="N", help="of that split; default: %(default)s"
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
        "--decontaminate",
        metavar="FILE",
        help="an evaluation file: traces of its questions, or with 13 words in a row of question "
        "or answer, are rejected",
    )
    parser.add_argument(
        "--where",
        type=_where,
        action="append",
        default=[],
        metavar="FIELD>=VALUE",
        help="read only rows of which that holds, as 'reward>=1' or 'verdict==good'; repeatable",
    )
    parser.add_argument(
        "--answers",
        choices=ANSWERS,
        default="not_wrong",
        help="which are learned: all; all but those that the source calls wrong (IncorrectAnswer); "
        "or only traces whose answer is known to be correct; default: %(default)s",
    )
    parser.add_argument(
        "--max_rejected_share",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="stop when more rows than this are rejected; default: %(default)s",
    )
    parser.add_argument("--subset", metavar="NAME", help="of a Hub dataset: its configuration")
    parser.add_argument(
        "--revision", metavar="REV", help="of a Hub dataset: a branch, tag or commit"
    )
    add_overwrite(parser, "read anew, with other settings")


def _where(text: str) -> str:
    try:
        return condition(text).text
    except ConfigError as error:
        raise argparse.ArgumentTypeError(
            f"{error.problems[0].what} {error.problems[0].fix}"
        ) from error


def show_read(report: Mapping[str, Any], out: Path) -> None:
    """Print the report of `read` as a table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Read into {escape(str(out))}", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("meaning", overflow="fold")
    for what, number, meaning in _lines(report):
        table.add_row(escape(what), f"{number:,}", escape(meaning))
    console = Console()
    console.print(table)
    notes = [
        f"Part of the input is lost: {row}" for row in report["places"].get("file_damaged", [])
    ]
    if report["rejected"]:
        notes.append(f"Rejected rows, with places and reasons: {out / REJECTS}")
    notes += [
        f"{source['path']}: the Hub could not be reached; the copy in the cache was read."
        for source in report["sources"]
        if source.get("commit", "") is None
    ]
    if report.get("done_before"):
        notes.append("Read before, with the same settings, from the same files: nothing to do.")
    for note in notes:
        console.print(note, soft_wrap=True, markup=False)


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
        yield f"unknown: {kind}", number, f"steps of a type that is not read{near(kind, KNOWN)}"
    for note, number in report["noted"].items():
        yield note, number, NOTED.get(note.split(".")[0], "")

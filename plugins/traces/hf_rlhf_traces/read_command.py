"""`hf-rlhf traces read FILE... --out DIR`: raw files to typed traces, every row accounted for."""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.data import dataset_commit
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.decontamination import evaluation_set
from hf_rlhf_traces.engine import add_workers_option, in_order
from hf_rlhf_traces.gathering import EachFound, Settled, gather, written
from hf_rlhf_traces.options import add_overwrite, count, verb_parser
from hf_rlhf_traces.options import seed as a_seed
from hf_rlhf_traces.read_table import show_read
from hf_rlhf_traces.readers import FORMS
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.selection import ANSWERS, condition
from hf_rlhf_traces.sources import files_of
from hf_rlhf_traces.split import check_ratio
from hf_rlhf_traces.store import REJECTS, TRACES, Store
from hf_rlhf_traces.tally import Tally

EARLY = 1_000
"""Rows after which a file without a single trace is given up."""


def read_main(argv: Sequence[str]) -> int:
    """Read files into a folder that the other verbs work in."""
    parser = verb_parser(
        "read",
        "Read agent traces into DIR: traces.jsonl, rejects.jsonl, and how many rows became what.",
    )
    add_reading_options(parser)
    add_workers_option(parser)
    chosen = parser.parse_args(argv)
    show_read(read(**asked_reading(chosen), workers=chosen.workers), chosen.out)
    return 0


def asked_reading(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `read` that `add_reading_options` asks for."""
    return {
        "sources": chosen.files,
        "out": chosen.out,
        "options": Options(
            form=chosen.form,
            unknown=chosen.unknown,
            max_document_chars=chosen.max_document_chars,
            max_row_mb=chosen.max_row_mb,
            decontaminate=chosen.decontaminate,
            subset=chosen.subset,
            revision=chosen.revision,
            where=tuple(chosen.where),
            answers=chosen.answers,
        ),
        "validation_ratio": chosen.validation_ratio,
        "seed": chosen.seed,
        "max_rejected_share": chosen.max_rejected_share,
        "overwrite": chosen.overwrite,
    }


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


def read(
    sources: Sequence[str],
    out: Path,
    options: Options,
    *,
    validation_ratio: float = 0.1,
    seed: int = 42,
    max_rejected_share: float = 0.05,
    overwrite: bool = False,
    workers: int | None = None,
    each: EachFound | None = None,
    settled: Settled | None = None,
) -> Mapping[str, Any]:
    """Read files into the store at `out`, and return the report.

    What was read with the same settings from the same files is not read again. `workers` (None:
    one for each core) changes nothing of what is written; `each` has blocks read in another way
    than by workers of this process, and `settled` is told what became of each. Raises DataError
    when too many rows are rejected (rejects.refused.jsonl has them), RunFolderError when the folder
    holds something else, and ConfigError for a ratio that leaves a side empty.
    """
    files = files_of(sources, out, options)
    settings = _settings(files, options, validation_ratio, seed, max_rejected_share)
    found = _sources(files, options)
    store = Store.make(out)
    if _read_before(store, settings, found, overwrite):
        return {**store.report("read"), "done_before": True}
    with store.making("read", settings, replacing=True) as report:
        began = time.monotonic()
        if options.decontaminate:
            evaluation_set.cache_clear()
            evaluation_set(options.decontaminate)  # what is wrong with it is said at once
        tally = Tally(options, seed, out, files)
        each = each or partial(in_order, workers=workers)
        with written(out) as places:
            gather(files, tally, places, each, settled)
            tally.refuse_if_more(max_rejected_share)
        report.update(tally.report(validation_ratio))
        if options.decontaminate:
            report["decontaminated"] = evaluation_set(options.decontaminate).report()
        report["sources"] = found
        report["bytes"] = (out / TRACES).stat().st_size
        report["content"] = tally.content
        report["seconds"] = round(time.monotonic() - began, 3)
    return store.report("read")


def is_read(
    sources: Sequence[str],
    out: Path,
    options: Options,
    *,
    validation_ratio: float,
    seed: int,
    max_rejected_share: float,
    overwrite: bool,
) -> bool:
    """Whether `read` would find all done. Raises as it does, before anything is read."""
    files = files_of(sources, out, options)
    settings = _settings(files, options, validation_ratio, seed, max_rejected_share)
    found = _sources(files, options)
    return _read_before(Store.make(out), settings, found, overwrite)


def _settings(
    files: Sequence[str],
    options: Options,
    validation_ratio: float,
    seed: int,
    max_rejected_share: float,
) -> dict[str, Any]:
    check_ratio(validation_ratio)
    _check_share(max_rejected_share)
    return {
        "files": [_named(file) for file in files],
        **asdict(options),
        "decontaminate": options.decontaminate and _named(options.decontaminate),
        "validation_ratio": validation_ratio,
        "seed": seed,
        "max_rejected_share": max_rejected_share,
    }


def _read_before(
    store: Store, settings: Mapping[str, Any], found: Sequence[Mapping[str, Any]], overwrite: bool
) -> bool:
    state = store.check("read", settings, overwrite=overwrite)
    return state == "done" and _is_there(store.report("read"), store.folder, found)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        fix = "Give a share between 0 and 1, such as 0.05."
        raise ConfigError([Problem("--max_rejected_share", f"is {share:g}.", fix)])


def _is_there(report: Mapping[str, Any], out: Path, found: Sequence[Mapping[str, Any]]) -> bool:
    """Whether what a report tells of was made of these files, and still lies there."""
    traces = out / TRACES
    there = traces.is_file() and traces.stat().st_size == report["bytes"]
    same = len(found) == len(report["sources"]) and all(
        # Where the Hub cannot be asked, what was read of it stands.
        was.get(key) == value
        for was, now in zip(report["sources"], found, strict=True)
        for key, value in now.items()
        if key != "commit" or value
    )
    return there and (out / REJECTS).is_file() and same


def _named(file: str) -> str:
    return os.path.abspath(file) if os.path.exists(file) else file


def _sources(files: Sequence[str], options: Options) -> list[dict[str, Any]]:
    beside = [options.decontaminate] if options.decontaminate else []
    return [_seen(file, options.revision) for file in (*files, *beside)]


def _seen(file: str, revision: str | None) -> dict[str, Any]:
    """What tells that a file is still the one that was read."""
    if not os.path.exists(file):
        return {"path": file, "commit": dataset_commit(file, revision)}
    stat = os.stat(file)
    return {"path": os.path.abspath(file), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}

"""`hf-rlhf traces run`: every verb one after the other, from raw files to a published model.

What a verb does is not repeated here: each is called as its own command would be, so the same
command goes on where it stopped, and each step can be made anew by its own verb.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_rlhf.data import near
from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, Problem
from hf_rlhf.storage import atomic_write_text, load_record
from hf_rlhf_traces.options import Parser, add_model_repo, add_overwrite, real, seed, verb_parser
from hf_rlhf_traces.reconciliation import (
    Line,
    as_markdown,
    check,
    of_evaluation,
    of_training,
    reconciliation,
)
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import no_bars_of_datasets
from hf_rlhf_traces.train_command import check_overrides, train_parser

STEPS = (
    *("read", "multiturn", "steps", "summarize", "split_summary"),
    *("train", "eval", "analyze", "publish"),
)
"""In this order; `publish` only where a repository is named."""
TABLE = "reconciliation.md"
BASE = "base"
"""The label of the model that training began with."""
_ratio = real("a share above 0 and below 1", lambda number: 0 < number < 1)


@dataclass(frozen=True)
class Made:
    """A step that has ended."""

    step: str
    seconds: float


def main(argv: Sequence[str]) -> int:
    """Do every step, and say what came of them."""
    chosen, others = _parser().parse_known_args(argv)
    options = step_options(others)
    _check_options(options, chosen.out)
    no_bars_of_datasets()
    made: list[Made] = []
    steps = STEPS if chosen.repo_id else STEPS[:-1]
    for number, step in enumerate(steps, start=1):
        started = time.perf_counter()
        try:
            command = [*_arguments(step, chosen, options), *options.get(step, [])]
            _head(f"{number}/{len(steps)}", step, command)
            code = _verb(step, command)
        except HfRlhfError:
            _stopped(step, argv)
            raise
        if code:
            _stopped(step, argv)
            return code
        made.append(Made(step, time.perf_counter() - started))
    _end(chosen, made, _run_folder(chosen.out, options))
    return 0


def step_options(others: Sequence[str]) -> dict[str, list[str]]:
    """Return step -> its options, of `--STEP.OPTION VALUE ...`; a value may begin with no `--`.

    Raises ConfigError, with every word that is none.
    """
    found: dict[str, list[str]] = {}
    problems, step, known = [], "", True
    for word in others:
        if word.startswith("--"):
            step, dot, option = word.removeprefix("--").partition(".")
            known = bool(dot) and step in STEPS
            if known:
                found.setdefault(step, []).append(f"--{option}")
                continue
        elif step:
            if known:
                found[step].append(word)
            continue
        what = f"is no option of `hf-rlhf traces run`{_meant(word)}."
        fix = f"Options of a step are written --STEP.OPTION; steps are {', '.join(STEPS)}."
        problems.append(Problem(word, what, fix))
    if problems:
        raise ConfigError(problems)
    return found


def _meant(word: str) -> str:
    """Return what may have been meant by a word that is no option of a step, or nothing."""
    step, dot, option = word.removeprefix("--").partition("=")[0].partition(".")
    if dot:
        return near(step, STEPS).replace("'?", f".{option}'?").replace("mean '", "mean '--")
    names = {
        f"--{one}.{name.removeprefix('--')}"
        for one, parser in _late_parsers().items()
        for name in parser.options()
    }
    same = sorted(one for one in names if one.endswith(f".{step}"))
    return f" (did you mean {' or '.join(map(repr, same))}?)" if same else ""


def _late_parsers() -> Mapping[str, Parser]:
    from hf_rlhf_traces.evaluation.analyze_command import analyze_parser
    from hf_rlhf_traces.evaluation.command import eval_parser
    from hf_rlhf_traces.summaries.command import split_parser, summarize_parser

    return {
        "summarize": summarize_parser(),
        "split_summary": split_parser(),
        "train": train_parser(),
        "eval": eval_parser(),
        "analyze": analyze_parser(),
    }


def _check_options(options: Mapping[str, Sequence[str]], out: Path) -> None:
    """Read the options of steps that come late, so that none of them stops a run of hours.

    Raises ConfigError, or ends as argparse does.
    """
    from hf_rlhf_traces.summaries.command import asked_summaries

    asked_summaries(["DIR", *options.get("summarize", [])])
    for step, parser in _late_parsers().items():
        words = [str(out), *options.get(step, [])]
        if step != "train":
            parser.parse_args(words)
        elif len(words) > 1:
            check_overrides(*parser.parse_known_args(words))


def _arguments(
    step: str, chosen: argparse.Namespace, options: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the words of a step that follow from those of the run."""
    folder = str(chosen.out)
    anew = ["--overwrite"] if chosen.overwrite else []
    match step:
        case "read":
            files = [str(file) for file in chosen.files]
            split = ["--validation_ratio", str(chosen.validation_ratio), "--seed", str(chosen.seed)]
            return [*files, "--out", folder, *split, *anew]
        case "multiturn":
            return [folder, "--seed", str(chosen.seed), *anew]
        case "train":
            _refuse_unmeasurable(chosen.out, options.get("eval", []))
            unmeasured = _unmeasured(chosen.out, options.get("train", []))
            return [folder, "--seed", str(chosen.seed), *unmeasured, *anew]
        case "eval":
            return [folder, "--record", *_measured(chosen.out, options.get("eval", []), options)]
        case "analyze":
            return [folder]
        case "publish":
            return _published(_run_folder(chosen.out, options), chosen.repo_id)
        case _:
            return [folder, *anew]


def _run_folder(folder: Path, options: Mapping[str, Sequence[str]]) -> Path:
    """Return the folder of the run: there may be newer ones, of other strategies."""
    chosen, _ = train_parser().parse_known_args([str(folder), *options.get("train", [])])
    return folder / "runs" / str(chosen.strategy)


def _measured(
    folder: Path, asked: Sequence[str], options: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return which models are measured by default: the base, and what became of it."""
    if "--model" in _names(asked):
        return []
    run = _run_folder(folder, options)
    models = (f"{BASE}={_base(run)}", f"{run.name}={run}")
    return [word for one in models for word in ("--model", one)]


def _base(run: Path) -> str:
    """Return the model that a run began with."""
    config = load_record(run)["config"]
    revision = config.get("model_revision")
    named = str(config["model_name_or_path"])
    return f"{named}@{revision}" if revision and not Path(named).exists() else named


def _names(options: Sequence[str]) -> set[str]:
    """Return the names of options, given as `--NAME VALUE` or `--NAME=VALUE`."""
    return {word.partition("=")[0] for word in options}


def _refuse_unmeasurable(folder: Path, options: Sequence[str]) -> None:
    """Raise DataError, before anything is trained, where no sample is there to be measured."""
    store = Store.open(folder)
    if store.report("split_summary")["samples"]["validation"] or "--split" in _names(options):
        return
    sides = store.report("read")["questions"]
    raise DataError(
        f"{folder}: no sample is held out (questions: {sides['train']:,} for training, "
        f"{sides['validation']:,} for validation), so the model could not be measured. Give traces "
        "of more questions, or a larger --validation_ratio; or measure what is memorised: "
        "--eval.split train --eval.allow_training_questions."
    )


def _unmeasured(folder: Path, options: Sequence[str]) -> list[str]:
    """Leave out the held-out measures of training where a phase has no sample for them."""
    from hf_rlhf_traces.fitting import without_held_out

    if any(word.startswith("--evaluation") for word in options):
        return []
    if not (lacking := without_held_out(Store.open(folder), options)):
        return []
    print(
        f"\nNo validation sample of {', '.join(lacking)} is short enough, so nothing is measured "
        "during training (--evaluation null). Longer ones: --train.max_length N."
    )
    return ["--evaluation", "null"]


def _published(run: Path, repo_id: str) -> list[str]:
    """Return how a run is published; a base that is not on the Hub goes there, too."""
    base = str(load_record(run)["config"]["model_name_or_path"])
    local = base.startswith("package://") or Path(base).exists()
    pushed = ["--base_model", f"{repo_id}-base", "--push_base"] if local else []
    return [str(run), "--repo_id", repo_id, *pushed]


def _verb(step: str, command: Sequence[str]) -> int:
    from hf_rlhf_traces.command import VERBS

    if step == "publish":
        from hf_rlhf.cli import publish_main

        return publish_main(command)
    module, name, _ = VERBS[step]
    return int(getattr(import_module(f"hf_rlhf_traces.{module}"), name)(command))


def _head(place: str, step: str, command: Sequence[str]) -> None:
    verb = step if step == "publish" else f"traces {step}"
    print(f"\n[{place}] hf-rlhf {verb} {shlex.join(command)}", flush=True)


def _stopped(step: str, argv: Sequence[str]) -> None:
    print(
        f"\nStopped in {step}. What is made stays; mend what is said below, and the same command "
        f"goes on there: hf-rlhf traces run {shlex.join(argv)}",
        file=sys.stderr,
        flush=True,
    )


def _end(chosen: argparse.Namespace, made: Sequence[Made], run: Path) -> None:
    """Show how long each step took, what became of what it was given, and what was learned."""
    from hf_rlhf_traces.evaluation.tables import verdict_lines
    from hf_rlhf_traces.terminal import console

    store = Store.open(chosen.out)
    lines = [*reconciliation(store), *of_training(run), *of_evaluation(store)]
    atomic_write_text(store.folder / TABLE, as_markdown(lines))
    shown = console()
    print()
    shown.print(_times(made))
    shown.print(_accounts(lines))
    check(lines)
    print(f"accounts: {store.folder / TABLE}")
    for plot in sorted((store.folder / "analysis").glob("*.png")):
        print(f"plot: {plot}")
    print(f"model: {run} (card: README.md, weights: merged)")
    if chosen.repo_id:
        print(f"published: {load_record(run)['publish']['url']}")
    else:
        print(f"publish it: hf-rlhf publish {shlex.join(_published(run, 'YOU/NAME'))}")
    results = json.loads((store.folder / "eval" / "results.json").read_text(encoding="utf-8"))
    for line in verdict_lines(results, run.name, BASE):
        print(line)


def _times(made: Sequence[Made]) -> Any:
    from rich.table import Table

    from hf_rlhf.training import clock

    table = Table(title="Steps", title_justify="left")
    table.add_column("step")
    table.add_column("time", justify="right")
    for one in made:
        table.add_row(one.step, clock(one.seconds))
    return table


def _accounts(lines: Sequence[Line]) -> Any:
    from rich.table import Table

    table = Table(title="What became of everything", title_justify="left")
    for name in ("step", "in", "kept", "left out"):
        table.add_column(name, justify="right" if name in ("in", "kept") else "left")
    for line in lines:
        table.add_row(line.step, f"{line.given:,} {line.what}", f"{line.kept:,}", line.told)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = verb_parser(
        "run",
        "Do every step with the embedded defaults: read, build the datasets, train in phases, "
        "evaluate, analyse, and publish if --repo_id is given. Options of a step: --STEP.OPTION "
        "VALUE, as `hf-rlhf traces STEP --help` says them.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="raw traces")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="to work in")
    add_model_repo(parser)
    parser.add_argument("--seed", type=seed, default=42, help="of the split and training (42)")
    parser.add_argument("--validation_ratio", type=_ratio, default=0.1, help="of questions (0.1)")
    add_overwrite(parser, "make anew what differs")
    return parser

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
from importlib import import_module
from pathlib import Path

from hf_rlhf.data import near
from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, Problem
from hf_rlhf.storage import load_record
from hf_rlhf_traces.options import Parser, add_model_repo, add_overwrite, real, seed, verb_parser
from hf_rlhf_traces.reconciliation import accounts
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import no_bars_of_datasets
from hf_rlhf_traces.train_command import check_overrides, train_parser

STEPS = (
    *("read", "multiturn", "steps", "summarize", "split_summary"),
    *("train", "eval", "analyze", "publish"),
)
"""In this order; `publish` only where a repository is named."""
BASE = "base"
"""The label of the model that training began with."""
_ratio = real("a share above 0 and below 1", lambda number: 0 < number < 1)


def main(argv: Sequence[str]) -> int:
    """Do every step, and print what came of them."""
    chosen, others = _parser().parse_known_args(argv)
    options = step_options(others)
    _check_options(options, chosen.out)
    no_bars_of_datasets()
    seconds: dict[str, float] = {}
    steps = STEPS if chosen.repo_id else STEPS[:-1]
    for number, step in enumerate(steps, start=1):
        started = time.perf_counter()
        try:
            words = [*_arguments(step, chosen, options), *options.get(step, [])]
            verb = step if step == "publish" else f"traces {step}"
            print(f"\n[{number}/{len(steps)}] hf-rlhf {verb} {shlex.join(words)}", flush=True)
            code = _run_verb(step, words)
        except HfRlhfError:
            _report_stop(step, argv)
            raise
        if code:
            _report_stop(step, argv)
            return code
        seconds[step] = time.perf_counter() - started
    _show_results(chosen, seconds, _run_folder(chosen.out, options))
    return 0


def step_options(others: Sequence[str]) -> dict[str, list[str]]:
    """Return step -> its options, of `--STEP.OPTION VALUE ...`; a value may begin with no `--`.

    Raises ConfigError, with every word that is none.
    """
    parsed: dict[str, list[str]] = {}
    problems, step, known = [], "", True
    for word in others:
        if word.startswith("--"):
            step, dot, option = word.removeprefix("--").partition(".")
            known = bool(dot) and step in STEPS
            if known:
                parsed.setdefault(step, []).append(f"--{option}")
                continue
        elif step:
            if known:
                parsed[step].append(word)
            continue
        what = f"is no option of `hf-rlhf traces run`{_suggestion(word)}."
        fix = f"Options of a step are written --STEP.OPTION; steps are {', '.join(STEPS)}."
        problems.append(Problem(word, what, fix))
    if problems:
        raise ConfigError(problems)
    return parsed


def _suggestion(word: str) -> str:
    """Return which option of a step may have been meant, or ""."""
    name = word.removeprefix("--").partition("=")[0]
    known = [
        f"{step}.{option.removeprefix('--')}"
        for step, parser in _late_parsers().items()
        for option in parser.options()
    ]
    if "." in name:
        step, _, option = name.partition(".")
        return near(step, STEPS).replace("'?", f".{option}'?").replace("mean '", "mean '--")
    same = sorted(f"--{option_name}" for option_name in known if option_name.endswith(f".{name}"))
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
    from hf_rlhf_traces.summaries.command import summarize_options

    summarize_options(["DIR", *options.get("summarize", [])])
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
            unmeasured = _without_held_out(chosen.out, options.get("eval", []))
            return [folder, "--seed", str(chosen.seed), *unmeasured, *anew]
        case "eval":
            return [folder, "--record", *_eval_words(chosen.out, options)]
        case "analyze":
            return [folder]
        case "publish":
            return _publish_words(_run_folder(chosen.out, options), chosen.repo_id)
        case _:
            return [folder, *anew]


def _run_folder(folder: Path, options: Mapping[str, Sequence[str]]) -> Path:
    """Return the folder of the run: there may be newer ones, of other strategies."""
    chosen, _ = train_parser().parse_known_args([str(folder), *options.get("train", [])])
    return folder / "runs" / str(chosen.strategy)


def _eval_words(folder: Path, options: Mapping[str, Sequence[str]]) -> list[str]:
    """Return which models are measured by default: the base, and what became of it."""
    if _has_option(options.get("eval", []), "--model"):
        return []
    run = _run_folder(folder, options)
    models = (f"{BASE}={_base(run)}", f"{run.name}={run}")
    return [word for model in models for word in ("--model", model)]


def _base(run: Path) -> str:
    """Return the model that a run began with."""
    config = load_record(run).config
    revision = config.get("model_revision")
    model = str(config["model_name_or_path"])
    return f"{model}@{revision}" if revision and not Path(model).exists() else model


def _has_option(words: Sequence[str], name: str) -> bool:
    return any(word.partition("=")[0] == name for word in words)


def _without_held_out(folder: Path, eval_words: Sequence[str]) -> list[str]:
    """Return what trains without measuring where no sample is held out.

    Raises DataError, before anything is trained, unless the evaluation is of another split.
    """
    store = Store.open(folder)
    if store.report("split_summary")["samples"]["validation"]:
        return []
    if _has_option(eval_words, "--split"):
        return ["--evaluation", "null"]
    sides = store.report("read")["questions"]
    raise DataError(
        f"{folder}: no sample is held out (questions: {sides['train']:,} for training, "
        f"{sides['validation']:,} for validation), so the model could not be measured. Give traces "
        "of more questions, or a larger --validation_ratio; or measure what is memorised: "
        "--eval.split train --eval.allow_training_questions."
    )


def _publish_words(run: Path, repo_id: str) -> list[str]:
    """Return how a run is published; a base model that is not on the Hub is pushed, too."""
    base = str(load_record(run).config["model_name_or_path"])
    local = base.startswith("package://") or Path(base).exists()
    pushed = ["--base_model", f"{repo_id}-base", "--push_base"] if local else []
    return [str(run), "--repo_id", repo_id, *pushed]


def _run_verb(step: str, words: Sequence[str]) -> int:
    from hf_rlhf_traces.command import VERBS

    if step == "publish":
        from hf_rlhf.cli import publish_main

        return publish_main(words)
    module, name, _ = VERBS[step]
    return int(getattr(import_module(f"hf_rlhf_traces.{module}"), name)(words))


def _report_stop(step: str, argv: Sequence[str]) -> None:
    print(
        f"\nStopped in {step}. Finished steps are kept: after the problem below is solved, the "
        f"same command continues with this one: hf-rlhf traces run {shlex.join(argv)}",
        file=sys.stderr,
        flush=True,
    )


def _show_results(chosen: argparse.Namespace, seconds: Mapping[str, float], run: Path) -> None:
    """Print how long each step took, what became of its input, and the verdict."""
    from rich.table import Table

    from hf_rlhf.training import clock
    from hf_rlhf_traces.evaluation.tables import verdict_lines
    from hf_rlhf_traces.terminal import console

    store = Store.open(chosen.out)
    counts = {account.step: account for account in accounts(store)}
    table = Table(title="Steps", title_justify="left")
    for name in ("step", "time", "in", "kept", "left out"):
        table.add_column(name, justify="left" if name in ("step", "left out") else "right")
    for step, time_s in seconds.items():
        account = counts.get(step)
        cells = (
            (f"{account.taken:,} {account.unit}", f"{account.kept:,}", account.reasons)
            if account
            else ()
        )
        table.add_row(step, clock(time_s), *cells)
    print()
    console().print(table)
    for plot in sorted((store.folder / "analysis").glob("*.png")):
        print(f"plot: {plot}")
    print(f"model: {run} (card: README.md, weights: merged)")
    if chosen.repo_id:
        print(f"published: {load_record(run).published()['url']}")
    else:
        words = shlex.join(_publish_words(run, "YOU/NAME"))
        print(f"publish it: hf-rlhf publish {words}")
    results = json.loads((store.folder / "eval" / "results.json").read_text(encoding="utf-8"))
    for line in verdict_lines(results, run.name, BASE):
        print(line)


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

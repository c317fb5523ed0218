"""Run every verb in turn, from raw files to a published model: `hf-rlhf traces run`.

Each verb runs as in its own command, and the folder's ledger records whether it is done. The same
command therefore continues after a stop, and a verb can also be repeated alone.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from hf_rlhf.errors import ConfigError, DataError, HfRlhfError, Problem
from hf_rlhf.storage import load_record
from hf_rlhf_traces.build_command import BUILT
from hf_rlhf_traces.options import Parser, add_overwrite, ratio, seed, verb_parser
from hf_rlhf_traces.reconciliation import accounts
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import no_bars_of_datasets
from hf_rlhf_traces.train_command import check_overrides, train_parser

STEPS = (
    *("build", "summarize", "split_summary"),
    *("train", "eval", "analyze", "publish"),
)
"""In this order; `publish` only if a repository is given."""
BASE = "base"
"""The label of the initial model."""
Options = Mapping[str, Sequence[str]]
"""Step -> words of its command line."""


def main(argv: Sequence[str]) -> int:
    """Run every step and print the results."""
    chosen, others = _parser().parse_known_args(argv)
    options = step_options(others)
    no_bars_of_datasets()
    _check_options(options, chosen.out)
    seconds: dict[str, float] = {}
    steps = STEPS if chosen.repo_id else STEPS[:-1]
    for number, step in enumerate(steps, start=1):
        started = time.perf_counter()
        try:
            words = [*_arguments(step, chosen, options), *options.get(step, [])]
            verb = step if step == "publish" else f"traces {step}"
            print(f"\n[{number}/{len(steps)}] hf-rlhf {verb} {shlex.join(words)}", flush=True)
            if code := _run_verb(step, words):
                _report_stop(step, argv)
                return code
            if step in ("build", "split_summary"):
                _check_held_out(chosen.out, step)
        except HfRlhfError:
            _report_stop(step, argv)
            raise
        seconds[step] = time.perf_counter() - started
    _show_results(chosen, seconds, _run_folder(chosen.out, options))
    return 0


def step_options(words: Sequence[str]) -> dict[str, list[str]]:
    """Return step -> its options, from `--STEP.OPTION VALUE ...`; no value begins with `--`.

    Raises ConfigError with every word that belongs to no step.
    """
    parsed: dict[str, list[str]] = {}
    wrong: list[str] = []
    values: list[str] | None = wrong
    """Where values go to; None after a wrong option."""
    for word in words:
        step, dot, option = word.removeprefix("--").partition(".")
        if not word.startswith("--"):
            if values is not None:
                values.append(word)
        elif dot and step in STEPS:
            values = parsed.setdefault(step, [])
            values.append(f"--{option}")
        else:
            wrong.append(word)
            values = None
    if wrong:
        fix = f"Options of a step are written --STEP.OPTION; steps are {', '.join(STEPS)}."
        problem = "is not an option of `hf-rlhf traces run`."
        raise ConfigError([Problem(word, problem, fix) for word in wrong])
    return parsed


def _parsers() -> Mapping[str, Parser]:
    from hf_rlhf_traces.build_command import build_parser
    from hf_rlhf_traces.evaluation.analysis import analyze_parser
    from hf_rlhf_traces.evaluation.command import eval_parser
    from hf_rlhf_traces.summaries.command import split_parser, summarize_parser

    return {
        "build": build_parser(),
        "summarize": summarize_parser(),
        "split_summary": split_parser(),
        "train": train_parser(),
        "eval": eval_parser(),
        "analyze": analyze_parser(),
    }


def _check_options(options: Options, out: Path) -> None:
    """Check the options of late steps, so that they cannot stop a run after hours.

    Raises ConfigError or JudgeError, or exits as argparse does.
    """
    from hf_rlhf_traces.format import Format
    from hf_rlhf_traces.summaries.command import make_summarizer

    for step, parser in _parsers().items():
        model = ["--model", "which it will have"] if step == "eval" else []
        words = [str(out), *model, *options.get(step, [])]
        if step == "build":
            continue  # it is the first
        if step == "train":
            if len(words) > 1:
                check_overrides(*parser.parse_known_args(words))
            continue
        chosen = parser.parse_args(words)
        if step == "summarize":
            make_summarizer(chosen, Format())


def _arguments(step: str, chosen: argparse.Namespace, options: Options) -> list[str]:
    """Return the words of a step that follow from the run's own."""
    folder, seed_words = str(chosen.out), ["--seed", str(chosen.seed)]
    anew = ["--overwrite"] if chosen.overwrite else []
    match step:
        case "build":
            files, ratio = map(str, chosen.files), str(chosen.validation_ratio)
            return [*files, "--out", folder, "--validation_ratio", ratio, *seed_words, *anew]
        case "train":
            return [folder, *seed_words, *anew]
        case "eval":
            return [folder, "--record", *_eval_words(chosen.out, options)]
        case "analyze":
            return [folder]
        case "publish":
            return _publish_words(_run_folder(chosen.out, options), chosen.repo_id)
        case _:
            return [folder, *anew]


def _run_folder(folder: Path, options: Options) -> Path:
    """Return the run folder of the selected strategy."""
    chosen, _ = train_parser().parse_known_args([str(folder), *options.get("train", [])])
    return folder / "runs" / str(chosen.strategy)


def _eval_words(folder: Path, options: Options) -> list[str]:
    """Return the default models of the evaluation: the base and the trained model."""
    if any(word.partition("=")[0] == "--model" for word in options.get("eval", [])):
        return []
    run = _run_folder(folder, options)
    models = (f"{BASE}={_base(run)}", f"{run.name}={run}")
    return [word for model in models for word in ("--model", model)]


def _base(run: Path) -> str:
    """Return a run's initial model, with its revision on the Hub."""
    config = load_record(run).config
    model, revision = str(config["model_name_or_path"]), config.get("model_revision")
    return f"{model}@{revision}" if revision and not Path(model).exists() else model


def _check_held_out(folder: Path, step: str) -> None:
    """Raise DataError if no sample is held out.

    It runs after `build`, before summaries cost money, and after the summaries, which may leave out
    the held-out samples.
    """
    store = Store.open(folder)
    dataset = "steps" if step == "build" else step
    if store.report(dataset)["samples"]["validation"]:
        return
    sides = store.report("build")["questions"]
    raise DataError(
        f"{folder}: no sample is held out (questions: {sides['train']:,} for training, "
        f"{sides['validation']:,} for validation), so the model could not be measured. Give traces "
        "of more questions, or a larger --validation_ratio, with --overwrite."
    )


def _publish_words(run: Path, repo_id: str) -> list[str]:
    """Return the words that publish a run, and its base model if that is not on the Hub."""
    base = str(load_record(run).config["model_name_or_path"])
    is_local = base.startswith("package://") or Path(base).exists()
    pushed = ["--base_model", f"{repo_id}-base", "--push_base"] if is_local else []
    return [str(run), "--repo_id", repo_id, *pushed]


def _run_verb(step: str, words: Sequence[str]) -> int:
    from hf_rlhf_traces.command import VERBS

    if step == "publish":
        from hf_rlhf.cli import main

        return main(["publish", *words])
    module, name, _ = VERBS[step]
    return int(getattr(import_module(f"hf_rlhf_traces.{module}"), name)(words))


def _report_stop(step: str, argv: Sequence[str]) -> None:
    text = (
        f"\nStopped in {step}. Finished steps are kept: after the problem below is solved, the "
        f"same command continues with this one: hf-rlhf traces run {shlex.join(argv)}"
    )
    print(text, file=sys.stderr, flush=True)


def _show_results(chosen: argparse.Namespace, seconds: Mapping[str, float], run: Path) -> None:
    """Print the time and counts of each step, the location of the results, and the verdict."""
    from rich.console import Console

    from hf_rlhf.formatting import duration, terminal_table

    store = Store.open(chosen.out)
    cells = {account.step: account.cells() for account in accounts(store)}
    rows = []
    for step, time_s in seconds.items():
        rows.append([step, duration(time_s), *cells.get(step, ())])
        if step == "build":
            rows += [[dataset, "", *cells[dataset]] for dataset in BUILT if dataset in cells]
    print()
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(terminal_table(("step", "time", "in", "kept", "left out"), rows, "Steps"))
    print(f"plot: {store.folder / 'eval' / 'results.png'}")
    print(f"model: {run} (card: README.md, weights: merged)")
    if chosen.repo_id:
        print(f"published: {load_record(run).published()['url']}")
    else:
        words = shlex.join(_publish_words(run, "YOU/NAME"))
        print(f"publish it: hf-rlhf publish {words}")
    results = json.loads((store.folder / "eval" / "results.json").read_text(encoding="utf-8"))
    for line in results["verdicts"] if results["baseline"] == BASE else ():
        print(line)


def _parser() -> Parser:
    parser = verb_parser(
        "run",
        "Do every step with the embedded defaults: build the datasets, train in phases, "
        "evaluate, analyse, and publish if --repo_id is given. Options of a step: --STEP.OPTION "
        "VALUE, see `hf-rlhf traces STEP --help`.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="raw traces")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to work in")
    parser.add_argument("--repo_id", metavar="YOU/NAME", help="where the model is pushed to")
    parser.add_argument("--seed", type=seed, default=42, help="of the split and training (42)")
    parser.add_argument("--validation_ratio", type=ratio, default=0.1, help="of questions (0.1)")
    add_overwrite(parser, "replace what differs")
    return parser

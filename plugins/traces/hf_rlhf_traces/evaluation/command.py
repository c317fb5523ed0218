"""`hf-rlhf traces eval`."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, ModelError, Problem
from hf_rlhf_traces.evaluation.metrics import TASKS
from hf_rlhf_traces.options import Parser, count, not_negative, seed, verb_parser
from hf_rlhf_traces.store import Store

QUICK = 20
_WEIGHTS = Path("merged", "config.json")
_LABELLED = re.compile(r"([\w.+-]+)=(.+)", re.DOTALL)


def main(argv: Sequence[str]) -> int:
    """Measure models on held-out samples of a store."""
    chosen = eval_parser().parse_args(argv)
    store = Store.open(chosen.folder)
    labelled = models_of(chosen.model) or newest_run(store)

    from hf_rlhf.training import ignore_old_names
    from hf_rlhf_traces.evaluation.candidates import Sampling
    from hf_rlhf_traces.evaluation.evaluate import TABLE, Options, evaluate
    from hf_rlhf_traces.evaluation.results import FOLDER, RESULTS

    ignore_old_names()
    quiet_libraries()
    options = Options(
        tasks=tuple(task for task in TASKS if task in (chosen.task or TASKS)),
        split=chosen.split,
        num_samples=min(QUICK, chosen.num_samples) if chosen.quick else chosen.num_samples,
        seed=chosen.seed,
        allow_training_questions=chosen.allow_training_questions,
        sampling=Sampling(
            chosen.max_new_tokens, chosen.temperature, chosen.seed, chosen.batch_size
        ),
        use_cpu=chosen.use_cpu,
        record=chosen.record,
    )
    results = evaluate(store, labelled, options, ["hf-rlhf", "traces", "eval", *argv])
    if chosen.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
        return 0
    show(results)
    folder = store.folder / FOLDER
    print(f"written: {folder / RESULTS}, {folder / TABLE}")
    runs = [model["run_folder"] for model in results["models"].values() if model["run_folder"]]
    for run in runs if chosen.record else ():
        print(f"recorded: {run}/run.json and its card")
    print(f"next: hf-rlhf traces analyze {store.folder}")
    return 0


def show(results: Mapping[str, Any]) -> None:
    """Print the tables, the notes and the verdicts of an evaluation."""
    from hf_rlhf_traces.evaluation.tables import all_verdicts, terminal
    from hf_rlhf_traces.terminal import console

    output = console()
    for table in terminal(results, output.width):
        output.print(table)
    for note in (results["method"], *results["notes"]):
        print(f"- {note}")
    for line in all_verdicts(results):
        print(line)


def quiet_libraries() -> None:
    """Turn off the progress bars of libraries where the output is not a terminal."""
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def models_of(options: Sequence[str]) -> dict[str, str]:
    """Return label -> model of `--model [LABEL=]WHERE`, in order.

    Without a label it is the last part of the name that distinguishes it. Raises ConfigError where
    two have the same.
    """
    models: dict[str, str] = {}
    for option in options:
        match = _LABELLED.fullmatch(option)
        label, source = (match[1], match[2]) if match else (_label(option), option)
        if label in models:
            what = f"two models would be labelled {label!r}: {models[label]} and {source}."
            raise ConfigError([Problem("--model", what, f"Write --model OTHER={source}.")])
        models[label] = source
    return models


def _label(source: str) -> str:
    parts = [
        part for part in source.rstrip("/").split("/") if part not in ("", ".", "..", "merged")
    ]
    nested = parts and parts[-1].startswith(("checkpoint-", "adapter"))
    return "-".join(parts[-2:] if nested else parts[-1:]) or source


def newest_run(store: Store) -> dict[str, str]:
    """Return the run of the store that was trained last. Raises ModelError where there is none."""
    # Of a run in phases, the folder that holds them: it has the last one's model.
    runs = [
        path.parent
        for path in (store.folder / "runs").glob("*/run.json")
        if (path.parent / _WEIGHTS).exists()
    ]
    if not runs:
        raise ModelError(
            f"{store.folder / 'runs'} has no run that is trained to its end. Train one (hf-rlhf "
            f"traces train {store.folder}), or name a model: --model WHERE."
        )
    newest = max(runs, key=lambda run: (run / _WEIGHTS).stat().st_mtime)
    return {newest.name: str(newest)}


def eval_parser() -> Parser:
    """Return the options of the verb."""
    parser = verb_parser(
        "eval",
        "Measure models on held-out questions in the two tasks: to summarise a full context and go "
        "on (prefix), and to go on from a given summary (only). What each number is: "
        "docs/how-to/traces-eval.md. The same command resumes where it stopped.",
        folder="the folder that the verbs work in",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        default=[],
        metavar="[LABEL=]WHERE",
        help="a run folder, merged weights, an adapter, a checkpoint, or a Hub id (ID@REVISION); "
        "repeatable, the others are compared with the first; default: the newest run in DIR/runs",
    )
    add("--task", choices=list(TASKS), action="append", help="repeatable; default: both")
    add("--num_samples", type=count, default=50, help="of each task; default: %(default)s")
    add("--quick", action="store_true", help=f"{QUICK} samples, which are among the others")
    add("--max_new_tokens", type=count, default=1024, help="default: %(default)s")
    add("--temperature", type=not_negative, default=0.0, help="default: 0, greedy")
    add("--batch_size", type=count, default=8, help="default: %(default)s")
    add("--seed", type=seed, default=42, help="of which samples are chosen; default: %(default)s")
    add(
        "--split", choices=["validation", "train"], default="validation", help="default: validation"
    )
    add(
        "--allow_training_questions",
        action="store_true",
        help="measure on questions that were trained on too (with --split train: only on them)",
    )
    add("--record", action="store_true", help="put the table on the card of each run, too")
    add("--use_cpu", action="store_true", help="also where there is a GPU")
    add("--json", action="store_true", help="print the results as JSON instead of tables")
    return parser

"""Train on the datasets of a store with any of three strategies: `hf-rlhf traces train`."""

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.config import RunFile, choose_run_file
from hf_rlhf.errors import ConfigError, ModelError, Problem, RunFolderError
from hf_rlhf.storage import RECORD_NAME
from hf_rlhf_traces.options import Parser, add_overwrite, verb_parser
from hf_rlhf_traces.rows import BUILT_BY
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import no_bars_of_datasets

STRATEGIES: Mapping[str, Sequence[str]] = {
    "progressive": ("multiturn", "summary_only", "summary_prefix"),
    "prefix": ("summary_prefix",),
    "only": ("summary_only",),
}
"""Strategy -> its default datasets."""


def train_main(argv: Sequence[str]) -> int:
    """Write the run file of a strategy into the store and train with it; or print the plan."""
    chosen, overrides = train_parser().parse_known_args(argv)
    _check_options(overrides)
    no_bars_of_datasets()
    store = Store.open(chosen.folder)
    for dataset in STRATEGIES[chosen.strategy]:
        store.report(BUILT_BY[dataset])
    _check_model(chosen.model)
    values = run_values(store, chosen, overrides)
    if chosen.dry_run:
        if chosen.overwrite:
            values["output_dir"] += "-anew"  # the plan of an empty folder
        with TemporaryDirectory() as folder:
            return _launch(chosen, Path(folder), values, [*overrides, "--dry_run"])
    out = store.folder / "runs" / chosen.strategy
    file = RunFile.from_mapping(values).override(overrides)
    expected = file.values.get("expect_world_size")
    size = expected if isinstance(expected, int) and expected > 0 else 1
    _prepare_folder(out, file, size if chosen.launch else None, overwrite=chosen.overwrite)
    status = _launch(chosen, out.parent, values, overrides)
    if status == 0:
        print(f"{chosen.strategy}: {out / 'merged'}", flush=True)
    return status


def run_values(
    store: Store, chosen: argparse.Namespace, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the strategy's run file on the store's datasets.

    Of `overrides` it has only the consequences of `--max_length`.
    """
    file = choose_run_file(f"traces_{chosen.strategy}", chosen.run, None)
    # Its `card` describes the default data.
    values = {key: value for key, value in file.values.items() if key != "card"}
    shipped = values["dataset"]
    # Of another adapter's arguments only the form applies here.
    arguments = shipped if shipped["name"] == "traces" else {"form": shipped.get("form")}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    # A longer sample would lose its end, which is the reply, so it is left out and counted.
    length = file.override(overrides).values.get("max_length")
    if length != values["max_length"] or "max_tokens" not in arguments:
        arguments["max_tokens"] = length
    values["dataset"] = {**arguments, "name": "traces", "path": str(store.folder)}
    values["output_dir"] = str(store.folder / "runs" / chosen.strategy)
    if chosen.model is not None:
        values["model_name_or_path"] = chosen.model
    return values


def _check_options(overrides: Sequence[str]) -> None:
    """Raise ConfigError for options that would detach the run from the store."""
    cures = {
        "--config": "Train by it itself: accelerate launch -m hf_rlhf.train --config FILE.",
        "--plugin": "Choose by --strategy.",
        "--output_dir": "The run is in DIR/runs/STRATEGY, where the other verbs look for it.",
    }
    names = [word.partition("=")[0] for word in overrides]
    if refused := [name for name in names if name in cures]:
        problem = "is not for `hf-rlhf traces train`."
        raise ConfigError([Problem(name, problem, cures[name]) for name in refused])


def _check_model(name: str | None) -> None:
    """Raise ConfigError for a missing model, with the name of the option."""
    from hf_rlhf.models import find_model

    try:
        if name is not None:
            find_model(name)
    except ModelError as error:
        raise ConfigError([Problem("--model", str(error))]) from error


def check_overrides(chosen: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raise ConfigError for options that no run of the strategy accepts."""
    from hf_rlhf.runs import resolve_run

    _check_options(overrides)
    _check_model(chosen.model)
    values = run_values(Store(chosen.folder), chosen, overrides)
    values["dataset"]["path"] = os.devnull  # rows may be many, and are not checked here
    try:
        resolve_run(RunFile.from_mapping(values).override(overrides))
    except ConfigError as error:
        # The other problems come from the missing datasets.
        if problems := [problem for problem in error.problems if "(command line)" in problem.where]:
            raise ConfigError(problems) from error


def _prepare_folder(out: Path, file: RunFile, size: int | None, *, overwrite: bool) -> None:
    """Delete a run with other settings or rows if `overwrite` is set.

    `size` is the number of processes to launch, perhaps elsewhere; None: this process trains.
    Raises RunFolderError, with the differences, for another run without `overwrite` or in training;
    ConfigError, before anything is deleted, for settings that no run accepts.
    """
    from hf_rlhf.distributed import planned
    from hf_rlhf.runs import resolve_run
    from hf_rlhf.storage import load_record, locked_folder
    from hf_rlhf.training import differences

    if not out.exists():
        return
    with locked_folder(out, "--strategy"):
        pass  # no process trains it: it may be continued or replaced
    changed = ["no run has begun"] * overwrite
    if (out / RECORD_NAME).exists():
        with planned(size, elsewhere=True) if size else nullcontext():
            changed = differences(load_record(out), resolve_run(file))
    if not overwrite and changed:
        lines = "".join(f"\n  - {line}" for line in changed)
        raise RunFolderError(
            f"{out} holds another run (there -> here):{lines}\nNothing was deleted. Move it away "
            "to keep it, or add --overwrite, which deletes it and trains again."
        )
    if overwrite:
        text = "deleted, and trained again" if changed else "kept, since it is the same run"
        print(f"{out}: {text}", flush=True)
    if changed:
        shutil.rmtree(out)


def _launch(
    chosen: argparse.Namespace, folder: Path, values: Mapping[str, Any], options: Sequence[str]
) -> int:
    """Train with a run file written into `folder`: in this process, or by `--launch`."""
    from hf_rlhf.storage import atomic_write_text

    file = folder / f"{chosen.strategy}.yaml"
    atomic_write_text(file, RunFile.from_mapping(values).to_yaml())
    if chosen.launch is None:
        from hf_rlhf.train import main

        return main(["--config", str(file), *options])
    from hf_rlhf.cli import launch_words
    from hf_rlhf.steps import run_training

    return run_training(launch_words(chosen.launch), file, options)


def train_parser() -> Parser:
    """Return the options of the verb; all others are for the run file."""
    parser = verb_parser(
        "train",
        "Train on the datasets of DIR; the run is in DIR/runs/STRATEGY. The same command continues "
        "where it stopped.",
        folder="the folder that the verbs work in",
        epilog="Any key of the run file is an option too: --learning_rate 1e-5 for all phases, "
        "--phases.multiturn.learning_rate 1e-5 for one. `hf-rlhf describe traces_progressive`.",
    )
    parser.add_argument(
        "--strategy",
        choices=list(STRATEGIES),
        default="progressive",
        help="conversations, then summaries, then both; or one alone (default: %(default)s)",
    )
    parser.add_argument("--model", metavar="ID", help="a Hub id, folder, or package://…")
    parser.add_argument("--run", metavar="NAME", help="the shipped run file: tiny, qwen2_5_7b")
    parser.add_argument(
        "--launch",
        metavar="CONFIG",
        help="an accelerate configuration, the name of one (`hf-rlhf launch-configs`), or a whole "
        "command in quotes (default: one process)",
    )
    parser.add_argument("--dry_run", action="store_true", help="print the plan, train nothing")
    add_overwrite(parser, "train anew what differs")
    return parser

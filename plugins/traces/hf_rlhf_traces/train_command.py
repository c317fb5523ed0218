"""`hf-rlhf traces train`: train on the datasets of a store, by one of three strategies."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.errors import (
    ConfigError,
    HfRlhfError,
    ModelError,
    Problem,
    RunFolderError,
    did_you_mean,
)
from hf_rlhf.storage import RECORD_NAME, as_json
from hf_rlhf_traces.options import Parser, add_model_repo, add_overwrite, verb_parser
from hf_rlhf_traces.rows import BUILT_BY
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import no_bars_of_datasets

STRATEGIES: Mapping[str, Sequence[str]] = {
    "progressive": ("multiturn", "summary_only", "summary_prefix"),
    "prefix": ("summary_prefix",),
    "only": ("summary_only",),
}
"""Strategy -> the datasets that it trains on as it is shipped."""
CONFIG_ERROR = 2
"""The status of a run that is refused before it begins."""


def train_main(argv: Sequence[str]) -> int:
    """Write the run file of a strategy into the store, and train by it; or print the plan."""
    chosen, overrides = train_parser().parse_known_args(argv)
    _check_options(overrides)
    no_bars_of_datasets()
    store = Store.open(chosen.folder)
    for dataset in STRATEGIES[chosen.strategy]:
        store.report(BUILT_BY[dataset])
    _check_model(chosen.model)
    values = run_values(store, chosen, overrides)
    overrides += _unmeasured(values, overrides)
    if chosen.dry_run:
        if chosen.overwrite:
            values["output_dir"] += "-anew"  # the plan is that of an empty folder
        with TemporaryDirectory() as folder:
            return _launch(chosen, Path(folder), values, [*overrides, "--dry_run"])
    out = store.folder / "runs" / chosen.strategy
    _prepare_folder(store, chosen, values, overrides)
    with _restart_command(argv):
        status = _launch(chosen, out.parent, values, overrides)
    if status == 0:
        print(f"{chosen.strategy}: {out / 'merged'}", flush=True)
    elif status == CONFIG_ERROR:
        note = f"{out}.yaml is written anew by each call: set its keys by options, --KEY VALUE"
        print(f"{note} (of `traces run`: --train.KEY VALUE).", file=sys.stderr, flush=True)
    return status


def run_values(
    store: Store, chosen: argparse.Namespace, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the run file: that of the strategy, on the datasets of the store.

    Of `overrides` it has only the consequences of `--max_length`.
    """
    from hf_rlhf.config import choose_run_file

    file = choose_run_file(f"traces_{chosen.strategy}", chosen.run, None)
    # Its `card` describes the data that it is shipped for.
    values = {key: value for key, value in file.values.items() if key != "card"}
    shipped = values["dataset"]
    # Of another adapter's arguments only the form applies here.
    arguments = shipped if shipped["name"] == "traces" else {"form": shipped.get("form")}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    # A longer sample would lose its end, which is the reply: it is left out, and counted.
    length = file.override(overrides).values.get("max_length")
    if length != values["max_length"] or "max_tokens" not in arguments:
        arguments["max_tokens"] = length
    values["dataset"] = {**arguments, "name": "traces", "path": str(store.folder)}
    values["output_dir"] = str(store.folder / "runs" / chosen.strategy)
    if chosen.model is not None:
        values["model_name_or_path"] = chosen.model
    if chosen.repo_id is not None:
        # A base that is not on the Hub is pushed too, so that the adapter can be loaded.
        base = {"base_model": f"{chosen.repo_id}-base", "push_base": True}
        pushed = base if is_local(str(values["model_name_or_path"])) else {}
        values["publish"] = {"repo_id": chosen.repo_id, **pushed}
    return values


def _unmeasured(values: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Return the options without the evaluations that have no sample; say each aloud."""
    from hf_rlhf.config import RunFile
    from hf_rlhf_traces.lengths import without_measurement

    file = RunFile.from_mapping(values).override(overrides)
    if file.problems:  # the run itself reports them all
        return []
    lacking = without_measurement(file, overrides)
    for why in lacking.values():
        print(f"trained without its evaluation: {why}", flush=True)
    return [word for option in lacking for word in (option, "null")]


def is_local(model: str) -> bool:
    """Return whether a model is in a package or on this machine, and not on the Hub."""
    return model.startswith("package://") or Path(model).exists()


def _check_options(overrides: Sequence[str]) -> None:
    """Raise ConfigError for what would take the run away from the store."""
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
    """Raise ConfigError for a missing model, named by the option, not by the run file's key."""
    from hf_rlhf.models import find_model

    try:
        if name is not None:
            find_model(name)
    except ModelError as error:
        raise ConfigError([Problem("--model", str(error))]) from error


def check_overrides(chosen: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raise ConfigError for options that no run of the strategy takes, with or without datasets."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.runs import resolve_run

    _check_options(overrides)
    _check_model(chosen.model)
    values = run_values(Store(chosen.folder), chosen, overrides)
    values["dataset"]["path"] = os.devnull  # rows may be many, and are not checked here
    try:
        resolve_run(RunFile.from_mapping(values).override(overrides))
    except ConfigError as error:
        # The other problems are those of the missing datasets.
        if problems := [problem for problem in error.problems if "(command line)" in problem.where]:
            raise ConfigError(problems) from error


@contextmanager
def _restart_command(argv: Sequence[str]) -> Iterator[None]:
    """Have a run that is stopped print this command, not the one that it launches."""
    from hf_rlhf.training import TYPED_NAME

    again = [word for word in argv if word != "--overwrite"]
    os.environ[TYPED_NAME] = f"hf-rlhf traces train {shlex.join(again)}"
    try:
        yield
    finally:
        del os.environ[TYPED_NAME]


def _prepare_folder(
    store: Store,
    chosen: argparse.Namespace,
    values: Mapping[str, Any],
    overrides: Sequence[str],
) -> None:
    """Delete a run of other settings or datasets if `--overwrite` is set, and note the new one.

    Raises RunFolderError, with the differences, for another run that is not to be replaced, or is
    being trained; ConfigError, before anything is deleted, for settings that no run takes.
    """
    from hf_rlhf.storage import atomic_write_json, locked_folder

    out = store.folder / "runs" / chosen.strategy
    note = out.with_name(f"{out.name}.begun.json")
    begun = (out / RECORD_NAME).exists()
    wanted = _identity(store, chosen.strategy, values, overrides)
    if out.exists():
        with locked_folder(out, "--strategy"):
            pass  # no process trains it: it may be continued or replaced
    changed = [] if begun else ["no run has begun"] * out.exists()
    if begun and note.exists():
        changed = _changes(json.loads(note.read_text(encoding="utf-8")), wanted)
    if changed:
        check_overrides(chosen, overrides)  # or a misspelt option would look like another setting
    if changed and chosen.overwrite:
        print(f"{out}: deleted, and trained again", flush=True)
        shutil.rmtree(out)
    elif changed and begun:
        lines = "".join(f"\n  - {line}" for line in changed)
        raise RunFolderError(
            f"{out} is a run of other settings (there -> here):{lines}\nNothing was deleted. Move "
            "it away to keep it, or add --overwrite, which deletes it and trains again."
        )
    elif begun and chosen.overwrite:
        print(f"{out}: kept, since it is of these settings and datasets", flush=True)
    if not (out / RECORD_NAME).exists():
        atomic_write_json(note, wanted)


def _identity(
    store: Store, strategy: str, values: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the run file with its options, and the digests of its datasets."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.storage import redact_secrets

    run = RunFile.from_mapping(values).override(overrides).values
    steps = [BUILT_BY[name] for name in STRATEGIES[strategy]]
    data = {step: store.entry(step)["digest"] for step in steps}
    return {"run": redact_secrets(as_json(run)), "data": data}


def _changes(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    from hf_rlhf.training import changed_settings

    changed = changed_settings(before["run"], wanted["run"])
    steps = [step for step, digest in wanted["data"].items() if before["data"].get(step) != digest]
    return [*changed, *(f"{step} has been built again since" for step in steps)]


def _launch(
    chosen: argparse.Namespace, folder: Path, values: Mapping[str, Any], options: Sequence[str]
) -> int:
    """Train by a run file written into `folder`: in this process, or by `--launch`."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.storage import atomic_write_text

    file = folder / f"{chosen.strategy}.yaml"
    atomic_write_text(file, RunFile.from_mapping(values).to_yaml())
    words = ["--config", str(file), *options]
    if chosen.launch is None:
        from hf_rlhf.train import main

        return main(words)
    command = [*launcher(chosen.launch), "-m", "hf_rlhf.train", *words]
    try:
        # A run ends with what has launched it.
        environment = {**os.environ, "HF_RLHF_LAUNCHED_BY": str(os.getpid())}
        return subprocess.run(command, check=False, env=environment).returncode
    except OSError as error:
        raise HfRlhfError(f"--launch: {command[0]}: {error.strerror}.") from error


def launcher(text: str) -> list[str]:
    """Return the command line of a command, a launch configuration, or the name of one."""
    from hf_rlhf.cli import launch_configs

    accelerate = [sys.executable, "-m", "accelerate.commands.launch"]
    if text in (configs := launch_configs()):
        return [*accelerate, "--config_file", str(configs[text])]
    words = shlex.split(text)
    if len(words) == 1 and Path(text).suffix in (".yaml", ".yml"):
        if not Path(text).exists():
            names = ", ".join(configs)
            raise RunFolderError(f"--launch {text}: there is no such file. By name: {names}.")
        return [*accelerate, "--config_file", text]
    if words[:2] == ["accelerate", "launch"]:
        return [*accelerate, *words[2:]]
    if len(words) == 1 and shutil.which(text) is None:
        raise RunFolderError(
            f"--launch {text}: there is no such command or configuration"
            f"{did_you_mean(text, configs)}. By name: {', '.join(configs)}."
        )
    return words


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
    add_model_repo(parser)
    parser.add_argument("--dry_run", action="store_true", help="print the plan, train nothing")
    add_overwrite(parser, "train anew what differs")
    return parser

"""`hf-rlhf traces train`: train on the datasets of a store, by one of three strategies."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.data import near
from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError, Problem, RunFolderError
from hf_rlhf.storage import RECORD_NAME, as_json
from hf_rlhf_traces.options import Parser, add_model_repo, add_overwrite, verb_parser
from hf_rlhf_traces.rows import MADE_BY
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import no_bars_of_datasets

STRATEGIES: Mapping[str, Sequence[str]] = {
    "progressive": ("multiturn", "summary_only", "summary_prefix"),
    "prefix": ("summary_prefix",),
    "only": ("summary_only",),
}
"""Strategy -> the datasets that it trains on as it is shipped."""


def train_main(argv: Sequence[str]) -> int:
    """Write the run file of a strategy into the store, and train by it; or say what it would do."""
    parser = train_parser()
    chosen, overrides = parser.parse_known_args(argv)
    _check_options(overrides)
    no_bars_of_datasets()
    store = Store.open(chosen.folder)
    for dataset in STRATEGIES[chosen.strategy]:
        store.report(MADE_BY[dataset])
    _check_model(chosen.model)
    values = run_values(store, chosen, overrides)
    if chosen.dry_run:
        if chosen.overwrite:  # what lies there would be gone
            values["output_dir"] += "-anew"
        with TemporaryDirectory() as folder:
            return _launch(chosen, Path(folder), values, [*overrides, "--dry_run"])
    out = store.folder / "runs" / chosen.strategy
    if (out / RECORD_NAME).exists() and not chosen.overwrite:
        check_overrides(chosen, overrides)  # or what is misspelt would look like another setting
    wanted = _identity(store, chosen.strategy, values, overrides)
    _make_room(out, wanted, lambda: check_overrides(chosen, overrides), overwrite=chosen.overwrite)
    with _restart_command(argv):
        status = _launch(chosen, out.parent, values, overrides)
    if status == 0:
        print(f"{chosen.strategy}: {out / 'merged'}", flush=True)
    return status


def run_values(
    store: Store, chosen: argparse.Namespace, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the run file: that of the strategy, on the datasets of the store.

    `overrides` are not in it, but for what follows from a `--max_length`.
    """
    from hf_rlhf.config import choose_run_file

    file = choose_run_file(f"traces_{chosen.strategy}", chosen.run, None)
    # What its `card` says is of the data that it is shipped for.
    values = {key: value for key, value in file.values.items() if key != "card"}
    shipped = values["dataset"]
    # Of another adapter only the form means something here.
    arguments = shipped if shipped["name"] == "traces" else {"form": shipped.get("form")}
    arguments = {key: value for key, value in arguments.items() if value is not None}
    # What is longer would be cut off at its end, which is the reply: it is left out, and counted.
    length = file.override(overrides).values.get("max_length")
    if length != values["max_length"] or "max_tokens" not in arguments:
        arguments["max_tokens"] = length
    values["dataset"] = {**arguments, "name": "traces", "path": str(store.folder)}
    values["output_dir"] = str(store.folder / "runs" / chosen.strategy)
    if chosen.model is not None:
        values["model_name_or_path"] = chosen.model
    if chosen.repo_id is not None:
        values["publish"] = _publish(chosen.repo_id, str(values["model_name_or_path"]))
    return values


def _publish(repo_id: str, model: str) -> dict[str, Any]:
    """Return where to publish; a base that is not on the Hub goes there too, to be loaded."""
    if not model.startswith("package://") and not Path(model).exists():
        return {"repo_id": repo_id}
    return {"repo_id": repo_id, "base_model": f"{repo_id}-base", "push_base": True}


def _check_options(overrides: Sequence[str]) -> None:
    """Raise ConfigError for what would take the run away from the store."""
    wrong = {
        "--config": "Train by it itself: accelerate launch -m hf_rlhf.train --config FILE.",
        "--plugin": "Choose by --strategy.",
        "--output_dir": "The run lies in DIR/runs/STRATEGY, where the other verbs look for it.",
    }
    names = [word.partition("=")[0] for word in overrides]
    if refused := [name for name in names if name in wrong]:
        problems = [
            Problem(name, "is not for `hf-rlhf traces train`.", wrong[name]) for name in refused
        ]
        raise ConfigError(problems)


def _check_model(name: str | None) -> None:
    """Raise ConfigError for a `--model` that is not there, which the run file calls otherwise."""
    from hf_rlhf.models import find_model

    try:
        if name is not None:
            find_model(name)
    except ModelError as error:
        raise ConfigError([Problem("--model", str(error))]) from error


def check_overrides(chosen: argparse.Namespace, overrides: Sequence[str]) -> None:
    """Raise ConfigError for options that no run of the strategy takes, with or without datasets."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.runs import resolve_all

    _check_options(overrides)
    _check_model(chosen.model)
    values = run_values(Store(chosen.folder), chosen, overrides)
    values["dataset"]["path"] = os.devnull  # rows may be many, and are not looked at for this
    try:
        resolve_all(RunFile.from_mapping(values).override(overrides), None)
    except ConfigError as error:
        # What else there is is of the datasets.
        if problems := [problem for problem in error.problems if "(command line)" in problem.where]:
            raise ConfigError(problems) from error


def _identity(
    store: Store, strategy: str, values: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """Return what tells a run from others: its run file, options applied, and its datasets."""
    from hf_rlhf.config import RunFile
    from hf_rlhf.storage import redact_secrets

    steps = [MADE_BY[step] for step in STRATEGIES[strategy]]
    wanted = RunFile.from_mapping(values).override(overrides).values
    return {
        "run": redact_secrets(as_json(wanted)[0]),
        "data": {step: store.entry(step)["digest"] for step in steps},
    }


@contextmanager
def _restart_command(argv: Sequence[str]) -> Iterator[None]:
    """Have a run that is stopped say this command, not the one that it launches."""
    from hf_rlhf.training import TYPED_NAME

    again = [word for word in argv if word != "--overwrite"]
    os.environ[TYPED_NAME] = f"hf-rlhf traces train {shlex.join(again)}"
    try:
        yield
    finally:
        del os.environ[TYPED_NAME]


def _make_room(
    out: Path, wanted: Mapping[str, Any], check: Callable[[], None], *, overwrite: bool
) -> None:
    """Delete a run of other settings or datasets if that was wanted for, and note the new one.

    `check` raises ConfigError for settings that no run takes; then nothing is deleted. Raises
    RunFolderError for another run, with the differences, or one on datasets that were built again
    since, where it is not to be replaced: it may have taken days.
    """
    from hf_rlhf.storage import atomic_write_json, locked_folder

    note = out.with_name(f"{out.name}.begun.json")
    if out.exists():
        with locked_folder(out, "--strategy"):
            pass  # no process trains it: it may be continued or replaced
    if (out / RECORD_NAME).exists() and note.exists():
        before = json.loads(note.read_text(encoding="utf-8"))
        replace = _differs(out, before, wanted, overwrite)
    else:
        replace = overwrite and out.exists()
    if replace:
        check()
        print(f"{out}: deleted, and trained again", flush=True)
        shutil.rmtree(out)
    if not (out / RECORD_NAME).exists():
        atomic_write_json(note, wanted)


def _differs(
    out: Path, before: Mapping[str, Any], wanted: Mapping[str, Any], overwrite: bool
) -> bool:
    from hf_rlhf.training import changed_settings

    changed = changed_settings(before["run"], wanted["run"])
    if not changed and before["data"] == wanted["data"]:
        if overwrite:
            print(f"{out}: kept, since it is of these settings and datasets", flush=True)
        return False
    if overwrite:
        return True
    if changed:
        lines = "".join(f"\n  - {line}" for line in changed)
        raise RunFolderError(
            f"{out} holds a run of other settings (there -> here):{lines}\nNothing was deleted. "
            "Move it away to keep it, or say --overwrite, which deletes it and trains anew."
        )
    raise RunFolderError(
        f"{out} was trained on datasets that have been built anew since. Nothing was deleted. "
        "Move it away to keep it, or say --overwrite, which deletes it and trains on what is there "
        "now."
    )


def _launch(
    chosen: argparse.Namespace, folder: Path, values: Mapping[str, Any], options: Sequence[str]
) -> int:
    """Train by a run file written into `folder`: in this process, or as it is wanted to launch."""
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
    """Return the words that launch: of a command, a launch configuration, or the name of one."""
    from hf_rlhf.cli import launch_configs

    accelerate = [sys.executable, "-m", "accelerate.commands.launch"]
    if text in (configs := launch_configs()):
        return [*accelerate, "--config_file", str(configs[text])]
    words = shlex.split(text)
    if len(words) == 1 and Path(text).suffix in (".yaml", ".yml"):
        if not Path(text).exists():
            known = ", ".join(configs)
            raise RunFolderError(f"--launch {text}: there is no such file. By name: {known}.")
        return [*accelerate, "--config_file", text]
    if words[:2] == ["accelerate", "launch"]:
        return [*accelerate, *words[2:]]
    if len(words) == 1 and shutil.which(text) is None:
        raise RunFolderError(
            f"--launch {text}: there is no such command or configuration{near(text, configs)}. "
            f"By name: {', '.join(configs)}."
        )
    return words


def train_parser() -> Parser:
    """Return the options of the verb; what it does not know is for the run file."""
    parser = verb_parser(
        "train",
        "Train on the datasets of DIR; the run lies in DIR/runs/STRATEGY. The same command goes on "
        "where it stopped.",
        folder="the folder of the other verbs",
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

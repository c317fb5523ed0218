"""``accelerate launch -m hf_rlhf.train --plugin NAME``: train, measure, publish.

The same command on the same folder resumes: it continues from the newest valid checkpoint, skips
finished parts, and publishes the rest.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import few_threads, leave_process_group, planned, processes, rank
from hf_rlhf.errors import DriftError, HfRlhfError, PublishError, no_exit
from hf_rlhf.storage.secrets import redact_secrets
from hf_rlhf.training.signals import Terminated

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from hf_rlhf.runs.devices import Device
    from hf_rlhf.runs.run import Run
    from hf_rlhf.storage.record import RunRecord

    Scorer = Callable[..., Any] | str | Mapping[str, Any]

_UNSET: Any = object()
STOPPED = 4
"""Exit status when the monitor stopped training."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, like in shells."""
TERMINATED = 143
"""Exit status after SIGTERM, and when the launcher is gone."""


def train(
    plugin: str | None = None,
    *,
    run: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    model: str | os.PathLike[str] | None = None,
    dataset: "Dataset | DatasetDict | Callable[..., Any] | Mapping[str, Any] | str | None" = None,
    rewards: "Sequence[Scorer] | Scorer | None" = _UNSET,
    gates: "Sequence[Scorer] | None" = _UNSET,
    callbacks: Sequence[Any] | None = _UNSET,
    tokenizer: Any = None,
    **settings: Any,
) -> "RunRecord":
    """Run a complete training run and return its record.

    Args:
        plugin: a trainer's name; without `run` and `config`, its default run file is used. With
            rows in memory no file is used, and unset values are the trainer's defaults.
        run: another run file that the trainer's package ships.
        config: your own run file, or its content as a mapping.
        overrides: dotted command-line overrides, such as ``["--rewards.0.weight", "0.3"]``.
        model: the run file's `model_name_or_path`: a Hub id or a folder.
        dataset: rows in memory, or the run file's section. A `Dataset` is for training; in a
            `DatasetDict`, `train` is for training and `test` is held out.
        rewards: functions or objects with TRL's reward signature, names (`NAME`, `FILE.py:NAME`,
            `MODULE:NAME`), or entries as in a run file, whose `name` may be an object.
        gates: likewise.
        callbacks: of transformers: classes, objects, names, or entries with arguments.
        tokenizer: an object, a folder or a Hub id, if not the model's own.
        settings: other top-level keys of the run file. A section is merged into the file's section
            key by key; a list, or a section with another component, replaces it.

    Raises:
        HfRlhfError: see `hf_rlhf.errors`; all completed work stays in the folder.
    """
    few_threads()
    settings |= _given(locals())
    from hf_rlhf.storage.disk import explain_disk_errors

    file = _run_file(plugin, run, config, overrides, settings)
    argv: list[str] = []
    if file.objects:
        pass  # no command line has these
    elif settings or isinstance(config, Mapping):
        argv = ["--config", "config.yaml"]  # the file in the run folder has all settings
    else:
        chosen = {"--plugin": plugin, "--run": run, "--config": config and os.fspath(config)}
        argv = [word for key, value in chosen.items() if value for word in (key, value)]
        argv += overrides
    with no_exit(), explain_disk_errors(Path.cwd()):
        from hf_rlhf.runs.resolve import resolve_run

        resolved = resolve_run(file, plugin=plugin, python_keys=settings)
        from hf_rlhf.training.start import open_session

        return open_session(resolved).go(argv)


def dry_run(
    plugin: str | None = None,
    *,
    run: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    model: str | os.PathLike[str] | None = None,
    dataset: "Dataset | DatasetDict | Callable[..., Any] | Mapping[str, Any] | str | None" = None,
    rewards: "Sequence[Scorer] | Scorer | None" = _UNSET,
    gates: "Sequence[Scorer] | None" = _UNSET,
    callbacks: Sequence[Any] | None = _UNSET,
    tokenizer: Any = None,
    machine: str | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Print and return what `train` would do with these arguments, phase by phase.

    This is `hf-rlhf check`: everything is validated, tokens are counted, the rewards score a few
    completions, the judges and the Hub are contacted, and nothing is written. On several processes
    the first prints, and the others return `[]`. `machine` plans for another machine, such as
    `8xH100`.

    Raises:
        HfRlhfError: like `train`, before weights load.
    """
    few_threads()
    settings |= _given(locals())

    file = _run_file(plugin, run, config, overrides, settings)
    with no_exit(), _planned(file, machine) as device:
        from hf_rlhf.training.dry_run import report_of

        report = report_of(file, plugin, list(settings), device)
        if rank() != 0:
            return []
        report.show()
        return report.as_json()


@contextmanager
def planned_run(
    plugin: str | None,
    run: str | None,
    config: str | None,
    overrides: Sequence[str],
    machine: str | None,
) -> "Iterator[tuple[Run, Device | None]]":
    """Yield a resolved run without training it, for `machine` as in `dry_run`."""
    few_threads()

    file = _run_file(plugin, run, config, overrides, {})
    with no_exit(), _planned(file, machine) as device:
        from hf_rlhf.runs.resolve import resolve_run

        yield resolve_run(file), device


@contextmanager
def _planned(file: Any, machine: str | None) -> Iterator["Device | None"]:
    """Plan inside the block for `machine`, or for as many processes as the run file expects.

    If the file expects more processes than are launched, and there is no GPU here but GPUs are not
    ruled out, the plan is for another machine. Yields the kind of its devices, if known.
    """
    from hf_rlhf.runs.devices import parse_machine

    launched, expected, device = processes(), file.values.get("expect_world_size"), None
    count = expected if launched == 1 and isinstance(expected, int) else launched
    if machine is not None:
        count, device = parse_machine(machine)
        if expected not in (None, count):
            raise HfRlhfError(
                f"--for {machine} has {count} devices, and the run file's expect_world_size is "
                f"{expected}. Change one."
            )
    elsewhere = device is not None
    if not elsewhere and count > launched and not file.values.get("use_cpu"):
        import torch

        elsewhere = not torch.accelerator.is_available()
    with planned(max(count, 1), elsewhere=elsewhere):
        yield device


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run file's keys among the arguments of `train`."""
    keys = {"model": "model_name_or_path", "dataset": "dataset", "tokenizer": "tokenizer"}
    chosen = {key: arguments[name] for name, key in keys.items() if arguments[name] is not None}
    lists = {name: arguments[name] for name in ("rewards", "gates", "callbacks")}
    return chosen | {name: value for name, value in lists.items() if value is not _UNSET}


def _run_file(
    plugin: str | None,
    run: str | None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None,
    overrides: Sequence[str],
    settings: Mapping[str, Any],
) -> Any:
    """Return the chosen run file with settings and overrides applied; print notes on it."""
    from hf_rlhf.config.run_files import configure
    from hf_rlhf.formatting import terminal_message
    from hf_rlhf.training.library_warnings import quiet_libraries

    file, notes = configure(plugin, run, config, settings, overrides)
    for note in notes if rank() == 0 else ():
        print(terminal_message(f"note: {note}", sys.stdout), flush=True)
    quiet_libraries(file.values.keys())
    return file


def parser() -> argparse.ArgumentParser:
    """Return the command line of ``python -m hf_rlhf.train``, without the run file's keys."""
    options = argparse.ArgumentParser(
        prog="hf_rlhf.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="Any key of the run file is also an option: --learning_rate 1e-5 "
        "--rewards.0.weight 0.3. `hf-rlhf describe NAME` lists a component's arguments.",
    )
    options.add_argument("--plugin", help="the trainer; without --config, its default run file")
    options.add_argument("--run", help="another run file that the trainer's package ships")
    options.add_argument("--config", help="a run file of your own")
    options.add_argument(
        "--reward",
        action="append",
        metavar="NAME",
        help="a reward, by name or as FILE.py:NAME, in place of the file's `rewards`; repeatable",
    )
    options.add_argument(
        "--dry_run",
        action="store_true",
        help="check everything, print rows, tokens, steps and time, and train nothing",
    )
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Train by the command line; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen, options = parser().parse_known_args(arguments)
    overrides = [*reward_option(chosen.reward), *options]
    try:
        if chosen.dry_run:
            return dry_run_status(chosen.plugin, chosen.run, chosen.config, overrides)
        train(chosen.plugin, run=chosen.run, config=chosen.config, overrides=overrides)
        leave_process_group()
    except PublishError as error:
        return _ended(error, f"trained, but not published: {error}", 3)
    except DriftError as error:
        return _ended(error, str(error), STOPPED)
    except HfRlhfError as error:
        return _ended(error, f"error: {error}", 2)
    except Terminated as error:
        return _ended(error, f"stopped, as {error}.", TERMINATED)
    except KeyboardInterrupt as error:
        return _ended(error, "interrupted.", INTERRUPTED)
    return 0


def reward_option(names: Sequence[str] | None) -> list[str]:
    """Return the override for repeatable `--reward NAME` options."""
    return ["--rewards", json.dumps([{"name": name} for name in names])] if names else []


def dry_run_status(
    plugin: str | None,
    run: str | None,
    config: str | None,
    overrides: Sequence[str],
    machine: str | None = None,
) -> int:
    """Print a dry run; return 1 if something in it fails, else 0."""
    reports = dry_run(plugin, run=run, config=config, overrides=overrides, machine=machine)
    statuses = {finding["status"] for report in reports for finding in report["findings"]}
    return int("FAIL" in statuses)


def _ended(error: BaseException, message: str, status: int) -> int:
    """Print the error (a single line except on the main process); return `status`."""
    from hf_rlhf.formatting import terminal_message

    lines = [message, *getattr(error, "__notes__", ())]
    if number := rank():
        lines = [f"rank {number}: {shorten(' '.join(lines), 160, placeholder=' ...')}"]
    # A plugin's error may quote anything, and a cluster keeps its logs.
    print(terminal_message(redact_secrets("\n".join(lines)), sys.stderr), file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

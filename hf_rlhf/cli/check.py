"""``hf-rlhf check``: a dry run, the same as ``python -m hf_rlhf.train --dry_run``."""

import typer

from hf_rlhf.cli.completion import Machine, Plugin, RunName


def check(
    words: list[str] | None = typer.Argument(None, metavar="[FILE] [--KEY VALUE ...]"),
    plugin: Plugin = None,
    run: RunName = None,
    config: str | None = typer.Option(None, metavar="FILE", help="The same as FILE."),
    reward: list[str] | None = typer.Option(
        None, metavar="NAME", help="As in hf_rlhf.train; repeatable."
    ),
    machine: Machine = None,
) -> int:
    """Check everything without training.

    A dry run: everything except the training, with a table of results. A row is `ok`, `note`
    (worth reading) or `FAIL`; any FAIL gives exit status 1.

    FILE is a run file of your own; any key of it is an option too. With --expect_world_size N the
    run is planned for N processes, with --for 8xH100 for the GPUs of another machine: their memory
    too.
    """
    from hf_rlhf.train import dry_run_status, reward_option

    file, overrides = file_and_overrides(words)
    overrides = [*reward_option(reward), *overrides]
    return dry_run_status(plugin, run, file or config, overrides, machine=machine)


def file_and_overrides(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Return the file that words begin with, if any, and the `--KEY VALUE` words."""
    words = words or []
    named = bool(words) and not words[0].startswith("-")
    return (words[0], words[1:]) if named else (None, words)

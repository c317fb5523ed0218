"""``hf-rlhf runs`` and ``hf-rlhf init``: see the run files that packages ship, and copy one."""

import re
from itertools import takewhile
from pathlib import Path

import typer

from hf_rlhf.cli.completion import RunName, of_names, trainers
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.storage.files import atomic_write_text

_BY_NAME = re.compile(r"--plugin \S+(?: --run \S+)?")
"""The name of a shipped run file in its comment."""
_OF_THE_RUN = re.compile(r"^(?:output_dir|card):.*\n(?:\n*[ -].*\n)*", re.M)
"""The keys of a shipped run file that are not copied, with their values."""


def first_comment(path: Path) -> str:
    """Return the first paragraph of the comment that a run file begins with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = (line.removeprefix("#").strip() if line.startswith("#") else "" for line in lines)
    return " ".join(takewhile(bool, texts))


def runs(
    plugin: str | None = typer.Argument(None, help="A trainer.", autocompletion=of_names(trainers)),
    run: str | None = typer.Argument(None, help="One of its run files: print it."),
) -> None:
    """List the run files that ship, those of PLUGIN, or print the one called RUN.

    To copy one: hf-rlhf init PLUGIN FILE. To train by one: accelerate launch -m hf_rlhf.train
    --plugin PLUGIN --run RUN
    """
    from hf_rlhf.config.run_files import default_run, run_files

    if plugin and run:
        print(_shipped(plugin, run).read_text(encoding="utf-8"), end="")
        return
    for trainer in [plugin] if plugin else trainers():
        shipped = run_files(trainer)
        default = default_run(trainer) if shipped else None
        for name, path in shipped.items():
            purpose = first_comment(path).partition(". ")[0].rstrip(".")
            print(f"{trainer:18} {'*' if name == default else ' '}{name:12} {purpose}")
    print("\n*: the one of `--plugin PLUGIN` alone. To print one: hf-rlhf runs PLUGIN RUN")


def init(
    plugin: str = typer.Argument(help="A trainer.", autocompletion=of_names(trainers)),
    file: Path = typer.Argument(help="The file to write."),
    run: RunName = None,
) -> None:
    """Copy a shipped run file to FILE, to start your own.

    It keeps its comments, but neither `output_dir` nor `card`, which are the shipped run's.
    `hf-rlhf runs` lists them.
    """
    if file.exists():
        raise HfRlhfError(f"{file} exists. Name another file, or delete it.")
    text = _OF_THE_RUN.sub("", _shipped(plugin, run).read_text(encoding="utf-8"))
    atomic_write_text(file, _BY_NAME.sub(f"--config {file}", text))
    print(f"{file}: {first_comment(file)}")
    print(f"To check it:  hf-rlhf check {file}")
    print(f"To train:     accelerate launch -m hf_rlhf.train --config {file}")


def _shipped(trainer: str, run: str | None) -> Path:
    from hf_rlhf.config.run_files import choose_run_file, run_files

    return run_files(trainer)[Path(choose_run_file(trainer, run, None).name).stem]

"""The run files that plugins ship, and the one that a command line selects."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.config import registry
from hf_rlhf.config.plugin_source import class_in_source, constant
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import BrokenPlugin, ConfigError, Problem

if TYPE_CHECKING:
    pass


def run_files(trainer: str) -> dict[str, Path]:
    """Return the run files that the package offering `trainer` ships for it, by name.

    They are the YAML files in `runs/` of the trainer's package, and in the folders there, whose
    `plugin` is that trainer. Of two with one name the one in a folder counts. The package itself
    is not imported.
    """
    from importlib.util import find_spec

    point = registry.find("trainers", trainer)
    spec = find_spec(point.module.split(".")[0])
    roots = spec.submodule_search_locations if spec else None
    found = [
        path
        for root in roots or ()
        for pattern in ("*.yaml", "*/*.yaml")
        for path in sorted(Path(root, "runs").glob(pattern))
    ]
    return {path.stem: path for path in found if RunFile.read(path).plugin in (trainer, point.name)}


def choose_run_file(trainer: str | None, run: str | None, config: str | None) -> RunFile:
    """Return the run file that `--plugin`, `--run` and `--config` name together.

    Raises ConfigError when they name none, disagree, or name one that does not exist.
    """
    if config is not None and run is not None:
        raise ConfigError(
            [Problem("command line", "both --run and --config are given.", "Pick one.")]
        )
    if config is not None:
        file = RunFile.read(config)
        if trainer and file.plugin and file.plugin != trainer:
            raise ConfigError(
                [
                    Problem(
                        file.where(("plugin",)),
                        f"is {file.plugin!r}, but --plugin says {trainer!r}.",
                        "Make them agree, or leave one out.",
                    )
                ]
            )
        return file
    if trainer is None:
        raise ConfigError(
            [Problem("command line", "neither --plugin NAME nor --config FILE is given.")]
        )
    shipped = run_files(trainer)
    name = run or default_run(trainer)
    if name is None or name not in shipped:
        known = ", ".join(sorted(shipped)) or "none"
        raise ConfigError(
            [Problem(f"--run {name}", f"{trainer} ships no such run file.", f"It ships: {known}.")]
        )
    file = RunFile.read(shipped[name])
    return replace(file, shipped=file.values)


@contextmanager
def told_as_shipped(file: RunFile, shipped: bool) -> Iterator[None]:
    """Say in a ConfigError about a run file that the user did not write whose it is."""
    try:
        yield
    except ConfigError as error:
        if not shipped or not any(one.where.startswith(f"{file.name}:") for one in error.problems):
            raise
        hint = (
            f"{file.name} is the run file that {file.plugin!r} ships. An option replaces what it "
            "says: --KEY VALUE."
        )
        raise ConfigError(error.problems, hint) from error


def default_run(trainer: str) -> str | None:
    """Return the name of the run file that `--plugin` alone means: the trainer's `default_run`."""
    shipped = run_files(trainer)
    if len(shipped) == 1:
        return next(iter(shipped))
    try:
        found = class_in_source(registry.find("trainers", trainer))
    except BrokenPlugin:  # what is imported there from elsewhere cannot be read there
        found = None
    name: str | None = constant(found, "default_run") if found else None
    return name or getattr(registry.load("trainers", trainer), "default_run", None)


def default_folder(trainer: str, file: str) -> Path:
    """Return the run folder of a run file that names none."""
    return Path(f"runs/{trainer.replace('/', '-')}-{Path(file).stem}")

"""``hf-rlhf launch-configs``: accelerate configurations, and scripts for Slurm and HF Jobs.

Each begins with a comment on its purpose, and a line `# $ COMMAND`. The command states the expected
launch, so that a run under another launch stops (`--expect_world_size`).
"""

import shlex
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import typer

from hf_rlhf.cli.completion import of_names
from hf_rlhf.errors import ConfigError, HfRlhfError, Problem, did_you_mean

_KINDS = (".yaml", ".sbatch", ".sh")


def shipped_folder(name: str, checkout: str) -> Path:
    """Return a data folder: inside the wheel, or `checkout` at the root of a source checkout."""
    packaged = Path(str(files("hf_rlhf"))) / name
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / checkout


def launch_configs() -> dict[str, Path]:
    """Return the shipped launch configurations and scripts by name."""
    folder = shipped_folder("_launch_configs", "launch_configs")
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in _KINDS}


def summary(path: Path) -> str:
    """Return the line on the purpose of a launch configuration."""
    return _comments(path)[0]


def command(path: Path) -> str:
    """Return the command line for a launch configuration."""
    return next(line.removeprefix("$ ") for line in _comments(path) if line.startswith("$ "))


def _comments(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("# ")]


def copy_launch_config(
    name: str | None = typer.Argument(
        None, help="Copy this one.", autocompletion=of_names(launch_configs)
    ),
    to: Path = typer.Argument(Path("."), help="Folder or file to copy it to."),
) -> None:
    """List launch configurations, or copy one and print its command."""
    configs = launch_configs()
    if name is None:
        for each, path in configs.items():
            print(f"{each:17} {summary(path)}")
        print("To copy one and see its command: hf-rlhf launch-configs NAME [FOLDER]")
        return
    if name not in configs:
        raise HfRlhfError(f"No configuration is named {name!r}. There are: {', '.join(configs)}.")
    source = configs[name]
    target = to / source.name if to.is_dir() else to
    if target.exists():
        raise HfRlhfError(f"{target} exists. Name another file, or delete it.")
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise HfRlhfError(f"{target} cannot be written: {error.strerror}.") from error
    print(f"{target}: {summary(source)}")
    print(f"  {command(source).replace(source.name, str(target))}")


def launch_words(text: str) -> list[str]:
    """Return the words of a command, of an accelerate configuration, or of its name.

    Raises ConfigError if there is no program or configuration of that name.
    """
    configs = launch_configs()
    accelerate = [sys.executable, "-m", "accelerate.commands.launch"]
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote
        words = []
    if text in configs:
        return [*accelerate, "--config_file", str(configs[text])]
    if text.endswith((".yaml", ".yml")) and Path(text).exists():
        return [*accelerate, "--config_file", text]
    if words[:2] == ["accelerate", "launch"]:
        return [*accelerate, *words[2:]]
    if not words or shutil.which(words[0]) is None:
        what = f"`{text}` is no program or configuration{did_you_mean(text, configs)}."
        raise ConfigError([Problem("--launch", what, f"By name: {', '.join(configs)}.")])
    return words

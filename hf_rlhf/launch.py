"""``hf-rlhf launch-configs``: the accelerate configurations that ship with the package."""

import argparse
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from hf_rlhf.errors import HfRlhfError


def shipped_folder(name: str, checkout: str) -> Path:
    """Return a data folder: inside the wheel, or `checkout` at the root of a source checkout."""
    packaged = Path(str(files("hf_rlhf"))) / name
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / checkout


def launch_configs() -> dict[str, Path]:
    """Return the shipped launch configurations by name."""
    folder = shipped_folder("_launch_configs", "launch_configs")
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def launch_configs_main(argv: Sequence[str]) -> int:
    """List the launch configurations, or copy one."""
    parser = argparse.ArgumentParser(prog="hf-rlhf launch-configs", description=__doc__)
    parser.add_argument("name", nargs="?", help="copy this one")
    parser.add_argument("to", nargs="?", default=".", help="folder or file to copy it to")
    arguments = parser.parse_args(argv)
    configs = launch_configs()
    if arguments.name is None:
        for name, path in configs.items():
            first = path.read_text().splitlines()[0].lstrip("# ")
            print(f"{name:20} {first}")
        return 0
    if arguments.name not in configs:
        raise HfRlhfError(
            f"No launch configuration is named {arguments.name!r}. There are: {', '.join(configs)}."
        )
    source, target = configs[arguments.name], Path(arguments.to)
    target = target / source.name if target.is_dir() else target
    if target.exists():
        raise HfRlhfError(f"{target} exists. Name another file, or delete it.")
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise HfRlhfError(f"{target} cannot be written: {error.strerror}.") from error
    print(f"{target}: accelerate launch --config_file {target} -m hf_rlhf.train --plugin NAME")
    return 0

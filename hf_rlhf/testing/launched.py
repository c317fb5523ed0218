"""For tests that train in several processes, under `accelerate launch`."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path


def launch_environment(**given: str) -> dict[str, str]:
    """Return the environment of a process to launch: this one's, its Python's commands found first.

    What an outer launch says of its processes and ports is left out, and the token of the Hub.
    """
    left_out = ("ACCELERATE_", "MASTER_", "HF_TOKEN")
    own = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    return {**own, "PATH": path, **given}


def lacking(configuration: str) -> str:
    """Return why a launch configuration cannot be tried here, or an empty text.

    DeepSpeed compiles its communication on its first run, for which it needs tools.
    """
    if not configuration.startswith("deepspeed"):
        return ""
    if importlib.util.find_spec("deepspeed") is None:
        return "deepspeed is not installed (`make test-slow` installs it)"
    path = launch_environment()["PATH"]
    missing = [tool for tool in ("g++", "ninja") if shutil.which(tool, path=path) is None]
    return f"deepspeed needs {', '.join(missing)} to compile its communication" if missing else ""

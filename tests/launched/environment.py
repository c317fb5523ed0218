"""For tests that train in several processes, under `accelerate launch`."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path


def launch_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a process to launch: this one's, with its Python first in PATH.

    The variables of an outer launch, for its processes and ports, and the Hub's token are left out.
    """
    omitted = ("ACCELERATE_", "MASTER_", "HF_TOKEN")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(omitted)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', '')}"
    return {**inherited, "PATH": path, **variables}


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

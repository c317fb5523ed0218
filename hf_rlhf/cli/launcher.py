"""The words of an option `--launch`, which precede `-m hf_rlhf.train`."""

import shlex
import shutil
import sys
from pathlib import Path

from hf_rlhf.cli.launch import launch_configs
from hf_rlhf.errors import ConfigError, Problem, did_you_mean


def launch_words(text: str) -> list[str]:
    """Return the words of a command, of an accelerate configuration, or of its name.

    Raises ConfigError if there is no program or configuration of that name.
    """
    configs = launch_configs()
    accelerate = [sys.executable, "-m", "accelerate.commands.launch"]
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError([Problem("--launch", f"`{text}` is no command: {error}.")]) from error
    if text in configs:
        return [*accelerate, "--config_file", str(configs[text])]
    if Path(text).suffix in (".yaml", ".yml") and Path(text).exists():
        return [*accelerate, "--config_file", text]
    if words[:2] == ["accelerate", "launch"]:
        return [*accelerate, *words[2:]]
    if not words or shutil.which(words[0]) is None:
        what = f"`{text}` is no program or configuration{did_you_mean(text, configs)}."
        raise ConfigError([Problem("--launch", what, f"By name: {', '.join(configs)}.")])
    return words

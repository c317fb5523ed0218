"""OpenReward and Harbor environments through TRL's adapters; each needs its own package.

Each is an environment and a dataset adapter of the same name: rows are tasks, whose number selects
the environment's task. TRL and the packages are imported on use.
"""

import os
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import DataError, PluginError

if TYPE_CHECKING:
    from datasets import DatasetDict

# Otherwise TRL's adapters warn on import that they are experimental.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def openreward(target: str, env_name: str | None = None, split: str = "train") -> Any:
    """An environment of openreward.ai or a server with its protocol, by TRL's `OpenRewardSpec`.

    The server provides its tools. The key is read from OPENREWARD_API_KEY.

    Args:
        target: a name in the catalogue, such as Eigent/SETA, or the address of a server.
        env_name: the environment on a server with several.
        split: of the tasks, equal to the dataset's.
    """
    return _openreward(target, env_name, split, None).environment_factory()


def openreward_tasks(
    target: str,
    env_name: str | None = None,
    split: str = "train",
    tasks: int | None = None,
    held_out: int = 0,
) -> "DatasetDict":
    """Tasks of an OpenReward environment, as rows for the environment `openreward`.

    Args:
        target: as for the environment.
        env_name: as for the environment.
        split: as for the environment.
        tasks: number of tasks, from the first; all by default.
        held_out: number of last tasks that form the split `test`.
    """
    return _splits(_openreward(target, env_name, split, tasks).train_dataset, held_out)


@cache
def _openreward(target: str, env_name: str | None, split: str, tasks: int | None) -> Any:
    _require("openreward")
    from trl.experimental.openreward import OpenRewardSpec

    return OpenRewardSpec(target, env_name=env_name, split=split, num_tasks=tasks)


def harbor(agent: str = "bash", environment_type: str = "docker") -> Any:
    """A Harbor sandbox in which an agent works on a task, by TRL's `HarborSpec`.

    Args:
        agent: its tools: `bash`, or a class as MODULE:CLASS or FILE.py:CLASS.
        environment_type: where the sandbox runs: docker, e2b, daytona, modal and others.
    """
    _require("harbor")
    from trl.experimental.harbor import HarborSpec

    # The tasks are in the rows of the dataset.
    return HarborSpec("", agent=agent, environment_type=environment_type).environment_factory()


def harbor_tasks(path: str, tasks: int | None = None, held_out: int = 0) -> "DatasetDict":
    """Tasks of a Harbor suite, as rows for the environment `harbor`.

    Args:
        path: a Hub dataset or a folder, with a subfolder for each task.
        tasks: how many, from the first; all by default.
        held_out: how many of them, the last ones, are the split `test`.
    """
    from trl.experimental.harbor import HarborSpec

    try:
        rows = HarborSpec(path, num_tasks=tasks).train_dataset
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: {error}") from error
    return _splits(rows, held_out)


def _splits(rows: Any, held_out: int) -> "DatasetDict":
    from datasets import DatasetDict

    trained = len(rows) - held_out
    if not 0 <= held_out < len(rows):
        raise DataError(f"held_out is {held_out}, of {len(rows)} tasks. Leave some to train on.")
    if not held_out:
        return DatasetDict(train=rows)
    test = rows.select(range(trained, len(rows)))
    return DatasetDict(train=rows.select(range(trained)), test=test)


def _require(package: str) -> None:
    """Raise PluginError if a package is missing that TRL's adapter imports at the first task."""
    if find_spec(package) is not None:
        return
    old = package == "harbor" and sys.version_info < (3, 12)
    python = f", in Python 3.12 or newer (this is {sys.version.split()[0]})" if old else ""
    raise PluginError(
        f"{package} needs the package {package}, which is not installed: "
        f"`pip install 'trl[{package}]'`{python}."
    )

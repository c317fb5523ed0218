"""The caches of a workspace: converted rows, and answers of a judge."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = ".cache"
_DATASETS, _JUDGES = "HF_DATASETS_CACHE", "HF_RLHF_CACHE"


@contextmanager
def workspace_caches(workspace: Path) -> Iterator[None]:
    """Let this process, and those that it starts, cache rows and verdicts in `workspace`.

    A cache that the environment sets is left alone. `datasets` reads its variable when it is
    imported; if it is already, its setting is changed.
    """
    folder = workspace.resolve() / FOLDER
    wanted = {_DATASETS: folder / "datasets", _JUDGES: folder}
    added = {name: str(path) for name, path in wanted.items() if not os.environ.get(name)}
    config = sys.modules.get("datasets.config")
    before = getattr(config, _DATASETS, None)
    os.environ.update(added)
    if config and _DATASETS in added:
        setattr(config, _DATASETS, wanted[_DATASETS])
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        if config:
            setattr(config, _DATASETS, before)

"""The frozen copy of a continued adapter, which TRL keeps as the reference of DPO and GRPO."""

import shutil
from pathlib import Path

NAME = "ref"
"""What TRL calls it, and the folder that peft saves it in."""


def drop_reference(folder: str | Path) -> None:
    """Remove the copy from what was saved: it is the adapter that the run file names.

    A checkpoint with it would hold two adapters, and a resumed run makes it anew.
    """
    copy = Path(folder) / NAME
    if (copy / "adapter_config.json").exists():
        shutil.rmtree(copy)

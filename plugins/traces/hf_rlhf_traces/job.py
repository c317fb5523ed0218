"""What `hf-rlhf traces pipeline` makes of which files, and where."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf_traces.building import Rows
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.samples import growing_step_rows
from hf_rlhf_traces.spool import Spool

DATASET = "steps"


@dataclass(frozen=True)
class Job:
    """What is made, and where."""

    reading: Mapping[str, Any]
    """Arguments of `hf_rlhf_traces.read_command.read`."""
    form: Format
    layout: Layout
    home: Path
    """The folder of the spools: DIR/pipeline/KEY."""

    @property
    def store(self) -> Path:
        """DIR."""
        return Path(self.reading["out"])

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `steps`, as the verb has them."""
        return self.layout.settings()

    @property
    def rows(self) -> Rows:
        """How rows are made."""
        return Rows(DATASET, partial(growing_step_rows, form=self.form), self.layout)

    def spool(self, stage: str) -> Spool:
        """Return where parts of a stage are."""
        return Spool(self.home, stage)

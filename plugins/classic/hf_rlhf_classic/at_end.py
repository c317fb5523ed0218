"""Trainers that measure their model when training is over, for their report."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hf_rlhf.training import AlreadyTrained


class MeasuresAtEnd:
    """To derive from before the trainer whose `train` is extended."""

    tables: Mapping[str, Any] = MappingProxyType({})
    """What was measured, once training is over."""

    def tables_at_end(self) -> Mapping[str, Any]:
        """Measure; every process calls it, also in a run that has stopped early."""
        raise NotImplementedError

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """Train, and measure what came of it."""
        try:
            output = super().train(resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        except AlreadyTrained:
            self.tables = self.tables_at_end()
            raise
        self.tables = self.tables_at_end()
        return output

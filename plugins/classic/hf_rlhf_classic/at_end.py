"""Trainers that measure their model at the end of training, for their report."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hf_rlhf.training import AlreadyTrained


class MeasuresAtEnd:
    """A base class before the trainer whose `train` is extended."""

    tables: Mapping[str, Any] = MappingProxyType({})
    """The measurements at the end of training."""

    def tables_at_end(self) -> Mapping[str, Any]:
        """Measure; every process calls it, even after an early stop."""
        raise NotImplementedError

    def train(self, resume_from_checkpoint: str | None = None, **kwargs: Any) -> Any:
        """Train, then measure the result."""
        try:
            output = super().train(resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        except AlreadyTrained:
            self.tables = self.tables_at_end()
            raise
        self.tables = self.tables_at_end()
        return output

"""What a model made of a few rows alone and in batches, in the run's record."""

import math

from hf_rlhf.storage.section import Number, Section

EQUAL = "in batches of equal rows"


class Comparison(Section):
    """The largest differences between rows alone and the same rows otherwise, in one dtype."""

    dtype: str | None = None
    """Of the model's output: under autocast, that of autocast."""
    of: str | None = None
    """`the whole model`, or its first layers."""
    differences: dict[str, Number] = {}
    """Form, such as `padded on the left` -> the largest difference from the row alone."""
    spread: Number | None = None
    """The model's own: the largest difference in batches of 2 and 3 equal rows, without padding."""
    floor: Number | None = None
    """What the dtype's rounding explains."""
    from_float32: Number | None = None
    """How far rows alone are from themselves in float32, where that was measured."""

    @property
    def limit(self) -> float:
        """The largest difference that is accepted."""
        return max(2 * (self.spread or 0.0), self.floor or 0.0, 2 * (self.from_float32 or 0.0))

    @property
    def exceeding(self) -> dict[str, Number]:
        """The differences above the limit; in float32 the model's own above the floor, too."""
        found = {
            form: each
            for form, each in self.differences.items()
            if each > self.limit or not math.isfinite(each)
        }
        own = self.spread or 0.0
        return found | (
            {EQUAL: own} if self.dtype == "float32" and own > (self.floor or 0.0) else {}
        )


class ExactnessSection(Section):
    """A few training rows alone, against the same rows padded, packed and in other batches."""

    values: str | None = None
    """What is compared: `log-probabilities` or `scores`."""
    rows: int | None = None
    tokens: int | None = None
    """Of the longest row."""
    comparisons: list[Comparison] = []
    """In the dtype of training; and in float32, where that is another one."""
    not_compared: dict[str, str] = {}
    """What else, and why not."""

"""The section of a run's record on a model's values for rows alone and in batches."""

import math

from hf_rlhf.storage.section import Number, Section

EQUAL = "in batches of equal rows"


class Comparison(Section):
    """The largest differences between rows alone and the same rows otherwise, in one dtype."""

    dtype: str | None = None
    """Dtype of the model's output; under autocast, the dtype of autocast."""
    of: str | None = None
    """`the whole model`, or its first layers."""
    differences: dict[str, Number] = {}
    """Form, such as `padded on the left` -> the largest difference from the row alone."""
    spread: Number | None = None
    """The model's own: the largest difference in batches of 2 and 3 equal rows, unpadded."""
    floor: Number | None = None
    """What the dtype's rounding explains."""
    from_float32: Number | None = None
    """The largest difference of rows alone from the same rows in float32, if measured."""

    @property
    def limit(self) -> float:
        """The largest difference that is accepted."""
        return max(2 * (self.spread or 0.0), self.floor or 0.0, 2 * (self.from_float32 or 0.0))

    @property
    def exceeding(self) -> dict[str, Number]:
        """The differences above the limit; in float32, also the model's own if above the floor."""
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
    """Tokens of the longest row."""
    comparisons: list[Comparison] = []
    """One in the dtype of training, and one in float32 if that is another dtype."""
    own_forms: dict[str, Number] = {}
    """Forms of the trainer's own that are not used, with their difference from the row alone."""
    not_compared: dict[str, str] = {}
    """What was not compared -> the reason."""

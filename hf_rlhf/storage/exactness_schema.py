"""Record section on a model's values for single rows and batches."""

import math

from hf_rlhf.storage.section import Number, Section

EQUAL = "in batches of equal rows"


class Comparison(Section):
    """The largest differences between single rows and the same rows in batches, in one dtype."""

    dtype: str | None = None
    """Dtype of the model's output; under autocast, the dtype of autocast."""
    of: str | None = None
    """The measured part: `the whole model`."""
    differences: dict[str, Number] = {}
    """Form, such as `padded on the left` -> largest difference from the single row."""
    spread: Number | None = None
    """The model's own spread: the largest difference in unpadded batches of 2 and 3 equal rows."""
    floor: Number | None = None
    """The difference that the dtype's rounding explains."""
    from_float32: Number | None = None
    """The largest difference of single rows from float32, if measured."""

    @property
    def limit(self) -> float:
        """The largest difference that is accepted."""
        return max(2 * (self.spread or 0.0), self.floor or 0.0, 2 * (self.from_float32 or 0.0))

    @property
    def exceeding(self) -> dict[str, Number]:
        """Differences above the limit; in float32, also the model's own spread above the floor."""
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
    """A few training rows alone, compared with the same rows padded, packed and batched."""

    values: str | None = None
    """Compared values: `log-probabilities` or `scores`."""
    rows: int | None = None
    tokens: int | None = None
    """Tokens of the longest row."""
    comparisons: list[Comparison] = []
    """A comparison in the training dtype, and in float32 if different."""
    own_forms: dict[str, Number] = {}
    """Unused forms of the trainer, with their difference from the single row."""
    not_compared: dict[str, str] = {}
    """Forms that were not compared -> reason."""

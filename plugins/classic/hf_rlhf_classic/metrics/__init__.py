"""`evaluate.Metric`s of preference learning that ship with the package and need no network.

    from hf_rlhf_classic.metrics import WinRate
    WinRate().compute(predictions=[0.9, 0.2], references=[0.5, 0.2])

The formulas are in `hf_rlhf_classic.evaluation.estimators`, which `hf-rlhf eval` uses too.
"""

from hf_rlhf_classic.metrics.preference import (
    ExpectedCalibrationError,
    KLFromReference,
    PairwiseAccuracy,
    WinRate,
)

__all__ = ["ExpectedCalibrationError", "KLFromReference", "PairwiseAccuracy", "WinRate"]

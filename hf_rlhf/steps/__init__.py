"""Resumable steps: named, known by digests of what they read, skipped when they are up to date.

A `Ledger` records in one JSON file what each finished step was made from, what it wrote and what
came of it; `run_steps` does the steps that are not done; `PartFiles` keeps the numbered parts of
one long step. This room starts no processes and knows nothing of training.
"""

from hf_rlhf.steps.digests import differences, digest, file_digests
from hf_rlhf.steps.ledger import Ledger, Recording
from hf_rlhf.steps.parts import PartFiles
from hf_rlhf.steps.plan import Step, StepStatus, plan_steps, run_steps

__all__ = [
    "Ledger",
    "PartFiles",
    "Recording",
    "Step",
    "StepStatus",
    "differences",
    "digest",
    "file_digests",
    "plan_steps",
    "run_steps",
]

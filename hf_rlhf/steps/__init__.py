"""Resumable steps: named, known by digests of what they read, skipped when they are up to date.

A `Ledger` records in one JSON file what each finished step was made from, what it wrote and what
came of it; `run_steps` does the steps that are not done; `PartFiles` keeps the numbered parts of
one long step. This room starts no processes and knows nothing of training.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

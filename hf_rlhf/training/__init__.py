"""One run: session, checkpoints, resuming, signals, progress, phases.

`hf_rlhf.runs` resolves a run before its session starts; the record describes the outcome.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

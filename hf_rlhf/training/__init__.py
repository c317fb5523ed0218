"""One run: session, checkpoints, resuming, signals, progress, phases.

What a session needs is resolved before it (`hf_rlhf.runs`); what it leaves is in the record.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

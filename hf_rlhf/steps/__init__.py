"""Resumable steps, identified by digests of their inputs and skipped if they are up to date.

A `Ledger` records the inputs, outputs and result of each finished step in a JSON file, and explains
why a step is stale. A `Chain` runs the remaining tasks, here or in separate processes. `PartFiles`
stores the numbered parts of a long step. Nothing here imports the training stack.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

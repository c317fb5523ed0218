"""Resumable steps, identified by digests of their inputs and skipped if they are up to date.

A `Ledger` records the inputs, outputs and result of each finished step in one JSON file, and tells
why a step is stale; a `Chain` does the tasks that are left, here or in processes of their own;
`PartFiles` stores the numbered parts of one long step. Nothing here imports what is trained.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

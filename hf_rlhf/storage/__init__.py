"""Atomic files, the record `run.json`, manifests of checkpoints, secrets, disk space.

Nothing here depends on the kind of training.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

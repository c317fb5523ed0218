"""Resolving a run file into a `Run`: everything is checked before weights load.

Nothing here trains or writes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

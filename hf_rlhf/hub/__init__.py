"""Publishing to the Hub and pulling from it: idempotent, retried, verified.

Only files of allowed types are pushed, and never a secret.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Publishing to the Hub and pulling from it: idempotent, retried, verified.

Nothing is pushed that is not on the list of what a repository may hold.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

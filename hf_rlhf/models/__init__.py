"""Models: finding, loading, adapting and merging them.

Nothing here trains; weights load only in functions whose name says so.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

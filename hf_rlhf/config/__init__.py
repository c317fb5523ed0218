"""Run files: YAML read into typed values, with the line of each; the registry of plugins.

All problems of a file are reported at once, with the line and the closest valid name.
Nothing here loads data or weights.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

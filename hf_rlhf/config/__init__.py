"""A YAML file becomes typed values that know their lines; the registry of plugins.

All problems of a file are reported at once, with line and near name. Nothing here loads data or
weights.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

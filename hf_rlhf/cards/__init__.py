"""Model cards: a record rendered as Markdown, with its plots.

A card states only what is in the record. Nothing here trains, measures or pushes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

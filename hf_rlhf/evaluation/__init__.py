"""Measuring models: rows of metrics, intervals, and models found by name.

Nothing here trains, and nothing here knows what a metric means.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

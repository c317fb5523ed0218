"""Evaluation: models x tasks -> rows -> paired intervals, the same way for every plugin.

Completions are generated and saved, scored, and every mean gets its interval. What is measured of
a completion is up to a plugin's task. Nothing here trains, writes weights or renders a card.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Evaluation: models on tasks, metrics per row, paired intervals; shared by all plugins.

Completions are generated, saved and scored, and every mean has an interval. A plugin's task defines
the metrics of a completion. Nothing here trains, writes weights or renders a card.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

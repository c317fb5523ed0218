"""Monitor the rewards of a training run, and warn or stop if a reward is exploited.

`assess` derives the active signals from a series of measurements, so recorded runs can be replayed.
Nothing here changes what is trained.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

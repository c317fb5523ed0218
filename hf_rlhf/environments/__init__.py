"""Tools and environments that a model may call during generation, as in TRL.

Tools are checked before weights load, passed to TRL's trainers, and called in evaluations like in
training. Nothing here generates, trains or scores.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Environments: what a model may call while it writes, through TRL's `tools` and environments.

Tools are checked before weights load, handed to TRL's trainers, and called in evaluations as TRL
calls them in training. Nothing here generates, trains or scores.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

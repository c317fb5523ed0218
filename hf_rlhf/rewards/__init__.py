"""Rewards composed by name and weight, with gates; judges and text generation through an API.

A reward that cannot score a row abstains; a failure is never a number.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

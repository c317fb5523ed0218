"""Rows from files, folders and the Hub; chat, preference and rollout formats; splits.

Each row keeps its file and line for error messages, and rows that cannot be used are counted by
reason. Nothing here loads a model or depends on rewards.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

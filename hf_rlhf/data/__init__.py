"""Rows from anywhere: files, folders, the Hub; chat, preference and rollout forms; splits.

Each row keeps its file and line for error messages, and a row that cannot be used is counted under
its reason. Nothing here loads a model or knows a reward.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

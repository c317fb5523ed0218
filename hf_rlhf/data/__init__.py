"""Rows from anywhere: files, folders, the Hub, chat and rollout forms.

Each row keeps its file and line for error messages. Nothing here knows a model or a reward.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

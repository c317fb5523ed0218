"""Files that are whole or absent, the record `run.json`, checkpoint manifests, secrets, disks.

Nothing here knows what is trained.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Post-training with rewards you can trust: plugins, composition by name, honest model cards.

What is exported here is the public interface, imported when it is first used. The rooms under it
(`hf_rlhf.data`, `hf_rlhf.rewards`, ...) export what plugins build on; modules inside a room are
private to the package.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Post-training with rewards you can trust: plugins, composition by name, honest model cards.

These exports are the public interface; each is imported when it is first used. The subpackages
(`hf_rlhf.data`, `hf_rlhf.rewards`, ...) export what plugins build on; their modules are private.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

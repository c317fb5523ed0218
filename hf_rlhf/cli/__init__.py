"""The command line `hf-rlhf`: each verb parses its options, calls a subpackage, and prints.

Nothing here is needed from Python: `hf_rlhf` exports the functions behind the verbs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""A local Hugging Face Hub: a server on your disk that the real clients push to and pull from.

::

    from hf_rlhf_local_hub import serve
    with serve("hub-folder") as hub: HfApi(endpoint=hub.url, token="any").create_repo("demo/model")
"""

from hf_rlhf_local_hub.faults import Fault, Faults
from hf_rlhf_local_hub.server import RunningHub, serve

__all__ = ["Fault", "Faults", "RunningHub", "serve"]

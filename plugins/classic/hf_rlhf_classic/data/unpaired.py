"""Load single responses labelled good or bad for KTO: `unpaired`."""

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def unpaired(arguments: ChatRowArguments) -> Loaded:
    """Load responses that were judged individually, for KTO.

    Rows are `{system?, prompt, completion, label}`, or have another form of a prompt with a
    response, as in `sft`, and a column `label`: true, false, 1 or 0.

    Args:
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).
    """
    return load_chat_rows("unpaired", arguments)

"""Load single responses labelled good or bad for KTO: `unpaired`."""

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def unpaired(
    arguments: ChatRowArguments,
) -> Loaded:
    """Load responses that were judged individually, for KTO.

    Rows are `{system?, prompt, completion, label}`, or have another form of a prompt with a
    response, as in `sft`, and a column `label`: true, false, 1 or 0.

    Args:
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).

    Returns:
        Splits `train` and `test` with prompt, completion, label and the other columns; messages, or
        texts where `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: `format: conversational`, and the tokenizer has no chat template.
    """
    return load_chat_rows("unpaired", arguments)

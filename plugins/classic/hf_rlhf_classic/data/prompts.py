"""Load prompts for PPO, GRPO and iterative DPO: `prompts`."""

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def prompts(
    arguments: ChatRowArguments,
) -> Loaded:
    """Load prompts without responses, with the other columns that rewards need.

    Rows are `{system?, prompt}`, or have `question`, `instruction` and `input`, `messages`,
    `conversations`, or hh-rlhf's transcripts; of a conversation that ends with an answer, the turns
    before it are the prompt.

    Args:
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).

    Returns:
        Splits `train` and `test` with prompt and the other columns; messages, or texts where
        `format` is text; and the report.

    Raises:
        DataError: no schema fits, or two do; too many rows cannot be used; a file cannot be read.
        ModelError: `format: conversational`, and the tokenizer has no chat template.
    """
    return load_chat_rows("prompts", arguments)

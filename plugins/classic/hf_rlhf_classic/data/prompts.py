"""Load prompts for PPO, GRPO and iterative DPO: `prompts`."""

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def prompts(arguments: ChatRowArguments) -> Loaded:
    """Load prompts without responses, with the other columns that rewards need.

    Rows are `{system?, prompt}`, or have `question`, `instruction` and `input`, `messages`,
    `conversations`, or hh-rlhf's transcripts; of a conversation that ends with an answer, the turns
    before it are the prompt.

    Args:
        path: as in `sft`, like all other arguments (`hf-rlhf describe sft`).
    """
    return load_chat_rows("prompts", arguments)

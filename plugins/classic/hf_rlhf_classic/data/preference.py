"""Load pairs of answers in common forms for DPO and reward models: `preference`."""

from typing import Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import ChatRowArguments, chat_adapter, load_chat_rows


@chat_adapter
def preference(
    arguments: ChatRowArguments,
    *,
    label: Literal["better", "safer"] = "better",
    margin: Literal["column", "scores", "none"] = "column",
) -> Loaded:
    """Load pairs of a chosen and a rejected answer, for DPO, iterative DPO and reward models.

    Rows are `{system?, prompt, chosen, rejected}`, or have another form of
    docs/reference/classic-data.md: `question, response_chosen, response_rejected`; hh-rlhf
    transcripts; PKU-SafeRLHF; ShareGPT pairs; chosen and rejected as message lists.

    Args:
        label: which of PKU-SafeRLHF's labels decides which response is chosen.
        margin: `column` reads a column `margin` if there is one, `scores` takes score_chosen -
            score_rejected, `none` leaves it out. All rows have a margin, or none.
        path: as in `sft`; the arguments without a description, too (`hf-rlhf describe sft`).
    """
    return load_chat_rows("preference", arguments, label=label, margin=margin)

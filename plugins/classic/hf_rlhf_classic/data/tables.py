"""The tables of schemas of all adapters, to say where rows belong that one of them cannot read."""

from collections.abc import Mapping, Sequence

from hf_rlhf_classic.data import preference, prompts, sft
from hf_rlhf_classic.data.schemas import Schema


def tables() -> Mapping[str, Sequence[Schema]]:
    """Return the schemas by the name of the adapter."""
    return {
        "sft": sft.schemas(),
        "preference": preference.schemas(),
        "prompts": prompts.schemas(),
    }

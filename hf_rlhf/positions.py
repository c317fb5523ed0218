"""Token positions of padded rows, for models that do not derive them from the mask.

TRL pads prompts on the left and passes no `position_ids` (GRPO, RLOO, online DPO, distillation).
GPT-2, GPT-Neo, XGLM, BioGPT and others then count padding, so that log-probabilities of a row
depend on its batch. Rotary positions are relative and not affected.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

_OWN_RULE = "create_position_ids_from_input_ids"


def add_positions(models: Iterable[Any]) -> None:
    """Make causal language models in torch modules derive positions from the attention mask.

    Other values are ignored. Positions are the same as in transformers' `generate`: 0 for the first
    unpadded token. Calls that pass their own, as for packed rows, are unchanged.
    """
    from torch.nn import Module
    from transformers import PreTrainedModel

    modules = {part for model in models if isinstance(model, Module) for part in model.modules()}
    for module in modules:
        if isinstance(module, PreTrainedModel) and _counts(module):
            # peft calls `forward` of the whole model, which bypasses its hooks.
            module.base_model.register_forward_pre_hook(_positions_of_mask, with_kwargs=True)


def _counts(model: Any) -> bool:
    """Return whether a model generates text and takes `position_ids`."""
    config = model.config
    # Image and audio models number their parts by their own rules.
    plain = config.get_text_config() is config and not config.is_encoder_decoder
    # RoBERTa models number from the padding token's id on, and skip padding.
    plain &= not any(hasattr(part, _OWN_RULE) for part in model.modules())
    parameters = inspect.signature(type(model.base_model).forward).parameters
    return plain and bool(model.can_generate()) and "position_ids" in parameters


def _positions_of_mask(
    _: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    mask = kwargs.get("attention_mask")
    tokens = next(iter(args), None)
    for name in ("input_ids", "inputs_embeds"):
        tokens = kwargs.get(name) if tokens is None else tokens
    if mask is None or tokens is None or kwargs.get("position_ids") is not None:
        return None
    count = tokens.shape[1]
    if mask.dim() != 2 or mask.shape[1] < count:  # a mask over pairs of tokens
        return None
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -count:]  # after a cache
    return args, {**kwargs, "position_ids": positions}

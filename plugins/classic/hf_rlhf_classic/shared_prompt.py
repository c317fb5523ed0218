"""Compute each prompt once, followed by all its completions.

GRPO, RLOO and DPO compute the log-probabilities of several completions of a single prompt, and TRL
runs the prompt again for each. Here a forward pre-hook packs the rows of a call into a single row,
with each distinct prompt once, followed by its completions. An attention registered with
transformers lets a completion attend to its prompt and itself. A forward hook moves the values back
to where TRL expects them. There is no cache, so gradients, checkpointing and LoRA work as usual.
The idea is prefix grouping (Liu et al. 2025, Prefix Grouper, arXiv:2506.05433).
"""

from collections.abc import Iterable, Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from hf_rlhf_classic.packed_prompts import LAYOUT, Layout

try:
    from torch.nn.attention import varlen
except ImportError:  # before torch 2.10
    varlen = None  # type: ignore[assignment]

ATTENTION = "prompt_once"
"""The name of the attention; calls without a layout are computed by `sdpa`."""
EQUAL = frozenset(
    {
        *("llama", "mistral", "ministral", "ministral3", "mixtral", "arcee", "smollm3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma3_text", "phi", "phi3"),
        *("olmo", "olmo2", "olmo3", "granite", "granitemoe", "cohere", "cohere2", "glm", "glm4"),
        *("apertus", "ernie4_5", "exaone4", "helium", "hunyuan_v1_dense", "starcoder2"),
        *("gpt2", "gpt_neox"),
    }
)
"""Model types whose values and gradients a test has compared with separate rows."""
_GROUPED: dict[str, Any] = (
    {"enable_gqa": True}
    if varlen is not None and "enable_gqa" in signature(varlen.varlen_attn).parameters
    else {}
)
"""Allows several query heads per key head, as torch 2.11 does without it."""
_LAYERS = {"full_attention", "sliding_attention"}
_UNDERSTOOD = {"input_ids", "attention_mask", "labels", "fused_lm_head", "use_cache"}
_VALUES = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1", "label_mask")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return the attention output of a packed row, shape (1, packed, heads, width), else `sdpa`'s.

    `query`, `key` and `value` have shape (1, heads, packed, width), as transformers passes them.
    """
    layout = kwargs.pop(LAYOUT, None)
    if layout is None:
        others = {"scaling": scaling, "sliding_window": sliding_window, **kwargs}
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return output, None
    if layout.on_gpu and varlen is not None and _fits(value):
        return _flash(layout, (query, key, value), scaling, sliding_window)[None], None
    repeats = getattr(module, "num_key_value_groups", 1)
    padded = [
        each[0].transpose(0, 1).index_select(0, layout.padded)
        for each in (query, repeat_kv(key, repeats), repeat_kv(value, repeats))
    ]
    outputs = torch.cat([*_padded(layout, padded, scaling, sliding_window)])
    return outputs.index_select(0, layout.order)[None], None


def _fits(value: Tensor) -> bool:
    """Return whether FlashAttention computes values of this dtype and width."""
    return value.dtype in (torch.float16, torch.bfloat16) and value.shape[-1] in range(8, 193, 8)


def _flash(layout: Layout, given: Sequence[Tensor], scale: float | None, window: int | None) -> Any:
    """Return the outputs, shape (packed, heads, width), without padding or masks."""
    # Under autocast, norms and rotary positions leave float32.
    q, k, v = (each[0].transpose(0, 1).to(given[-1].dtype) for each in given)
    k, v = (each.index_select(0, layout.keys) for each in (k, v))
    (ends, longest, key_ends, most), before = layout.ends, (window or 0) - 1
    return varlen.varlen_attn(
        q, k, v, ends, key_ends, longest, most, scale=scale, window_size=(before, 0), **_GROUPED
    )


def _padded(
    layout: Layout, padded: Sequence[Tensor], scale: float | None, window: int | None
) -> Iterator[Tensor]:
    """Yield the outputs of prompts, then of completions, of padded queries, keys and values."""
    inner, outer = layout.seen(window)
    parts = [each.tensor_split([layout.prompts.numel()]) for each in padded]
    q, k, v = (_rows(each, layout.prompts) for each, _ in parts)
    own, k_own, v_own = (_rows(each, layout.completions) for _, each in parts)
    if layout.prompts.numel():
        # Padding stands on the right, where no token of a prompt sees it.
        mask = None if window is None else inner
        seen = scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)
        yield seen.transpose(1, 2).flatten(0, 1)
    copies = (each.index_select(0, layout.owners) for each in (k, v))
    keys, values = (torch.cat(pair, 2) for pair in zip(copies, (k_own, v_own), strict=True))
    seen = scaled_dot_product_attention(own, keys, values, outer, scale=scale)
    yield seen.transpose(1, 2).flatten(0, 1)


def _rows(values: Tensor, tokens: Tensor) -> Tensor:
    """Return values of tokens as sdpa takes them: shape (rows, heads, tokens, width)."""
    return values.view(*tokens.shape, *values.shape[1:]).transpose(1, 2)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class PromptOnce:
    """Hooks on the models that a trainer calls, with counts of the tokens that they saved."""

    def __init__(self, models: Iterable[Any]) -> None:
        """Install the hooks. TRL's fused head must be installed."""
        self.tokens = self.packed = 0
        """Tokens of the rows, without padding, and the number that was computed instead."""
        self._layout: Layout | None = None
        self._handles, self._before = [], []
        for model in models:
            base = _base(model)
            self._before.append((base, base.config._attn_implementation))
            base.set_attn_implementation(ATTENTION)
            self._handles += [
                model.register_forward_pre_hook(self._pack, with_kwargs=True),
                model.register_forward_hook(self._unpack),
            ]

    def remove(self) -> None:
        """Remove the hooks and restore the models' attention."""
        for handle in self._handles:
            handle.remove()
        for base, implementation in self._before:
            base.set_attn_implementation(implementation)
        self._handles, self._before = [], []

    def _pack(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        self._layout = None
        if args or not kwargs.get("fused_lm_head") or not kwargs.keys() <= _UNDERSTOOD:
            return None
        rows = [kwargs[name] for name in ("input_ids", "attention_mask", "labels")]
        if torch.is_grad_enabled():
            self.tokens += int(rows[1].sum())
        self._layout = layout = Layout.of(*rows)
        if layout is None:
            self.packed += int(rows[1].sum()) if torch.is_grad_enabled() else 0
            return None
        self.packed += layout.tokens.numel() if torch.is_grad_enabled() else 0
        return (), {
            **{name: kwargs[name] for name in kwargs if name != "labels"},
            "shift_labels": layout.targets,
            **layout.arguments(),
        }

    def _unpack(self, _: nn.Module, args: Any, output: Any) -> Any:
        layout, self._layout = self._layout, None
        if layout is None:
            return None
        for name in _VALUES:
            if (value := getattr(output, name, None)) is not None:
                output[name] = layout.back(value)
        return output


def obstacle(model: Any) -> str:
    """Return why the prompts of a model are not shared, or an empty string."""
    base = _base(model)
    if reason := unknown(base.config):
        return reason
    if (own := base.config._attn_implementation) != "sdpa":
        return f"its attention is {own}; only sdpa is known to be equal"
    if getattr(base.config, "attn_logit_softcapping", None):
        return "its attention caps its logits"
    if any(config.is_prompt_learning for config in getattr(model, "peft_config", {}).values()):
        return "prompt tuning puts tokens before each row"
    if others := sorted({*(getattr(base.config, "layer_types", None) or ())} - _LAYERS):
        return f"it has layers of {', '.join(others)}"
    if rate := _dropout(base):
        return f"a dropout of {rate:g} draws other numbers for each copy of a prompt"
    return ""


def unknown(config: Any) -> str:
    """Return why a model's architecture is not supported, or an empty string."""
    kind = config.get_text_config().model_type
    return "" if kind in EQUAL else f"models of type {kind} are not among those found equal"


def _dropout(model: nn.Module) -> float:
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    rates.append(getattr(model.config, "attention_dropout", None) or 0.0)
    return float(max(rates))


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model

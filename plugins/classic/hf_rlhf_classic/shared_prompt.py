"""Each prompt once: the completions of a prompt are computed behind one copy of it.

GRPO, RLOO and DPO compute the log-probabilities of several completions of one prompt, and TRL runs
the prompt again for each. Here a forward pre-hook puts the rows of a call into one packed row, in
which each distinct prompt stands once with its completions behind it; an attention registered with
transformers lets a completion see its prompt and itself; a forward hook puts the values back where
TRL expects them. There is no cache, so gradients, checkpointing and LoRA need nothing further.
The idea is that of prefix grouping (Liu et al. 2025, Prefix Grouper, arXiv:2506.05433).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "prompt_once"
"""The name of the attention, which computes every other call as `sdpa` does."""
LAYOUT = "prompt_layout"
"""The name under which a model hands the layout on to its attention."""
EQUAL = frozenset(
    {
        *("llama", "mistral", "ministral", "ministral3", "mixtral", "arcee", "smollm3"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma3_text", "phi", "phi3"),
        *("olmo", "olmo2", "olmo3", "granite", "granitemoe", "cohere", "cohere2", "glm", "glm4"),
        *("apertus", "ernie4_5", "exaone4", "helium", "hunyuan_v1_dense", "starcoder2"),
        *("gpt2", "gpt_neox"),
    }
)
"""Model types whose values and gradients a test has found equal to those of rows alone."""
IGNORED = -100
_LAYERS = {"full_attention", "sliding_attention"}
_UNDERSTOOD = {"input_ids", "attention_mask", "labels", "fused_lm_head", "use_cache"}
_VALUES = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1", "label_mask")


@dataclass(frozen=True)
class Group:
    """One prompt and its completions, by their places in the packed row.

    The last token of the prompt begins each completion, since it predicts the first token of it.
    """

    start: int
    length: int
    """Of the prompt without its last token; 0 if it is one token."""
    index: Tensor
    """Shape (completions, longest): places of the tokens of each; the last one is repeated."""
    real: Tensor
    """Shape (completions, longest): False for what only fills a shorter completion up."""


@dataclass(frozen=True)
class Layout:
    """Rows of a batch, packed into one with each prompt once."""

    tokens: Tensor
    """Shape (1, packed)."""
    positions: Tensor
    """Shape (1, packed): as in the row alone."""
    targets: Tensor
    """Shape (1, packed): the token that each one predicts, -100 where none is scored."""
    groups: Sequence[Group]
    shape: tuple[int, int]
    """Of TRL's values: rows, and their tokens but the first."""
    places: tuple[Tensor, Tensor, Tensor]
    """Row, column and place in the packed row of each value."""

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, labels: Tensor) -> "Layout | None":
        """Return the layout of a call of TRL's; None where no two completions share a prompt.

        Args:
            ids, mask, labels: shape (rows, tokens), padded on either side. A prompt is what stands
                before the first label; a row without labels has no value and is left out.
        """
        groups: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
        known = (labels != IGNORED).cpu()
        for row, (own, scored) in enumerate(zip(mask.bool().cpu(), known, strict=True)):
            columns = own.nonzero()[:, 0]
            # The first token of a row is predicted by nothing.
            begins = scored[columns].nonzero()[:, 0].clamp(min=1)
            if not len(begins):
                continue
            first = int(begins[0])
            prompt = tuple(ids[row, columns[:first].to(ids.device)].tolist())
            groups.setdefault(prompt, []).append((row, columns[first - 1 :]))
        if not any(len(members) > 1 for members in groups.values()):
            return None
        return _pack(groups, ids, labels)

    def back(self, packed: Tensor) -> Tensor:
        """Return values of the packed row, shape (1, packed), in TRL's form; 0 for the rest."""
        rows, columns, places = (each.to(packed.device) for each in self.places)
        return packed.new_zeros(self.shape).index_put((rows, columns), packed[0, places])


def _pack(
    groups: Mapping[tuple[int, ...], Sequence[tuple[int, Tensor]]], ids: Tensor, labels: Tensor
) -> Layout:
    tokens, positions, targets, placed, packed = [], [], [], [], []
    end, device = 0, ids.device
    for prompt, members in groups.items():
        start, length = end, len(prompt) - 1
        tokens.append(torch.tensor(prompt[:-1], dtype=ids.dtype, device=device))
        positions.append(torch.arange(length, device=device))
        targets.append(labels.new_full((length,), IGNORED))
        end += length
        longest = max(len(columns) for _, columns in members) - 1
        filled = torch.arange(longest, device=device)
        index, real = [], []
        for row, columns in members:
            columns = columns.to(device)
            count = len(columns) - 1
            tokens.append(ids[row, columns[:-1]])
            targets.append(labels[row, columns[1:]])
            positions.append(torch.arange(length, length + count, device=device))
            places = torch.arange(end, end + count, device=device)
            placed.append((torch.full_like(columns[1:], row), columns[1:] - 1, places))
            index.append(end + filled.clamp(max=count - 1))
            real.append(filled < count)
            end += count
        packed.append(Group(start, length, torch.stack(index), torch.stack(real)))
    rows, columns, places = (torch.cat(each) for each in zip(*placed, strict=True))
    return Layout(
        tokens=torch.cat(tokens)[None],
        positions=torch.cat(positions)[None],
        targets=torch.cat(targets)[None],
        groups=packed,
        shape=(ids.shape[0], ids.shape[1] - 1),
        places=(rows, columns, places),
    )


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
    """Return the attention of a packed row, shape (1, packed, heads, width); else `sdpa`'s.

    `query`, `key` and `value` have shape (1, heads, packed, width), as transformers gives them.
    """
    layout = kwargs.pop(LAYOUT, None)
    if layout is None:
        others = {"scaling": scaling, "sliding_window": sliding_window, **kwargs}
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **others)
        return output, None
    repeats = getattr(module, "num_key_value_groups", 1)
    key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    parts = [
        part
        for group in layout.groups
        for part in _of_group(group, query, key, value, scaling, sliding_window)
    ]
    output = torch.cat([each for _, each in parts])
    places = torch.cat([each for each, _ in parts])
    return torch.empty_like(output).index_copy(0, places, output)[None], None


def _of_group(
    group: Group, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield places in the packed row and their outputs: of the prompt, then of its completions."""
    device, before, end = query.device, group.length, group.start + group.length
    q, k, v = (each[:, :, group.start : end] for each in (query, key, value))
    if before:
        seen = scaled_dot_product_attention(q, k, v, _seen(before, 0, window, device), scale=scale)
        yield torch.arange(group.start, end, device=device), seen[0].transpose(0, 1)
    index, real = group.index.to(device), group.real.to(device)
    rows, longest = index.shape
    own, k_own, v_own = (each[0][:, index].transpose(0, 1) for each in (query, key, value))
    keys = torch.cat([k.expand(rows, -1, -1, -1), k_own], 2)
    values = torch.cat([v.expand(rows, -1, -1, -1), v_own], 2)
    mask = _seen(longest, before, window, device)
    seen = scaled_dot_product_attention(own, keys, values, mask, scale=scale)
    yield index[real], seen.transpose(1, 2)[real]


def _seen(count: int, before: int, window: int | None, device: torch.device) -> Tensor:
    """Return which of `before + count` tokens each of the last `count` sees."""
    own = torch.arange(before, before + count, device=device)[:, None]
    other = torch.arange(before + count, device=device)
    return (other <= own) & (other > own - (window or before + count))


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class PromptOnce:
    """Hooks on the models that a trainer calls, and what they saved."""

    def __init__(self, models: Iterable[Any]) -> None:
        """Install the hooks; TRL's fused head is in place."""
        self.tokens = self.packed = 0
        """Tokens of the rows, without padding, and those that were computed instead."""
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
        """Leave the models as they were."""
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
        return args, {
            **{name: kwargs[name] for name in kwargs if name != "labels"},
            "input_ids": layout.tokens,
            "position_ids": layout.positions,
            "shift_labels": layout.targets,
            # transformers leaves a mask of four dimensions as it is; the attention has its own.
            "attention_mask": torch.ones(1, 1, 1, 1, device=layout.tokens.device),
            LAYOUT: layout,
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
    """Return that nothing is known of a model's architecture, or an empty string."""
    kind = config.get_text_config().model_type
    return "" if kind in EQUAL else f"models of type {kind} are not among those found equal"


def _dropout(model: nn.Module) -> float:
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    rates.append(getattr(model.config, "attention_dropout", None) or 0.0)
    return float(max(rates))


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model

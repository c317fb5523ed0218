"""Each prompt once: the completions of a prompt are computed behind one copy of it.

GRPO, RLOO and DPO compute the log-probabilities of several completions of one prompt, and TRL runs
the prompt again for each. Here a forward pre-hook puts the rows of a call into one packed row, in
which each distinct prompt stands once with its completions behind it; an attention registered with
transformers lets a completion see its prompt and itself; a forward hook puts the values back where
TRL expects them. There is no cache, so gradients, checkpointing and LoRA need nothing further.
The idea is that of prefix grouping (Liu et al. 2025, Prefix Grouper, arXiv:2506.05433).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
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
SPREAD = 1.25
"""How many times the shortest of them the longest prompt of a block may be, plus 8 tokens."""
_Part = tuple[Tensor, list[Tensor]]
"""Places of a prompt in the packed row, and of each of its completions."""
_LAYERS = {"full_attention", "sliding_attention"}
_UNDERSTOOD = {"input_ids", "attention_mask", "labels", "fused_lm_head", "use_cache"}
_VALUES = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1", "label_mask")


@dataclass(frozen=True)
class Block:
    """Prompts of like lengths, each with as many completions, by places in the packed row.

    The last token of a prompt begins each completion, since it predicts the first token of it.
    Rows of places are filled up to the longest with their last one.
    """

    prompts: Tensor
    """Shape (prompts, longest), each without its last token."""
    prompts_real: Tensor
    """Shape (prompts, longest): False for what only fills up."""
    index: Tensor
    """Shape (completions, longest), those of the first prompt first."""
    real: Tensor
    """Shape (completions, longest)."""
    whole: bool
    """Whether nothing fills up."""
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Of prompts and completions, by the size of the sliding window."""

    def seen(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return which tokens each token of a prompt and of a completion sees."""
        if window not in self.masks:
            count, before = self.prompts.shape
            columns = torch.arange(before + self.index.shape[1], device=self.index.device)
            lengths = self.prompts_real.sum(1)[:, None]
            if count > 1:
                lengths = lengths.repeat_interleave(len(self.index) // count, 0)
            # A completion goes on where its own prompt ends, not where the longest one does.
            places = columns.where(columns < before, columns - before + lengths)
            fills = (columns < before) & (columns >= lengths)
            own = places[:, before:, None]
            outer = _sees(own, places[:, None], window) & ~fills[:, None]
            inner = _sees(columns[:before, None], columns[:before], window)
            self.masks[window] = inner, outer[:, None]
        return self.masks[window]


@dataclass(frozen=True)
class Layout:
    """Rows of a batch, packed into one with each prompt once."""

    tokens: Tensor
    """Shape (1, packed)."""
    positions: Tensor
    """Shape (1, packed): as in the row alone."""
    targets: Tensor
    """Shape (1, packed): the token that each one predicts, -100 where none is scored."""
    blocks: Sequence[Block]
    places: Tensor
    """Shape (rows, tokens): of each token in the packed row; 0 for padding and what ends a row."""
    scored: Tensor
    """Shape (rows, tokens - 1): whether TRL's value there is one of a completion."""

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
            groups.setdefault(prompt, []).append((row, columns))
        if not any(len(members) > 1 for members in groups.values()):
            return None
        return _pack(groups, ids, labels)

    def arguments(self) -> dict[str, Any]:
        """Return the packed row as a model takes it."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            # transformers leaves a mask of four dimensions as it is; the attention has its own.
            "attention_mask": torch.ones(1, 1, 1, 1, device=self.tokens.device),
            LAYOUT: self,
        }

    def back(self, packed: Tensor) -> Tensor:
        """Return values of the packed row, shape (1, packed), in TRL's form; 0 for the rest."""
        places, scored = self.places.to(packed.device), self.scored.to(packed.device)
        return packed[0, places[:, :-1]].where(scored, 0)


def packed_row(prompts: int, rows: int, prompt: int, tokens: int) -> dict[str, Any] | None:
    """Return what a model takes for `rows` of one length with so many prompts; None: rows alone."""
    ids = (torch.arange(rows) % prompts)[:, None].repeat(1, tokens)
    labels = ids.clone()
    labels[:, :prompt] = IGNORED
    layout = Layout.of(ids, torch.ones_like(ids), labels)
    return None if layout is None else layout.arguments()


def _pack(
    groups: Mapping[tuple[int, ...], Sequence[tuple[int, Tensor]]], ids: Tensor, labels: Tensor
) -> Layout:
    tokens, positions, targets, parts = [], [], [], []
    end, device, placed = 0, ids.device, torch.zeros_like(ids)
    scored = torch.zeros_like(ids, dtype=torch.bool)
    for prompt, members in groups.items():
        length = len(prompt) - 1
        begin = torch.arange(end, end + length, device=device)
        tokens.append(torch.tensor(prompt[:-1], dtype=ids.dtype, device=device))
        positions.append(torch.arange(length, device=device))
        targets.append(labels.new_full((length,), IGNORED))
        end += length
        completions = []
        for row, columns in members:
            before, own = columns.to(device).tensor_split([length])
            count = len(own) - 1
            tokens.append(ids[row, own[:-1]])
            targets.append(labels[row, own[1:]])
            positions.append(torch.arange(length, length + count, device=device))
            completions.append(torch.arange(end, end + count, device=device))
            placed[row, before] = begin
            placed[row, own[:-1]], scored[row, own[1:]] = completions[-1], True
            end += count
        parts.append((begin, completions))
    return Layout(
        tokens=torch.cat(tokens)[None],
        positions=torch.cat(positions)[None],
        targets=torch.cat(targets)[None],
        blocks=[_block(alike) for alike in _alike(parts)],
        places=placed,
        scored=scored[:, 1:],
    )


def _alike(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield prompts with as many completions and like lengths, so that little is filled up."""
    alike: list[_Part] = []
    for part in sorted(parts, key=_sizes):
        count, length, longest = _sizes(part)
        if alike:
            others, shortest, least = _sizes(alike[0])
            near = length <= SPREAD * shortest + 8 and longest <= SPREAD * least + 8
            if count != others or not near:
                yield alike
                alike = []
        alike.append(part)
    yield alike


def _sizes(part: _Part) -> tuple[int, int, int]:
    prompt, completions = part
    return len(completions), len(prompt), max(map(len, completions))


def _block(parts: Sequence[_Part]) -> Block:
    prompts, prompts_real = _filled([prompt for prompt, _ in parts])
    index, real = _filled([each for _, completions in parts for each in completions])
    sizes = {(len(prompt), len(each)) for prompt, completions in parts for each in completions}
    return Block(prompts, prompts_real, index, real, len(sizes) == 1)


def _filled(places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of places, each filled up with its last one, and which of them are real."""
    sizes = torch.tensor([len(each) for each in places], device=places[0].device)[:, None]
    columns = torch.arange(int(sizes.max()), device=sizes.device)
    padded = pad_sequence(list(places), batch_first=True)
    return padded.gather(1, columns.minimum((sizes - 1).clamp(min=0))), columns < sizes


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
        for block in layout.blocks
        for part in _of_block(block, query[0], key[0], value[0], scaling, sliding_window)
    ]
    output = torch.cat([each for _, each in parts])
    places = torch.cat([each for each, _ in parts])
    return torch.empty_like(output).index_copy(0, places, output)[None], None


def _of_block(
    block: Block, query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield places in the packed row and their outputs: of prompts, then of their completions."""
    count, before = block.prompts.shape
    inner, outer = block.seen(window)
    q, k, v = (each[:, block.prompts].transpose(0, 1) for each in (query, key, value))
    if before:
        # Padding stands on the right, where no token of a prompt sees it.
        mask = None if window is None else inner
        seen = scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale)
        real = block.prompts_real
        yield _kept(block.prompts, real, block), _kept(seen.transpose(1, 2), real, block)
    rows = len(block.index) // count
    own, k_own, v_own = (each[:, block.index].transpose(0, 1) for each in (query, key, value))
    keys = torch.cat([k.repeat_interleave(rows, 0), k_own], 2)
    values = torch.cat([v.repeat_interleave(rows, 0), v_own], 2)
    seen = scaled_dot_product_attention(own, keys, values, outer, scale=scale)
    yield _kept(block.index, block.real, block), _kept(seen.transpose(1, 2), block.real, block)


def _kept(values: Tensor, real: Tensor, block: Block) -> Tensor:
    """Return values, shape (rows, longest, ...), in one row without those of what fills up."""
    return values.flatten(0, 1) if block.whole else values[real]


def _sees(own: Tensor, other: Tensor, window: int | None) -> Tensor:
    causal = other <= own
    return causal if window is None else causal & (other > own - window)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class PromptOnce:
    """Hooks on the models that a trainer calls, and what they saved."""

    def __init__(self, models: Iterable[Any], halves: bool = False) -> None:
        """Install the hooks.

        TRL's fused head is in place; or (`halves`) the logits of whole rows are asked for, and the
        first half of the rows has the prompts of the second.
        """
        self.halves = halves
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
        if self.halves and len(args) == 1 and kwargs.keys() == {"attention_mask"}:
            kwargs = {"input_ids": args[0], **kwargs}
            rows = [*kwargs.values(), after_common(*kwargs.values())]
        elif args or not kwargs.get("fused_lm_head") or not kwargs.keys() <= _UNDERSTOOD:
            return None
        else:
            rows = [kwargs[name] for name in ("input_ids", "attention_mask", "labels")]
        if torch.is_grad_enabled():
            self.tokens += int(rows[1].sum())
        self._layout = layout = Layout.of(*rows)
        if layout is None:
            self.packed += int(rows[1].sum()) if torch.is_grad_enabled() else 0
            return None
        self.packed += layout.tokens.numel() if torch.is_grad_enabled() else 0
        targets = {} if self.halves else {"shift_labels": layout.targets}
        return (), {
            **{name: kwargs[name] for name in kwargs if name != "labels"},
            **targets,
            **layout.arguments(),
        }

    def _unpack(self, _: nn.Module, args: Any, output: Any) -> Any:
        layout, self._layout = self._layout, None
        if layout is None:
            return None
        if self.halves:
            output["logits"] = output.logits[0, layout.places.to(output.logits.device)]
            return output
        for name in _VALUES:
            if (value := getattr(output, name, None)) is not None:
                output[name] = layout.back(value)
        return output


def after_common(ids: Tensor, mask: Tensor) -> Tensor:
    """Return labels, shape (rows, tokens): of each pair of rows what follows their common tokens.

    Row r and row r + rows / 2 are a pair. Rows that are equal differ by their last token.
    """
    if len(ids) % 2:
        return ids.masked_fill(mask == 0, IGNORED)
    own = mask.bool()
    (first, second), (seen, seen_second) = ids.chunk(2), own.chunk(2)
    columns = torch.arange(ids.shape[1], device=ids.device)
    last = (columns * own).amax(1)
    differ = (first != second) | (seen != seen_second)
    begin = columns.expand_as(differ).where(differ, ids.shape[1]).amin(1).repeat(2)
    begin = torch.minimum(begin, torch.minimum(last, last.roll(len(first))))
    return ids.masked_fill(~own | (columns < begin[:, None]), IGNORED)


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

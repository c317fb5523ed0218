"""Small models: create a fresh Llama with its tokenizer, and save it.

Equal seeds give equal weights, up to rounding, which depends on the processor and the number of
threads.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_rlhf_worlds.tokenizers import END, PAD, ROLES, trained_on

HEAD = 16
"""Width of an attention head."""


def small_llama(
    tokenizer: Any,
    *,
    seed: int,
    hidden: int,
    layers: int,
    positions: int,
    widening: int = 2,
    **settings: Any,
) -> Any:
    """Return a random Llama for a tokenizer, with tied embeddings and no first token.

    The global random state of torch is preserved.

    Args:
        tokenizer: determines the size of the vocabulary, the pad token and the end token.
        seed: of the weights.
        hidden: width; a multiple of 16, the width of a head.
        layers: number of layers.
        positions: the longest row, in tokens.
        widening: width of the feed-forward layers, in hidden widths.
        settings: further settings of `LlamaConfig`; they override these.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": widening * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": hidden // HEAD,
        "head_dim": HEAD,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        **settings,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**settings))


def save_model(
    model: Any, tokenizer: Any, folder: str | os.PathLike[str], **generation: Any
) -> None:
    """Write weights (float32 safetensors), config, generation config and tokenizer to `folder`.

    The generation config gets the tokenizer's pad and end token, and the `generation` settings.
    """
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    for name, value in {**ends, **generation}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>"
    "{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tiny_base(folder: Path, texts: Iterable[str], *, seed: int = 0) -> Path:
    """Write a random two-layer Llama (about 150,000 parameters) and a tokenizer to `folder`.

    The tokenizer takes any text, with 1,024 tokens learned from `texts`; there is room for 2,048
    tokens. The weights are random, so any later skill comes from an adapter.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained_on(texts, pieces="", special=(PAD, END, *ROLES[:3]), size=1024),
        pad_token=PAD,
        eos_token=END,
        model_max_length=2048,
    )
    tokenizer.chat_template = _TEMPLATE
    model = small_llama(tokenizer, seed=seed, hidden=64, layers=2, positions=2048)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

"""Small models: a fresh Llama, its training by hand-written stages, sampling, and saving.

The same seed gives the same weights, up to rounding, which depends on the processor and the number
of threads.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf_worlds.tokenizers import END, PAD, ROLES, trained_on

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a token for which the loss does not count."""
HEAD = 16
"""Width of an attention head."""
WARM_UP = 50
"""Steps over which the learning rate rises."""
Schedule = Callable[[int], float]
"""Number of a step, from 1 -> share of the learning rate."""


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

    Torch's own random numbers are left as they were.

    Args:
        tokenizer: decides the size of the vocabulary, the pad token and the end token.
        seed: of the weights.
        hidden: width; a multiple of 16, the width of a head.
        layers: how many.
        positions: the longest row, in tokens.
        widening: width of the feed-forward layers, in hidden widths.
        settings: further ones of `LlamaConfig`; they override these.
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


def padded(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int
) -> tuple["Tensor", "Tensor"]:
    """Return the ids and labels of rows, each (rows, longest), padded on the right.

    Causal attention needs no mask for the padding. Labels are padded with IGNORED.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = ([torch.tensor(row) for row in side] for side in zip(*rows, strict=True))
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, IGNORED)


def warm_up(step: int) -> float:
    """Rise over the first 50 steps, then stay."""
    return min(1.0, step / WARM_UP)


def warm_up_and_decay(steps: int) -> Schedule:
    """Rise over the first 50 steps, and fall to 0.02 over the second half of `steps`."""
    return lambda step: min(warm_up(step), max(0.02, 2 * (1 - step / steps)))


def train(
    model: Any,
    name: str,
    losses: Iterator["Tensor"],
    steps: int,
    learning_rate: float,
    schedule: Schedule,
    *,
    enough: float = -math.inf,
    smoothing: float = 0.02,
    every: int = 100,
) -> float:
    """Take AdamW steps with gradients clipped to norm 1; return the smoothed loss.

    Args:
        model: all of its parameters are trained.
        name: of the stage, for the progress lines.
        losses: computes a fresh scalar loss per step, with the weights as they then are.
        steps: at most so many.
        learning_rate: at a share of 1.
        schedule: the share of it that a step has.
        enough: stop when the smoothed loss is below this.
        smoothing: share of the newest loss in the smoothed one.
        every: steps between two printed lines.
    """
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    smooth, started = math.inf, time.perf_counter()
    for step, loss in enumerate(islice(losses, steps), start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * schedule(step)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        smooth = value if step == 1 else (1 - smoothing) * smooth + smoothing * value
        if step % every == 0:
            seconds = time.perf_counter() - started
            print(f"{name} step {step} loss {smooth:.3f} {seconds:.0f} s", flush=True)
        if smooth < enough:
            break
    return smooth


def sample(
    model: Any, tokenizer: Any, batch: Any, length: int, *, seed: int = 0, greedy: bool = False
) -> list[str]:
    """Return one completion per row of a padded batch, special tokens left out.

    Sampled at temperature 1 from all tokens, at most `length` of them; `greedy`: the likeliest.
    """
    import torch

    torch.manual_seed(seed)
    choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    model.eval()
    with torch.inference_mode():
        out = model.generate(**batch, **choice, max_new_tokens=length)
    model.train()
    width = batch["input_ids"].shape[1]
    texts: list[str] = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    return texts


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
    tokens. The weights are random: whatever it can do later, an adapter has learned.
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

"""What builders of small models share: a fresh Llama, its training, and how it is saved.

For models that a plugin ships or makes on the spot, so that its trainers can be tried on a CPU. A
builder draws its own rows and says for which tokens the loss counts; the same seed then gives the
same weights, up to rounding, which depends on the processor and the number of threads.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
        tokenizer: gives the size of the vocabulary, the pad token and the end token.
        seed: of the weights.
        hidden: width; a multiple of 16, the width of a head.
        layers: how many.
        positions: the longest row, in tokens.
        widening: width of the feed-forward layers, in hidden widths.
        settings: further ones of `LlamaConfig`; they go before these.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    own = {
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
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**own | settings))


def padded(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int
) -> tuple["Tensor", "Tensor"]:
    """Return the ids and labels of rows, each (rows, longest), padded on the right.

    Causal attention needs no mask for what stands there. The labels are padded with IGNORED.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = ([torch.tensor(one) for one in side] for side in zip(*rows, strict=True))
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, IGNORED)


def warm_up(step: int) -> float:
    """Rise over the first 50 steps, and stay."""
    return min(1.0, step / WARM_UP)


def warm_up_and_decay(steps: int) -> Schedule:
    """Rise over the first 50 steps, and fall to 0.02 over the second half of `steps`."""
    return lambda step: min(warm_up(step), max(0.02, 2 * (1 - step / steps)))


class Training:
    """One stage of training: AdamW steps with gradients clipped to norm 1, on any loss.

    The smoothed loss is printed now and then.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        learning_rate: float,
        schedule: Schedule,
        *,
        smoothing: float = 0.02,
        every: int = 100,
    ) -> None:
        """Begin a stage.

        Args:
            model: whose parameters are trained, all of them.
            name: of the stage, for what is printed.
            learning_rate: at a share of 1.
            schedule: which share of it a step has.
            smoothing: share of the newest loss in the smoothed one.
            every: steps from one printed line to the next.
        """
        import torch

        self.model, self.name, self.schedule = model, name, schedule
        self.learning_rate, self.smoothing, self.every = learning_rate, smoothing, every
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.steps = 0
        """Taken so far."""
        self.loss = math.inf
        """Smoothed over about 1 / smoothing steps."""
        self.started = time.perf_counter()

    def step(self, loss: "Tensor") -> None:
        """Take a step down the gradient of `loss`, a number."""
        import torch

        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * self.schedule(self.steps)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        value, new = float(loss.detach()), self.smoothing
        self.loss = value if self.steps == 1 else (1 - new) * self.loss + new * value
        if self.steps % self.every == 0:
            seconds = time.perf_counter() - self.started
            said = f"{self.name} step {self.steps} loss {self.loss:.3f} {seconds:.0f} s"
            print(said, flush=True)


def save_model(
    model: Any, tokenizer: Any, folder: str | os.PathLike[str], **generation: Any
) -> None:
    """Write weights (float32 safetensors), config, generation config and tokenizer to `folder`.

    The generation config gets the tokenizer's pad and end token, and what `generation` sets.
    """
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    for name, value in {**ends, **generation}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

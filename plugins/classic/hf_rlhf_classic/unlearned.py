"""Detect special tokens in responses that the base model never learned.

Tokens that a base never saw have nearly the same row in its output embedding. LoRA on other modules
moves all their logits together, so it cannot teach any of them, for example the end of a turn;
training that embedding can (measured: experiments/classic_learning/README.md). If it is tied to the
input embedding, LoRA on the input embedding does not change it: peft copies, or adds to, the
input's use of it alone.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ModelError
from hf_rlhf.models import Stored, lora_config, open_checkpoint
from hf_rlhf.runs import Run
from hf_rlhf_classic.encoding import Encoded

_HEADS, _INPUTS = ("lm_head", "embed_out"), ("embed_tokens", "wte", "embed_in")
_ROWS = 32
"""Number of training rows to search for special tokens."""
_COMPARED = 512
"""Number of embedding rows to compare each with."""
_ALIKE, _ENOUGH = 0.98, 3
"""Minimum cosine, and number of similar rows, for an unseen token."""


def unlearned(run: Run, encode: Callable[[Mapping[str, Any]], Encoded]) -> Iterator[str]:
    """Yield notes on LoRA that must teach tokens which the base has never learned."""
    if not run.model.use_peft or not (wanted := sorted(_special(run, encode))):
        return
    try:
        checkpoint = open_checkpoint(Path(run.model_path))
    except ModelError:
        return
    tensors = {
        key.removesuffix(".weight").rpartition(".")[2]: checkpoint[key] for key in checkpoint
    }
    # A tied matrix has a single name in the checkpoint, the input's.
    name = next((each for each in (*_HEADS, *_INPUTS) if each in tensors), "")
    module = name if name in _HEADS else _HEADS[0]
    config: Any = lora_config(run)
    targets, saved = config.target_modules or (), config.modules_to_save or ()
    trained = [*([targets] if isinstance(targets, str) else targets), *saved]
    if not name or len(tensors[name].shape) != 2 or any(module in each for each in trained):
        return
    unseen = run.tokenizer.convert_ids_to_tokens(_unseen(tensors[name], wanted))
    if unseen:
        yield (
            f"the base seems never to have learned {', '.join(map(repr, unseen))}, which responses "
            "hold, and LoRA that leaves its embedding as it is cannot teach it: begin with a model "
            f"that knows it, train all weights, or add `lora_modules_to_save: [{module}]`"
        )


def _special(run: Run, encode: Callable[[Mapping[str, Any]], Encoded]) -> set[int]:
    special = {*run.tokenizer.all_special_ids, *run.tokenizer.added_tokens_decoder}
    rows = (encode(row) for row in islice(run.dataset["train"], _ROWS))
    pairs = (pair for row in rows for pair in zip(row.ids, row.counted, strict=True))
    return {token for token, counted in pairs if counted and token in special}


def _unseen(stored: Stored, tokens: list[int]) -> list[int]:
    import torch
    from safetensors import safe_open

    size = stored.shape[0]
    tokens = [token for token in tokens if token < size]
    others = range(0, size, max(1, size // _COMPARED))
    with safe_open(stored.file, "pt") as file:
        matrix = file.get_slice(stored.key)

        def rows(places: Any) -> Any:
            read = torch.stack([matrix[position] for position in places]).float()
            return torch.nn.functional.normalize(read, dim=-1)

        alike = rows(tokens) @ rows(others).T >= _ALIKE if tokens else torch.zeros(0, 0)
    return [
        token
        for token, row in zip(tokens, alike, strict=True)
        if int(row.sum()) - int(token in others) >= _ENOUGH
    ]

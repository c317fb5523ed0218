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

_HEADS = ("lm_head", "embed_out")
_ROWS = 32
"""Number of training rows to search for special tokens."""
_COMPARED = 512
"""Number of embedding rows to compare each with."""
_ALIKE, _ENOUGH = 0.98, 3
"""Minimum cosine, and number of similar rows, for an unseen token."""


def unlearned(run: Run, encode: Callable[[Mapping[str, Any]], Encoded]) -> Iterator[str]:
    """Yield notes on LoRA that must teach tokens which the base has never learned."""
    if not run.model.use_peft:
        return
    stored = _output_embedding(Path(run.model_path))
    wanted = sorted(_special(run, encode))
    if stored is None or not wanted:
        return
    module = _output_module(stored)
    if _is_trained(module, run):
        return
    names = [run.tokenizer.convert_ids_to_tokens(item) for item in _unseen(stored, wanted)]
    if names:
        yield (
            f"the base seems never to have learned {', '.join(map(repr, names))}, which responses "
            "hold, and LoRA that leaves its embedding as it is cannot teach it: begin with a model "
            f"that knows it, train all weights, or add `lora_modules_to_save: [{module}]`"
        )


def _output_module(stored: Stored) -> str:
    name = stored.key.removesuffix(".weight").rpartition(".")[2]
    return name if name in _HEADS else "lm_head"  # tied: the checkpoint has it as the input's


def _is_trained(module: str, run: Run) -> bool:
    config: Any = lora_config(run)
    targets = config.target_modules or ()
    names = [targets] if isinstance(targets, str) else list(targets)
    names += config.modules_to_save or ()
    return any(module in name for name in names)


def _special(run: Run, encode: Callable[[Mapping[str, Any]], Encoded]) -> set[int]:
    tokenizer = run.tokenizer
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    encoded = (encode(row) for row in islice(run.dataset["train"], _ROWS))
    return {
        token
        for item in encoded
        for token, counted in zip(item.ids, item.counted, strict=True)
        if counted and token in special
    }


def _output_embedding(folder: Path) -> Stored | None:
    """Return the output embedding if its file is local; a tied matrix has a single name."""
    try:
        stored = open_checkpoint(folder)
    except ModelError:
        return None
    by_module = {
        key.removesuffix(".weight").rpartition(".")[2]: value for key, value in stored.items()
    }
    names = (*_HEADS, "embed_tokens", "wte", "embed_in")
    result = next((by_module[name] for name in names if name in by_module), None)
    return result if result is not None and len(result.shape) == 2 else None


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

"""Generate completions of prompts with plain transformers."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.models.ends import end_tokens

K = TypeVar("K")


@dataclass(frozen=True)
class Completion:
    """One completion."""

    text: str
    """Without special tokens."""
    ids: Sequence[int]
    """Token ids, the end token included."""
    truncated: bool
    """Whether no end token came within the allowed length."""
    seconds: float = 0.0
    """Its share of the time that its batch took, where that was measured."""


def generate(
    policy: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    spec: EvaluationSpec,
    max_new_tokens: int,
    *,
    seeds: Sequence[int],
    streamer: Any = None,
) -> list[Completion]:
    """Return a completion of each prompt.

    Tokens are sampled from the policy's softmax at the spec's temperature and top_p alone. Further
    settings that the model ships, such as a repetition penalty, are ignored: training samples
    without them, and log-probabilities do not account for them.

    Args:
        policy: a causal language model, on its device.
        tokenizer: of that model.
        prompts: token ids; padded here on the left.
        spec: temperature and top_p; temperature 0 decodes greedily.
        max_new_tokens: the completion's length in tokens.
        seeds: of each prompt, for sampling: whatever else is in the batch, it draws the same.
        streamer: of transformers, which takes the tokens of a single prompt as they come.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import GenerationConfig, LogitsProcessorList

    from hf_rlhf.evaluation.sampling import SampleByRow, seeded

    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = pad([torch.tensor(row) for row in prompts], padding_value=tokenizer.pad_token_id)
    mask = pad([torch.ones(len(row), dtype=torch.long) for row in prompts])
    chosen = LogitsProcessorList()
    if spec.temperature > 0:
        uniform = seeded(seeds, max_new_tokens)
        if str(policy.device).startswith("mps"):  # which has no float64
            uniform = uniform.float()
        uniform = uniform.to(policy.device)
        chosen.append(SampleByRow(uniform, spec.temperature, spec.top_p))
    shipped = policy.generation_config
    ends = end_tokens(tokenizer, shipped)
    # Replaced: `generate` takes from the model's own settings what its arguments leave open.
    policy.generation_config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(ends) or None,
        do_sample=False,
    )
    try:
        with torch.inference_mode():
            # Under ZeRO-3 generate would wait for the other processes, which have other rows.
            output = policy.generate(
                input_ids=ids.to(policy.device),
                attention_mask=mask.to(policy.device),
                synced_gpus=False,
                logits_processor=chosen,
                streamer=streamer,
            )
    finally:
        policy.generation_config = shipped
    completions = []
    for tokens in output[:, ids.shape[1] :].tolist():
        stop = next((index for index, token in enumerate(tokens) if token in ends), None)
        ids = tokens if stop is None else tokens[: stop + 1]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        completions.append(Completion(text, ids, stop is None))
    return completions


def seed_of(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that is as good as independent for different parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def longest_first(texts: Mapping[K, Sequence[int]]) -> list[K]:
    """Return the keys of texts in tokens so that those of like length share a batch.

    Each is padded to the longest of its batch. The longest come first, so that what is too large
    for the memory fails at once.
    """
    return sorted(texts, key=lambda key: -len(texts[key]))

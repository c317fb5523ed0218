"""Generate completions of prompts with plain transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.config import EvaluationSpec


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


def prompt_ids(
    tokenizer: Any, prompts: Sequence[Any], chat_template_kwargs: Mapping[str, Any]
) -> list[list[int]]:
    """Return the token ids of prompts, which are texts or conversations (lists of messages)."""
    if not prompts:
        return []
    if isinstance(prompts[0], str):
        return list(tokenizer(list(prompts))["input_ids"])
    texts = [
        tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False, **chat_template_kwargs
        )
        for prompt in prompts
    ]
    # The chat template already holds the special tokens.
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def generate(
    policy: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    spec: EvaluationSpec,
    max_new_tokens: int,
    *,
    seed: int,
) -> list[Completion]:
    """Return a completion of each prompt.

    Tokens are sampled from the policy's softmax at the spec's temperature and top_p, and nothing
    else: what the model's own generation settings add, such as a repetition penalty, is left out,
    since training samples without it and log-probabilities do not account for it.

    Args:
        policy: a causal language model, on its device.
        tokenizer: of that model.
        prompts: token ids, as `prompt_ids` returns them; padded here on the left.
        spec: temperature and top_p; temperature 0 decodes greedily.
        max_new_tokens: the completion's length in tokens.
        seed: of torch, for sampling.
    """
    import torch
    from transformers import GenerationConfig

    ids, mask = left_padded(prompts, tokenizer.pad_token_id, policy.device)
    sampling: dict[str, Any] = {"do_sample": False}
    if spec.temperature > 0:
        sampling = {"do_sample": True, "temperature": spec.temperature, "top_p": spec.top_p}
        sampling["top_k"] = 0
    own = policy.generation_config
    model_ends = own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id]
    ends = {token for token in (tokenizer.eos_token_id, *model_ends) if token is not None}
    # Replaced: `generate` takes from the model's own settings what its arguments leave open.
    policy.generation_config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(ends) or None,
        **sampling,
    )
    torch.manual_seed(seed)
    try:
        with torch.inference_mode():
            # Under ZeRO-3 generate would wait for the other processes, which have other rows.
            output = policy.generate(input_ids=ids, attention_mask=mask, synced_gpus=False)
    finally:
        policy.generation_config = own
    result = []
    for tokens in output[:, ids.shape[1] :].tolist():
        stop = next((index for index, token in enumerate(tokens) if token in ends), None)
        ids = tokens if stop is None else tokens[: stop + 1]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        result.append(Completion(text, ids, stop is None))
    return result


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[Any, Any]:
    """Return ids and attention mask, both of shape (rows, longest)."""
    import torch

    longest = max(len(row) for row in rows)
    ids = [[pad] * (longest - len(row)) + list(row) for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

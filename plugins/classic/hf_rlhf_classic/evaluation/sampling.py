"""Completions of held-out prompts, and the log-probabilities of their tokens.

A policy is here what it is sampled as: its softmax at `temperature`, and log-probabilities are of
that distribution. `top_p` below 1 cuts its tail off when sampling, but not in them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.specs import EvaluationSpec


def prompt_ids(tokenizer: Any, prompts: Sequence[Any], template: Mapping[str, Any]) -> list[Any]:
    """Return the token ids of prompts, which are texts or lists of messages."""
    if not prompts:
        return []
    if isinstance(prompts[0], str):
        return list(tokenizer(list(prompts))["input_ids"])
    texts = [
        tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=False, **template)
        for one in prompts
    ]
    # The chat template already holds the special tokens.
    return list(tokenizer(texts, add_special_tokens=False)["input_ids"])


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    spec: EvaluationSpec,
    *,
    max_new_tokens: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return for each prompt (token ids) `text`, `ids` with the end token, and `truncated`."""
    import torch
    from transformers import GenerationConfig

    ids, mask = _left_padded(prompts, tokenizer.pad_token_id, model.device)
    sampling: dict[str, Any] = {"do_sample": False}
    if spec.temperature > 0:
        sampling = {"do_sample": True, "temperature": spec.temperature, "top_p": spec.top_p}
        sampling["top_k"] = 0
    ends = _end_tokens(model, tokenizer)
    # Anew, not the model's own: a repetition penalty saved with it would sample from another policy
    # than the one whose log-probabilities are taken.
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(ends),
        **sampling,
    )
    torch.manual_seed(seed)
    with torch.inference_mode():
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    result = []
    for tokens in output[:, ids.shape[1] :].tolist():
        stop = next((place for place, token in enumerate(tokens) if token in ends), None)
        kept = tokens if stop is None else tokens[: stop + 1]
        text = tokenizer.decode(kept, skip_special_tokens=True)
        result.append({"text": text, "ids": kept, "truncated": stop is None})
    return result


def log_probabilities(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float,
    pad: int,
) -> list[list[float]]:
    """Return log p(token | before it) of each completion's tokens, in nats, in float32.

    The sum over a completion is its exact log-probability, end token included, at `temperature`.
    """
    import inspect

    import torch

    whole = [
        [*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)
    ]
    ids, mask = _left_padded(whole, pad, model.device)
    # Of the logits, which are large, only those that predict a completion's tokens.
    keep = max(len(completion) for completion in completions) + 1
    accepted = inspect.signature(model.forward).parameters
    extra: dict[str, Any] = {"logits_to_keep": keep} if "logits_to_keep" in accepted else {}
    if "position_ids" in accepted:
        extra["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask, **extra).logits
        found = []
        for row, completion in enumerate(completions):
            count = len(completion)
            # The last position predicts what would come after the end.
            predicted = logits[row, -count - 1 : -1].float() / temperature
            tokens = torch.tensor(completion, device=predicted.device)[:, None]
            chosen = torch.log_softmax(predicted, dim=-1).gather(-1, tokens)[:, 0]
            found.append([float(one) for one in chosen])
    return found


def _left_padded(rows: Sequence[Sequence[int]], pad: int, device: Any) -> tuple[Any, Any]:
    """Return ids and attention mask, both of shape (rows, longest)."""
    import torch

    longest = max(len(row) for row in rows)
    ids = [[pad] * (longest - len(row)) + list(row) for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    several = ends if isinstance(ends, list) else [ends]
    return {one for one in (tokenizer.eos_token_id, *several) if one is not None}

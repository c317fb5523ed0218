"""Log-probabilities of completions.

A policy is here what it is sampled as: its softmax at `temperature`, and log-probabilities are of
that distribution. `top_p` below 1 cuts its tail off when sampling, but not in them.
"""

from collections.abc import Sequence
from typing import Any

from hf_rlhf.evaluation import left_padded


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
    ids, mask = left_padded(whole, pad, model.device)
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

"""Generate completions with plain transformers, as an evaluation wants them."""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.specs import EvaluationSpec


def generate(
    policy: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    spec: EvaluationSpec,
    max_new_tokens: int,
    *,
    seed: int,
    chat_template_kwargs: Mapping[str, Any],
) -> list[tuple[str, int, bool]]:
    """Return text, number of tokens, and whether it was cut, for each prompt.

    Args:
        policy: a causal language model, on its device.
        tokenizer: of that model; prompts are padded on the left.
        prompts: texts, or conversations (lists of messages).
        spec: temperature and top_p; temperature 0 decodes greedily.
        max_new_tokens: the completion's length in tokens.
        seed: of torch, for sampling.
        chat_template_kwargs: for the chat template.
    """
    import torch

    if isinstance(prompts[0], str):
        texts = list(prompts)
    else:
        texts = [
            tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=False, **chat_template_kwargs
            )
            for prompt in prompts
        ]
    # The chat template already holds the special tokens.
    special = isinstance(prompts[0], str)
    batch = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=special
    ).to(policy.device)
    sampling = (
        {"do_sample": True, "temperature": spec.temperature, "top_p": spec.top_p, "top_k": 0}
        if spec.temperature > 0
        else {"do_sample": False}
    )
    torch.manual_seed(seed)
    with torch.inference_mode():
        output = policy.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
            # Under ZeRO-3 generate would wait for the other processes, which have other rows.
            synced_gpus=False,
            **sampling,
        )
    result = []
    ends = {tokenizer.eos_token_id, *_end_tokens(policy)}
    for tokens in output[:, batch["input_ids"].shape[1] :].tolist():
        stop = next((place for place, token in enumerate(tokens) if token in ends), None)
        kept = tokens if stop is None else tokens[: stop + 1]
        result.append((tokenizer.decode(kept, skip_special_tokens=True), len(kept), stop is None))
    return result


def _end_tokens(policy: Any) -> list[int]:
    ends = policy.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]

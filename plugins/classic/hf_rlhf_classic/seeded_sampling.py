"""Sampling with a seed for each completion, by plain transformers `generate`.

What is sampled for a prompt depends on its own seed, not on which prompts share its batch or on
how many processes there are, as far as the model's arithmetic does not.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from hf_rlhf.errors import ModelError


@dataclass(frozen=True)
class Completion:
    """What was sampled for one prompt."""

    prompt_ids: list[int]
    ids: list[int]
    """With the end-of-sequence token, if it came."""
    text: str
    """Without special tokens."""
    truncated: bool
    """No end-of-sequence token came in time."""


def seed_of(*parts: int | str) -> int:
    """Return a seed in [0, 2**63) that is as good as independent for different parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Turns scores into a choice: the chosen token gets 0, all others -inf, for greedy decoding.

    The token is the inverse of the cumulative distribution (after temperature and top-p) at a
    number from the row's own generator.

    Args:
        seeds: one for each row of the batch.
        steps: the most tokens that are sampled.
        temperature: above 0.
        top_p: the share of probability that is sampled from (Holtzman et al. 2020).
        device: of the scores.
    """

    def __init__(
        self, seeds: Sequence[int], steps: int, temperature: float, top_p: float, device: Any
    ) -> None:
        self.warpers: list[Any] = []
        if temperature != 1.0:
            self.warpers.append(TemperatureLogitsWarper(temperature))
        if top_p < 1.0:
            self.warpers.append(TopPLogitsWarper(top_p))
        # Drawn on the CPU, so that they are the same on every device.
        drawn = [
            torch.rand(steps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            for seed in seeds
        ]
        self.uniform = torch.stack(drawn).to(device)
        self.step = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return scores of shape (rows, vocabulary) that leave one token to each row.

        Raises ModelError where the model's scores are not numbers.
        """
        for warper in self.warpers:
            scores = warper(input_ids, scores)
        cumulative = scores.double().softmax(-1).cumsum(-1)
        total = cumulative[:, -1:]
        if not bool(torch.isfinite(total).all()):
            raise ModelError(
                "the policy's scores are not finite: training has diverged. Lower the learning "
                "rate, or raise beta; the last checkpoint whose loss is finite can be resumed."
            )
        # Below the total, so that a token of probability 0 is never the one.
        below = torch.nextafter(total, torch.zeros_like(total))
        target = torch.minimum(self.uniform[:, self.step, None] * total, below)
        chosen = (cumulative > target).int().argmax(-1, keepdim=True)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)


def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    seeds: Sequence[int],
    *,
    temperature: float,
    top_p: float,
    max_new_tokens: int,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[Completion]:
    """Sample one completion for each prompt, all in one batch, padded on the left.

    Args:
        model: the policy, whole on this process.
        tokenizer: its tokenizer, with a chat template if prompts are conversations.
        prompts: texts, or lists of messages.
        seeds: one for each prompt.
        temperature: above 0.
        top_p: as for `SeededSampling`.
        max_new_tokens: where a completion is cut.
        chat_template_kwargs: for the chat template.

    Raises:
        ModelError: as `SeededSampling` does.
    """
    plain = isinstance(prompts[0], str)
    texts = [
        prompt
        if plain
        else tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False, **(chat_template_kwargs or {})
        )
        for prompt in prompts
    ]
    # The chat template already holds the special tokens.
    batch = tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=plain
    ).to(model.device)
    chooser = SeededSampling(seeds, max_new_tokens, temperature, top_p, model.device)
    with torch.inference_mode():
        output = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            # The model's own defaults for sampling would only be warned about.
            **dict.fromkeys(("temperature", "top_p", "top_k")),
            logits_processor=LogitsProcessorList([chooser]),
            pad_token_id=tokenizer.pad_token_id,
            synced_gpus=False,
        )
    width = batch["input_ids"].shape[1]
    ends = {tokenizer.eos_token_id, *_end_tokens(model)}
    result = []
    for tokens, mask in zip(output.tolist(), batch["attention_mask"].tolist(), strict=True):
        prompt_ids = [token for token, real in zip(tokens[:width], mask, strict=True) if real]
        sampled = tokens[width:]
        stop = next((place for place, token in enumerate(sampled) if token in ends), None)
        ids = sampled if stop is None else sampled[: stop + 1]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        result.append(Completion(prompt_ids, ids, text, stop is None))
    return result


def _end_tokens(model: Any) -> list[int]:
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]

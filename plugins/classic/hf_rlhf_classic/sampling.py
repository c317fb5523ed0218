"""Sampling with numbers of its own for each completion, by plain transformers `generate`.

What is sampled for a prompt depends on its own numbers, not on which prompts share its batch or on
how many processes there are, as far as the model's arithmetic does not. So a resumed run samples
what it would have.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessorList

from hf_rlhf.evaluation import SampleByRow, seeded
from hf_rlhf.models import end_tokens, prompt_ids


def noise(seed: int, step: int, rows: Sequence[int], tokens: int) -> Tensor:
    """Return numbers in (0, 1], float32 (rows, tokens), each row's by its seed, step and number."""
    drawn = [np.random.default_rng([seed, step, row]).random(tokens) for row in rows]
    return torch.from_numpy(1 - np.stack(drawn)).float()


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled, and what ends one."""

    max_new_tokens: int
    ends: frozenset[int]
    """Tokens after which a completion is over; each belongs to it."""
    pad: int
    temperature: float = 1.0
    top_p: float = 1.0
    """The share of probability that is sampled from (Holtzman et al. 2020)."""


def complete(
    model: Any, prompts: Sequence[Sequence[int]], sampling: Sampling, uniform: Tensor
) -> list[list[int]]:
    """Return the completion of each prompt (token ids), its end token included, if one came.

    All are sampled in one batch, padded on the left.

    Args:
        model: the policy, whole on this process.
        prompts: token ids.
        sampling: temperature, top_p, length and ends.
        uniform: one row for each prompt, `max_new_tokens` columns; see `SampleByRow`.

    Raises:
        ModelError: as `SampleByRow` does.
    """
    device = next(model.parameters()).device
    pad_left = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = pad_left([torch.tensor(row) for row in prompts], padding_value=sampling.pad).to(device)
    mask = pad_left([torch.ones(len(row), dtype=torch.long) for row in prompts]).to(device)
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(sampling.ends) or None,
        pad_token_id=sampling.pad,
        use_cache=True,
    )
    chooser = SampleByRow(uniform.to(device), sampling.temperature, sampling.top_p)
    with _only(model, config), torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([chooser]),
        )
    return [until(row, sampling.ends) for row in output[:, ids.shape[1] :].tolist()]


def complete_by_length(
    model: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    uniform: Tensor,
    at_once: int,
) -> list[list[int]]:
    """Do as `complete`, `at_once` prompts at a time, those of like length together."""
    result: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    for start in range(0, len(prompts), at_once):
        rows = order[start : start + at_once]
        created = complete(model, [prompts[row] for row in rows], sampling, uniform[rows])
        result.update(zip(rows, created, strict=True))
    return [result[row] for row in range(len(prompts))]


@dataclass(frozen=True)
class Completion:
    """What was sampled for one prompt."""

    prompt_ids: list[int]
    ids: list[int]
    """With the end token, if it came."""
    text: str
    """Without special tokens."""
    truncated: bool
    """No end token came in time."""


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
    """Sample one completion for each prompt (texts, or lists of messages), each by its seed.

    All are sampled in one batch, until an end-of-sequence token of tokenizer or model. Raises
    ModelError as `SampleByRow` does.
    """
    ends = end_tokens(tokenizer, model.generation_config)
    ids = prompt_ids(tokenizer, prompts, chat_template_kwargs or {})
    sampling = Sampling(max_new_tokens, ends, tokenizer.pad_token_id, temperature, top_p)
    created = complete(model, ids, sampling, seeded(seeds, max_new_tokens))
    texts = tokenizer.batch_decode(created, skip_special_tokens=True)
    return [
        Completion(prompt, item, text, item[-1] not in ends)
        for prompt, item, text in zip(ids, created, texts, strict=True)
    ]


def until(ids: list[int], ends: frozenset[int]) -> list[int]:
    """Return the ids up to the first end token, that one included."""
    stop = next((index for index, token in enumerate(ids) if token in ends), None)
    return ids if stop is None else ids[: stop + 1]


@contextmanager
def _only(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Let no generation setting of the model itself in: a repetition penalty, say.

    The tokens would come from another distribution than the one whose probabilities are used.
    """
    models = [model, *([model.get_base_model()] if hasattr(model, "get_base_model") else [])]
    generation_configs = [model.generation_config for model in models]
    for item in models:
        item.generation_config = config
    try:
        yield
    finally:
        for item, own in zip(models, generation_configs, strict=True):
            item.generation_config = own

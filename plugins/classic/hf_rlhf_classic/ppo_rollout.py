"""Completions of a batch of prompts, each with noise of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor


def noise(seed: int, step: int, rows: Sequence[int], tokens: int) -> Tensor:
    """Return numbers in (0, 1], (rows, tokens): the same for a row whatever process has it.

    So one process and eight sample the same completions, and a resumed run those it would have.
    """
    drawn = [np.random.default_rng([seed, step, row]).random(tokens) for row in rows]
    return torch.from_numpy(1 - np.stack(drawn)).float()


class SampleByRow(LogitsProcessor):  # type: ignore[misc]
    """Samples from softmax(logits / temperature) by inverting its distribution function.

    `generate` is left to take the token that is chosen here, the only one with a finite logit:
    its own sampling draws all rows from one stream, whose use depends on the other rows.
    """

    def __init__(self, uniform: Tensor, temperature: float) -> None:
        self.uniform = uniform
        self.temperature = temperature
        self.logprobs: list[Tensor] = []
        """Of the chosen tokens, one (rows,) a step."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return logits that leave one token a row."""
        logprobs = (scores.float() / self.temperature).log_softmax(-1)
        cumulative = logprobs.exp().cumsum(-1)
        level = self.uniform[:, len(self.logprobs), None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, level).clamp(max=scores.shape[-1] - 1)
        self.logprobs.append(logprobs.gather(-1, chosen).squeeze(-1))
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen, 0.0)


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled."""

    temperature: float
    max_new_tokens: int
    stop: int
    pad: int
    at_once: int
    """Prompts in one call of `generate`."""


def complete(
    model: Any, prompts: list[list[int]], sampling: Sampling, uniform: Tensor
) -> list[list[int]]:
    """Return each prompt's completion, the stop token included, if there is one.

    `uniform` has one row for each prompt and `max_new_tokens` columns.
    """
    result: list[list[int]] = []
    device = next(model.parameters()).device
    # Prompts of like length together: less padding.
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    for start in range(0, len(prompts), sampling.at_once):
        rows = order[start : start + sampling.at_once]
        result += _generate(
            model, [prompts[row] for row in rows], sampling, uniform[rows].to(device)
        )
    return [result[order.index(row)] for row in range(len(prompts))]


def _generate(
    model: Any, prompts: list[list[int]], sampling: Sampling, uniform: Tensor
) -> list[list[int]]:
    length = max(len(prompt) for prompt in prompts)
    padded = [[sampling.pad] * (length - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=sampling.stop,
        pad_token_id=sampling.pad,
        use_cache=True,
    )
    with _only(model, config), torch.no_grad():
        output = model.generate(
            input_ids=torch.tensor(padded, device=uniform.device),
            attention_mask=torch.tensor(mask, device=uniform.device),
            generation_config=config,
            logits_processor=[SampleByRow(uniform, sampling.temperature)],
        )
    return [until(row, sampling.stop) for row in output[:, length:].tolist()]


def until(ids: list[int], stop: int) -> list[int]:
    """Return the ids up to the first `stop`, that one included."""
    return ids[: ids.index(stop) + 1] if stop in ids else ids


@contextmanager
def _only(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Let no generation setting of the model itself in: a repetition penalty, say.

    The tokens would come from another distribution than the one whose probabilities are used.
    """
    models = [model, *([model.get_base_model()] if hasattr(model, "get_base_model") else [])]
    kept = [one.generation_config for one in models]
    for one in models:
        one.generation_config = config
    try:
        yield
    finally:
        for one, own in zip(models, kept, strict=True):
            one.generation_config = own


def vllm_generation(trainer: Any) -> Any:
    """Return TRL's vLLM client for a trainer, sampling as `complete` does: temperature alone."""
    from trl.generation.vllm_generation import VLLMGeneration

    args = trainer.args
    return VLLMGeneration(
        model=trainer.model,
        accelerator=trainer.accelerator,
        processing_class=trainer.processing_class,
        mode=args.vllm_mode,
        server_base_url=args.vllm_server_base_url,
        server_host=args.vllm_server_host,
        server_port=args.vllm_server_port,
        group_port=args.vllm_group_port,
        server_timeout=args.vllm_server_timeout,
        tensor_parallel_size=args.vllm_tensor_parallel_size,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=args.per_device_train_batch_size * args.vllm_tensor_parallel_size,
        enable_sleep_mode=args.vllm_enable_sleep_mode,
        temperature=args.temperature,
        max_completion_length=args.max_completion_length,
        generation_kwargs={"stop_token_ids": [trainer.stop_id]},
    )

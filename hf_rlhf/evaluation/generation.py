"""The generation loop: completions of prompts, sampled with the seed of each, by transformers.

The text sampled for a prompt depends on its own random numbers, not on the batch or the number of
processes, apart from rounding in the model.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hf_rlhf.models.ends import end_tokens

if TYPE_CHECKING:
    from threading import Event

K = TypeVar("K")


class Sampling(Protocol):
    """Sampling settings: an `EvaluationSpec`, a trainer's settings."""

    @property
    def temperature(self) -> float:
        """0 decodes greedily."""

    @property
    def top_p(self) -> float:
        """The share of probability that is sampled from (Holtzman et al. 2020)."""


@dataclass(frozen=True)
class Completion:
    """A completion."""

    text: str
    """Without special tokens."""
    ids: Sequence[int]
    """Token ids, the end token included."""
    truncated: bool
    """Whether it reached the length limit without an end token."""
    seconds: float = 0.0
    """Its share of the batch's time, if measured."""


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_new_tokens: int,
    *,
    seeds: Sequence[int],
    on_text: Callable[[str], object] | None = None,
    stop: "Event | None" = None,
) -> list[Completion]:
    """Return a completion of each prompt up to an end token of the tokenizer or the model.

    Args:
        model: a causal language model or a peft model, on its device.
        tokenizer: of that model.
        prompts: token ids; padded here on the left.
        sampling: temperature and top_p.
        max_new_tokens: the completion's length in tokens.
        seeds: a sampling seed for each prompt, independent of the batch.
        on_text: receives the text of a single prompt in whole words as it comes.
        stop: ends the generation when it is set, also from another thread.
    """
    from hf_rlhf.evaluation.sampling import seeded

    uniform = None
    if sampling.temperature > 0:
        uniform = seeded(seeds, max_new_tokens)
        if str(model.device).startswith("mps"):  # which has no float64
            uniform = uniform.float()
    ends = end_tokens(tokenizer, model.generation_config)
    completed = complete(
        *(model, prompts, max_new_tokens, uniform),
        ends=ends,
        pad=tokenizer.pad_token_id,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        extras=_watching(tokenizer, on_text, stop),
    )
    return [
        Completion(
            tokenizer.decode(ids, skip_special_tokens=True), ids, not ends.intersection(ids[-1:])
        )
        for ids in completed
    ]


def complete(
    model: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    uniform: Any,
    *,
    ends: frozenset[int],
    pad: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    extras: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Return the token ids of each prompt's completion, with its end token if there is any.

    Tokens are sampled from the softmax of `model`, which is complete on this process, with
    temperature (above 0) and top_p only. The model's other settings, such as a repetition penalty,
    are ignored: training samples without them, and log-probabilities do not account for them.

    Args:
        model: as in `generate`, like `prompts` and `max_new_tokens`.
        uniform: random numbers for each prompt, (rows, max_new_tokens); see `SampleByRow`. None
            decodes greedily.
        ends: end tokens of a completion.
        pad: the token for padding.
        extras: further arguments of transformers' `generate`: a streamer, stopping criteria.

    Raises:
        ModelError: the model's scores are not numbers.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import GenerationConfig, LogitsProcessorList

    from hf_rlhf.evaluation.sampling import SampleByRow

    pad_left = partial(pad_sequence, batch_first=True, padding_side="left")
    ids = pad_left([torch.tensor(row) for row in prompts], padding_value=pad)
    mask = pad_left([torch.ones(len(row), dtype=torch.long) for row in prompts])
    processors = LogitsProcessorList()
    if uniform is not None:
        processors.append(SampleByRow(uniform.to(model.device), temperature, top_p))
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(ends) or None,
        pad_token_id=pad,
        use_cache=True,
    )
    with _only(model, config), torch.no_grad():
        # Under ZeRO-3 generate would wait for the other processes, which have other rows.
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            synced_gpus=False,
            logits_processor=processors,
            **(extras or {}),
        )
    return [until(row, ends) for row in output[:, ids.shape[1] :].tolist()]


def until(ids: list[int], ends: frozenset[int]) -> list[int]:
    """Return the ids up to and including the first end token."""
    stop = next((index for index, token in enumerate(ids) if token in ends), None)
    return ids if stop is None else ids[: stop + 1]


@contextmanager
def _only(model: Any, config: Any) -> Iterator[None]:
    """Replace the model's generation settings, also inside a peft model.

    `generate` uses them for all unset arguments.
    """
    models = [model, *([model.get_base_model()] if hasattr(model, "get_base_model") else [])]
    shipped = [each.generation_config for each in models]
    for each in models:
        each.generation_config = config
    try:
        yield
    finally:
        for each, own in zip(models, shipped, strict=True):
            each.generation_config = own


def _watching(
    tokenizer: Any, on_text: Callable[[str], object] | None, stop: "Event | None"
) -> dict[str, Any]:
    from transformers import StoppingCriteriaList

    from hf_rlhf.evaluation.sampling import StopWhenSet, TextTo

    extras: dict[str, Any] = {}
    if on_text is not None:
        extras["streamer"] = TextTo(tokenizer, on_text)
    if stop is not None:
        extras["stopping_criteria"] = StoppingCriteriaList([StopWhenSet(stop)])
    return extras


def seed_of(*parts: int | str) -> int:
    """Return a seed in [0, 2**63), effectively independent for different parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def longest_first(texts: Mapping[K, Sequence[int]]) -> list[K]:
    """Return the keys of tokenized texts, sorted so that similar lengths share a batch.

    Texts are padded to the longest of their batch. The longest come first, so that running out of
    memory happens at once.
    """
    return sorted(texts, key=lambda key: -len(texts[key]))

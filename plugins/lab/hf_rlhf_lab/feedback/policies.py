"""Sample two responses to a prompt from a saved model or a model behind an API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.evaluation import evaluate
from hf_rlhf.models import load_tokenizer, resolve_model_path
from hf_rlhf.rewards import ComposedReward, Messages, OpenAIText, Part
from hf_rlhf_lab.feedback.asking import Failure, ask_all
from hf_rlhf_lab.feedback.settings import LocalPolicy
from hf_rlhf_lab.feedback.work import Row

Pair = tuple[str, str]


def prompt_messages(prompt: Any) -> Messages:
    """Return a prompt, a text or messages, as messages."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def as_response(row: Row, text: str) -> Any:
    """Return a response in the form of its prompt."""
    if isinstance(row["prompt"], str):
        return text
    return [{"role": "assistant", "content": text}]


@dataclass
class RemotePolicy:
    """A model behind an API."""

    client: OpenAIText
    tokenizer: Any = None

    def __post_init__(self) -> None:
        # The seed is part of the request, so each response has its own cache entry.
        second = replace(self.client, seed=(self.client.seed or 0) + 1)
        self._clients = (self.client, second)

    def usage(self) -> Mapping[str, float]:
        """Return requests, tokens and cost."""
        first, second = (client.usage() for client in self._clients)
        return {name: amount + second[name] for name, amount in first.items()}

    def sample(self, rows: Sequence[Row], first: int) -> list[Pair | Failure]:
        """Return two responses to the prompt of each row."""
        prompts = [prompt_messages(row["prompt"]) for row in rows]
        return list(map(_pair, *(ask_all(client, prompts, str) for client in self._clients)))


def _pair(first: str | Failure, second: str | Failure) -> Pair | Failure:
    if isinstance(first, Failure):
        return first
    return second if isinstance(second, Failure) else (first, second)


def _no_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


@dataclass
class SavedPolicy:
    """A saved model that is loaded at the first sample."""

    client: LocalPolicy

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer whose chat template decides between texts and messages."""
        tokenizer = load_tokenizer(resolve_model_path(self.client.path), None)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    @cached_property
    def model(self) -> Any:
        """The model on its device."""
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(resolve_model_path(self.client.path))
        return model.to(self.client.device).eval()

    def usage(self) -> Mapping[str, float]:
        """Return nothing, because a local model costs only time."""
        return {}

    def sample(self, rows: Sequence[Row], first: int) -> list[Pair | Failure]:
        """Return two responses to the prompt of each row; `first` is the index of the first row."""
        from datasets import Dataset

        prompts = Dataset.from_list([{"prompt": row["prompt"]} for row in rows])
        spec = EvaluationSpec(
            rows=None,
            batch_size=self.client.batch_size,
            temperature=self.client.temperature,
            top_p=self.client.top_p,
            samples=2 * len(rows),
            seed=self.client.seed + 2 * first,
            completions_per_prompt=2,
        )
        # The evaluation stores rows only if there is a reward.
        reward = ComposedReward((Part("none", _no_reward),))
        limit = self.client.max_new_tokens
        written = evaluate(self.model, self.tokenizer, prompts, reward, spec, max_new_tokens=limit)
        texts = [
            Failure("cut off", f"The response reached max_new_tokens {limit}.")
            if row["truncated"]
            else str(sample["completion"])
            for row, sample in zip(written.rows, written.samples, strict=True)
        ]
        return list(map(_pair, texts[::2], texts[1::2]))


Policy = SavedPolicy | RemotePolicy

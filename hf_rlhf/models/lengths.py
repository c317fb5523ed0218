"""How long prompts are in tokens, and how many tokens a model has room for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


_CHUNK = 1000


def prompt_lengths(run: "Run", rows: int | None = None, split: str = "train") -> list[int]:
    """Return the prompt length in tokens of the first `rows` rows of a split (all if None)."""
    data = run.dataset[split].select_columns("prompt")
    count = min(rows or len(data), len(data))
    # The data may be larger than memory; its lengths are not.
    chunks = (data[at : min(at + _CHUNK, count)]["prompt"] for at in range(0, count, _CHUNK))
    return [length for chunk in chunks for length in token_lengths(run, chunk)]


def token_lengths(run: "Run", prompts: Sequence[Any]) -> list[int]:
    """Return how many tokens each prompt has, text or messages, as it is generated from."""
    kwargs = getattr(run.training, "chat_template_kwargs", None) or {}
    texts = [
        prompt
        if isinstance(prompt, str)
        else run.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False, **kwargs
        )
        for prompt in prompts
    ]
    special = bool(texts) and isinstance(prompts[0], str)
    return [len(ids) for ids in run.tokenizer(texts, add_special_tokens=special)["input_ids"]]


def positions(run: "Run") -> int | None:
    """Return how many tokens the model has positions for, None where its config does not say."""
    result: int | None = getattr(
        model_config(run).get_text_config(), "max_position_embeddings", None
    )
    return result


def model_config(run: "Run") -> Any:
    """Return the base model's configuration; only its JSON is read."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(
        run.model_path,
        revision=run.model.model_revision,
        trust_remote_code=getattr(run.training, "trust_remote_code", False),
    )


def has_new_head(run: "Run") -> bool:
    """Return whether the run puts a score head on a base that has none."""
    kinds = model_config(run).architectures or []
    return run.has_score_head and not any("Classification" in kind for kind in kinds)


def completion_length(run: "Run") -> int:
    """Return the longest completion, in tokens, that the run trains on or evaluates.

    Where the trainer does not generate: 256, or half of what the model has positions for.
    """
    trained = getattr(run.training, "max_completion_length", None)
    if trained:
        return int(trained)
    room = positions(run)
    return min(256, room // 2) if room else 256

"""Tokenize prompts, measure their lengths, and return a model's positions."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


FOR_TEMPLATES = ("tools", "chat_template_kwargs")
"""Columns that TRL passes to the chat template."""
_CHUNK = 1000


def prompt_lengths(run: "Run", rows: int | None = None, split: str = "train") -> list[int]:
    """Return the prompt length in tokens of the first `rows` rows of a split (all if None)."""
    data = run.dataset[split]
    data = data.select_columns([n for n in ("prompt", *FOR_TEMPLATES) if n in data.column_names])
    count = min(rows or len(data), len(data))
    # The data may be larger than memory; its lengths are not.
    chunks = (range(at, min(at + _CHUNK, count)) for at in range(0, count, _CHUNK))
    return [
        length for chunk in chunks for length in token_lengths(run, data.select(chunk).to_list())
    ]


def token_lengths(run: "Run", rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens of each row's `prompt`, as in sampling."""
    prompts, kwargs = [row["prompt"] for row in rows], template_arguments(run, {})
    return [len(ids) for ids in prompt_ids(run.tokenizer, prompts, kwargs, rows)]


def template_arguments(run: "Run", row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat template's arguments from the run and the row."""
    kwargs = dict(getattr(run.training, "chat_template_kwargs", None) or {})
    if run.toolset is not None:
        kwargs["tools"] = run.toolset.schemas or None
    return {**kwargs, **row_arguments(row)}


def row_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's arguments for the chat template: `tools` and `chat_template_kwargs`."""
    tools = row.get("tools")
    with suppress(ValueError):  # the template refuses invalid JSON
        tools = json.loads(tools) if isinstance(tools, str) else tools
    return {**({"tools": tools} if tools else {}), **(row.get("chat_template_kwargs") or {})}


def prompt_ids(
    tokenizer: Any,
    prompts: Sequence[Any],
    chat_template_kwargs: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
) -> list[list[int]]:
    """Return the token ids of prompts, which are texts or conversations (lists of messages).

    `rows` are the prompts' rows, if they may have `tools` and kwargs.
    """
    if not prompts:
        return []
    if isinstance(prompts[0], str):
        return list(tokenizer(list(prompts))["input_ids"])
    own = map(row_arguments, rows or [{}] * len(prompts))
    texts = [
        tokenizer.apply_chat_template(
            prompt,
            **{"add_generation_prompt": True, "tokenize": False, **chat_template_kwargs, **kwargs},
        )
        for prompt, kwargs in zip(prompts, own, strict=True)
    ]
    # The chat template already includes the special tokens. Callers count prompts that are too
    # long.
    return list(tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])


def positions(run: "Run") -> int | None:
    """Return the number of the model's positions; None if its config has none."""
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
    wanted = run.auto_class.removeprefix("AutoModel")
    return run.has_score_head and not any(kind.endswith(wanted) for kind in kinds)


def completion_length(run: "Run") -> int:
    """Return the run's longest completion in tokens, in training or evaluation.

    For a trainer that does not generate: 256, or half of the model's positions.
    """
    trained = getattr(run.training, "max_completion_length", None)
    if trained:
        return int(trained)
    room = positions(run)
    return min(256, room // 2) if room else 256

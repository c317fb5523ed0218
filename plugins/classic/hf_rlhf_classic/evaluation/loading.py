"""Tokenizers and weights of a checkpoint, or the reason why not."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ModelError
from hf_rlhf.processes import whole_weights
from hf_rlhf_classic.evaluation.checkpoints import Checkpoint
from hf_rlhf_classic.evaluation.spec import EvalSpec


def tokenizer_of(checkpoint: Checkpoint, spec: EvalSpec) -> Any:
    """Return the tokenizer, saved beside the adapter if it is there. Raises ModelError."""
    from transformers import AutoTokenizer

    beside = Path(checkpoint.adapter or "", "tokenizer_config.json").exists()
    where = checkpoint.adapter if checkpoint.adapter and beside else checkpoint.model
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            where,
            revision=checkpoint.revision if where == checkpoint.model else None,
            trust_remote_code=bool(spec.trust_remote_code),
        )
    except Exception as error:  # noqa: BLE001 - the tokenizers library raises bare Exception
        raise ModelError(
            f"the tokenizer of {checkpoint.asked!r} does not load: {_first_line(error)}"
        ) from error
    if tokenizer.pad_token_id is None:
        # Padding is masked wherever it stands, so any token will do.
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


@contextmanager
def loaded(checkpoint: Checkpoint, spec: EvalSpec, device: Any) -> Iterator[Any]:
    """Give the model, ready to generate, and free its memory at the end.

    An adapter is merged in memory. Raises ModelError for weights that do not load whole.
    """
    from accelerate.utils.memory import clear_device_cache

    holder = [_load(checkpoint, spec).to(device).eval()]
    try:
        yield holder[0]
    finally:
        # The caller's name for it must be gone too before this frees anything.
        holder.clear()
        clear_device_cache(garbage_collection=True)


def _load(checkpoint: Checkpoint, spec: EvalSpec) -> Any:
    from transformers import AutoModelForCausalLM

    kwargs = {
        "revision": checkpoint.revision,
        "dtype": spec.dtype,
        "attn_implementation": spec.attn_implementation,
        "trust_remote_code": spec.trust_remote_code,
    }
    given = {key: value for key, value in kwargs.items() if value is not None}
    try:
        with whole_weights():
            model, info = AutoModelForCausalLM.from_pretrained(
                checkpoint.model, output_loading_info=True, **given
            )
        model = _with_adapter(model, checkpoint)
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001 - safetensors and torch raise what they like
        raise ModelError(
            f"{checkpoint.label}: {checkpoint.asked!r} does not load: {_first_line(error)}"
        ) from error
    if missing := sorted(info["missing_keys"]):
        # transformers makes them up at random, and only warns.
        raise ModelError(
            f"{checkpoint.label}: {checkpoint.asked!r} lacks {len(missing)} weights of its "
            f"architecture, such as {missing[0]}. It is not whole, or not this kind of model."
        )
    return model


def _with_adapter(model: Any, checkpoint: Checkpoint) -> Any:
    if checkpoint.adapter is None:
        return model
    from peft import PeftModel

    with warnings.catch_warnings():
        # What the adapter lacks would stay at its random start.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        return PeftModel.from_pretrained(model, checkpoint.adapter).merge_and_unload()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""Tokenizers and weights of a checkpoint, as the evaluation asks for them."""

from contextlib import AbstractContextManager
from typing import Any

from hf_rlhf.evaluation import load_tokenizer_of
from hf_rlhf.evaluation import loaded as load
from hf_rlhf_classic.evaluation.checkpoints import Checkpoint
from hf_rlhf_classic.evaluation.spec import EvalSpec


def tokenizer_of(checkpoint: Checkpoint, spec: EvalSpec) -> Any:
    """Return the tokenizer, saved beside the adapter if it is there. Raises ModelError."""
    trust = bool(spec.trust_remote_code)
    return load_tokenizer_of(checkpoint.saved, trust_remote_code=trust)


def loaded(checkpoint: Checkpoint, spec: EvalSpec, device: Any) -> AbstractContextManager[Any]:
    """Give the model, ready to generate, and free its memory at the end. Raises ModelError."""
    return load(
        checkpoint.saved,
        device,
        dtype=spec.dtype,
        attn_implementation=spec.attn_implementation,
        trust_remote_code=spec.trust_remote_code,
    )

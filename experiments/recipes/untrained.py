"""`tiny_untrained` of hf_rlhf_worlds: random weights, and the tokenizer of `classic`.

A reward model of `chains` learns faster from them than from `tiny_sft`: in a few hundred steps.
"""

from pathlib import Path

from classic import build_tokenizer

from hf_rlhf_worlds.tiny_models import save_model, small_llama

LENGTH = 256


def build(out: Path, seed: int = 0, *, hidden: int = 64, layers: int = 3) -> None:
    """Write `out`/tiny_untrained."""
    tokenizer = build_tokenizer()
    model = small_llama(
        tokenizer, seed=seed, hidden=hidden, layers=layers, positions=LENGTH, widening=3
    )
    save_model(model, tokenizer, out / "tiny_untrained", do_sample=True)

"""A small random base with room for real prompts, for trying a workspace on a CPU."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_rlhf.data import read_file
from hf_rlhf.testing.small_models import small_llama

VOCABULARY = 1024
CONTEXT = 2048
_SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>"
    "{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tiny_base(folder: Path, texts: Sequence[Path], *, seed: int = 0) -> Path:
    """Write a random two-layer Llama (about 150,000 parameters) and a tokenizer to `folder`.

    The tokenizer is byte-level BPE, so that it takes any text, with merges learned from the rows
    of `texts`; the weights are random: what a role can do on it, its adapter has learned.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _strings(texts),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(_SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        model_max_length=CONTEXT,
    )
    fast.chat_template = _TEMPLATE
    model = small_llama(fast, seed=seed, hidden=64, layers=2, positions=CONTEXT)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def _strings(paths: Sequence[Path]) -> Iterator[str]:
    for path in sorted(paths):
        for row in read_file(path):
            yield from (value for value in row.values.values() if isinstance(value, str))

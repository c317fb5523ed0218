"""What builders of small tokenizers share: byte-level pieces, and conversations in marked turns.

Any text can be tokenized, since what has no token of its own is spelt in bytes; which words have
one, a builder says by the model that it gives.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import Model
    from transformers import PreTrainedTokenizerFast


def byte_level(model: "Model", pieces: str) -> "Tokenizer":
    """Return a tokenizer that parts text by a regular expression and spells the pieces in bytes.

    Args:
        model: what becomes of a piece, such as `tokenizers.models.BPE`.
        pieces: the regular expression; what it matches, and what is between, is a piece each.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def chat_template(before: str, after: str, end: str) -> str:
    """Return a template in which a turn is its role between two marks, its text, and `end`.

    The markers around the assistant's text are what TRL's `assistant_only_loss` needs.
    """
    return (
        "{%- for message in messages -%}"
        f"{{{{- '{before}' + message['role'] + '{after}' -}}}}"
        "{%- if message['role'] == 'assistant' -%}"
        f"{{%- generation -%}}{{{{- message['content'] + '{end}' -}}}}{{%- endgeneration -%}}"
        f"{{%- else -%}}{{{{- message['content'] + '{end}' -}}}}{{%- endif -%}}"
        "{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{{{{- '{before}assistant{after}' -}}}}{{%- endif -%}}"
    )


def small_tokenizer(
    backend: "Tokenizer", *, pad: str, end: str, length: int, template: str, **settings: Any
) -> "PreTrainedTokenizerFast":
    """Return a tokenizer for a small model, which pads on the left.

    Args:
        backend: of `byte_level`.
        pad: the token that fills rows up.
        end: the token with which an answer ends.
        length: the longest row, in tokens.
        template: the chat template.
        settings: further ones of `PreTrainedTokenizerFast`.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        eos_token=end,
        model_max_length=length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **settings,
    )
    tokenizer.chat_template = template
    return tokenizer

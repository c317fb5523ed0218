"""`tiny_caller` of hf_rlhf_worlds: it has imitated the forgetful user of `calculator`.

Its chat template has calls of tools, and its tokenizer says how they are read from a completion:

    <system>calculate<end><user>37+48=<end><assistant><call>calculate<expression>37+48</expression>
    </call><end><tool>85<end><assistant>85<end>
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classic import END, PAD, ROLES
from training import IGNORED, padded, train, warm_up_and_decay

from hf_rlhf_worlds.arithmetic import problems
from hf_rlhf_worlds.calculator import TOOL, demonstrate
from hf_rlhf_worlds.sampling import generator
from hf_rlhf_worlds.tiny_models import save_model, small_llama
from hf_rlhf_worlds.tokenizers import (
    add_plain_tokens,
    byte_level,
    small_tokenizer,
    word_model,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

STEPS = (1500,)
RATE = 3e-3
FORGETTING = 0.6
"""Share of the demonstrations without a call."""
DIGITS = 2
DEMONSTRATIONS = 4000
"""They are written out once: the chat template takes longer than a step."""
BATCH = 32
LENGTH = 256
_MARKS = ("<call>", "</call>", "<expression>", "</expression>")
_PIECES = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s"
_TEMPLATE = (
    "{%- if tools -%}<system>{%- for tool in tools -%}"
    "{{- (tool.function or tool).name -}}{%- endfor -%}<end>{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<' + message.role + '>' -}}"
    "{%- if message.role == 'assistant' -%}{%- generation -%}"
    "{{- message.content or '' -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '<call>' + call.function.name -}}"
    "{%- for key, value in call.function.arguments.items() -%}"
    "{{- '<' + key + '>' + value + '</' + key + '>' -}}"
    "{%- endfor -%}{{- '</call>' -}}{%- endfor -%}"
    "{{- '<end>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message.content + '<end>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>\w+)",
            "close": "</call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>[^<]*)</\w+>"},
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<end>", "content": "text"},
    },
}
"""How calls are read from a completion: transformers' `response_template`."""


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return one token per digit, sign, mark and tool, and bytes for all other text."""
    backend = byte_level(word_model((PAD, END), (TOOL, "error", "mistyped")), _PIECES)
    add_plain_tokens(backend, (*ROLES, *_MARKS))
    return small_tokenizer(
        backend, pad=PAD, end=END, length=LENGTH, template=_TEMPLATE, response_template=RESPONSE
    )


def build(
    out: Path, seed: int = 0, *, hidden: int = 64, layers: int = 2, steps: Sequence[int] = STEPS
) -> None:
    """Write `out`/tiny_caller."""
    tokenizer = build_tokenizer()
    model = small_llama(
        tokenizer, seed=seed, hidden=hidden, layers=layers, positions=LENGTH, widening=3
    )
    losses = _losses(model, tokenizer, seed)
    train(model, "tiny_caller", losses, steps[0], RATE, warm_up_and_decay(steps[0]), every=100)
    save_model(model, tokenizer, out / "tiny_caller", do_sample=True)


def _losses(model: Any, tokenizer: Any, seed: int) -> Iterator["Tensor"]:
    """Yield losses of batches of demonstrations, of what the model is to write alone."""
    rng = generator(seed, "calls")
    known = list(problems(seed, "train", DIGITS))
    tools = [{"type": "function", "function": {"name": TOOL}}]

    speaker, end = tokenizer.convert_tokens_to_ids("<assistant>"), tokenizer.eos_token_id

    def row() -> tuple[list[int], list[int]]:
        problem = rng.choice(known)
        chat = [{"role": "user", "content": problem.prompt}]
        chat += demonstrate(problem, FORGETTING, rng)
        text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
        ids, labels, writes = tokenizer(text).input_ids, [], False
        for token in ids:
            labels.append(token if writes else IGNORED)
            writes = token == speaker or (writes and token != end)
        return ids, labels

    rows = [row() for _ in range(DEMONSTRATIONS)]
    while True:
        ids, labels = padded(rng.choices(rows, k=BATCH), tokenizer.pad_token_id)
        yield model(input_ids=ids, labels=labels).loss

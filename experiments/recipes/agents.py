"""`tiny_agent` of hf_rlhf_agents: it can look facts up, and has imitated a careless user.

The user answers chains of lookups over many worlds, so that facts are never known by heart. In half
of the chains they stop a lookup early, or make one twice; reinforcement learning can add care.
The chat template writes the names of tools, and no system message:

    <system>lookup<end><user>Who is the mentor of the mayor of Barham?<end>
    <assistant><call>lookup<relation>mayor</relation><name>Barham</name></call><end>
    <tool>The mayor of Barham is Fala.<end> ... <assistant>ANSWER: Riin<end>
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calculator import RESPONSE
from classic import END, PAD, ROLES
from hf_rlhf_agents.chains import chain_tasks
from hf_rlhf_agents.demonstrations import careless, demonstrate
from training import IGNORED, padded, train, warm_up_and_decay

from hf_rlhf_worlds.multihop import NAMES, RELATIONS
from hf_rlhf_worlds.tiny_models import save_model, small_llama
from hf_rlhf_worlds.tokenizers import add_plain_tokens, byte_level, small_tokenizer, word_model

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

STEPS = (900,)
RATE = 3e-3
HOPS = (1, 2, 3, 4)
MISTAKES = 0.5
"""Share of the demonstrations with a mistake."""
WORLDS = range(100, 160)
"""Far from the worlds of tasks, 0 and 1."""
DEMONSTRATIONS = 6000
BATCH = 32
LENGTH = 1024
_MARKS = (
    "<call>",
    "</call>",
    *(f"<{x}>" for x in ("relation", "name")),
    *(f"</{x}>" for x in ("relation", "name")),
)
_WORDS = (
    "lookup Who Which town is the of The ANSWER error no in register I cannot answer ' : . ? ="
).split()
_PIECES = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s"
_TEMPLATE = (
    "{%- if tools -%}<system>{%- for tool in tools -%}"
    "{{- (tool.function or tool).name + ' ' -}}{%- endfor -%}<end>{%- endif -%}"
    "{%- for message in messages if message.role != 'system' -%}"
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


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return one token per name, relation, mark and word of questions, and bytes for the rest."""
    relations = dict.fromkeys(name for each in RELATIONS.values() for name in each)
    words = (*_WORDS, *relations, *NAMES["town"], *NAMES["person"])
    backend = byte_level(word_model((PAD, END), words), _PIECES)
    add_plain_tokens(backend, (*ROLES, *_MARKS))
    return small_tokenizer(
        backend, pad=PAD, end=END, length=LENGTH, template=_TEMPLATE, response_template=RESPONSE
    )


def build(
    out: Path, seed: int = 0, *, hidden: int = 96, layers: int = 3, steps: Sequence[int] = STEPS
) -> None:
    """Write `out`/tiny_agent."""
    tokenizer = build_tokenizer()
    model = small_llama(
        tokenizer, seed=seed, hidden=hidden, layers=layers, positions=LENGTH, widening=2
    )
    losses = _losses(model, tokenizer, seed)
    train(model, "tiny_agent", losses, steps[0], RATE, warm_up_and_decay(steps[0]), every=100)
    save_model(model, tokenizer, out / "tiny_agent", do_sample=True)


def _losses(model: Any, tokenizer: Any, seed: int) -> Iterator["Tensor"]:
    """Yield losses of batches of demonstrations, of what the model is to write alone."""
    rng = random.Random(f"agents/{seed}")
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    speaker, end = tokenizer.convert_tokens_to_ids("<assistant>"), tokenizer.eos_token_id

    def row(world: int, hops: int) -> tuple[list[int], list[int]]:
        task = next(chain_tasks(hops, rng.randrange(10**9), world))
        chat = [
            {"role": "user", "content": task.question},
            *demonstrate(task, careless(task, rng, MISTAKES)),
        ]
        text = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False)
        ids, labels, writes = tokenizer(text).input_ids, [], False
        for token in ids:
            labels.append(token if writes else IGNORED)
            writes = token == speaker or (writes and token != end)
        return ids, labels

    rows = [row(rng.choice(WORLDS), rng.choice(HOPS)) for _ in range(DEMONSTRATIONS)]
    while True:
        ids, labels = padded(rng.choices(rows, k=BATCH), tokenizer.pad_token_id)
        yield model(input_ids=ids, labels=labels).loss

"""`tiny_agent` of hf_rlhf_agents: it can look facts up, and has imitated a careless user.

It starts from the tiny base of hf_rlhf_traces, which can copy names. The user answers chains of
lookups over facts that are drawn for each, so that none is known by heart. In half of the chains of
the second stage they stop a lookup early, or make one twice; reinforcement learning can add care.
The chat template writes the names of tools, and refuses system messages:

    <|system|>lookup<|end|><|user|>Who is the mentor of the mayor of Barham?<|end|>
    <|assistant|><call>lookup<relation>mayor</relation><name>Barham</name></call><|end|>
    <|tool|>The mayor of Barham is Fala.<|end|> ... <|assistant|>ANSWER: Riin<|end|>
"""

import random
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calculator import RESPONSE
from training import IGNORED, padded, train, warm_up_and_decay

from hf_rlhf_agents.scores import ANSWER
from hf_rlhf_worlds.multihop import NAMES, RELATIONS, kind_of
from hf_rlhf_worlds.tiny_models import save_model
from hf_rlhf_worlds.tokenizers import END, PAD, ROLES, add_plain_tokens, small_tokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

STEPS = (800, 200)
RATE = 2e-3
HOPS = (1, 2, 3, 4)
MISTAKES = 0.5
"""Share of the demonstrations with a mistake, in the second stage."""
BATCH = 32
LENGTH = 2048
_MARKS = ("<call>", "</call>", "<relation>", "</relation>", "<name>", "</name>")
_SYSTEM, _, _ASSISTANT, _ = ROLES
_TEMPLATE = (
    "{%- if tools -%}<|system|>{%- for tool in tools -%}"
    "{{- (tool.function or tool).name + ' ' -}}{%- endfor -%}<|end|>{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}"
    "{{- raise_exception('tiny_agent takes no system message') -}}{%- endif -%}"
    "{{- '<|' + message.role + '|>' -}}"
    "{%- if message.role == 'assistant' -%}{%- generation -%}"
    "{{- message.content or '' -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '<call>' + call.function.name -}}"
    "{%- for key, value in call.function.arguments.items() -%}"
    "{{- '<' + key + '>' + value + '</' + key + '>' -}}"
    "{%- endfor -%}{{- '</call>' -}}{%- endfor -%}"
    "{{- '<|end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message.content + '<|end|>' -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return the tokenizer of the base, with a token for each mark of a call."""
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(_base()).backend_tokenizer
    add_plain_tokens(backend, (*ROLES, *_MARKS))
    fields = RESPONSE["fields"]
    response = {
        **RESPONSE,
        "start_anchor": _ASSISTANT,
        "fields": {**fields, "content": {"close_pattern": r"<\|end\|>", "content": "text"}},
    }
    return small_tokenizer(
        backend, pad=PAD, end=END, length=LENGTH, template=_TEMPLATE, response_template=response
    )


def build(out: Path, seed: int = 0, *, steps: Sequence[int] = STEPS) -> None:
    """Write `out`/tiny_agent."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(_base(), dtype=torch.float32)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for stage, mistakes in enumerate((0.0, MISTAKES)):
        losses = _losses(model, tokenizer, seed, mistakes)
        schedule = warm_up_and_decay(steps[stage])
        train(model, f"tiny_agent {stage}", losses, steps[stage], RATE, schedule, every=50)
    save_model(model, tokenizer, out / "tiny_agent", do_sample=True)


def _base() -> Path:
    return Path(str(files("hf_rlhf_traces"))) / "tiny_base"


def _losses(model: Any, tokenizer: Any, seed: int, mistakes: float) -> Iterator["Tensor"]:
    """Yield losses of batches of demonstrations, of what the model is to write alone."""
    rng = random.Random(f"agents/{seed}/{mistakes}")
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    speaker, end = tokenizer.convert_tokens_to_ids(_ASSISTANT), tokenizer.eos_token_id

    def row() -> tuple[list[int], list[int]]:
        text = tokenizer.apply_chat_template(_chain(rng, mistakes), tools=tools, tokenize=False)
        ids, labels, writes = tokenizer(text).input_ids, [], False
        for token in ids:
            labels.append(token if writes else IGNORED)
            writes = token == speaker or (writes and token != end)
        return ids, labels

    while True:
        ids, labels = padded([row() for _ in range(BATCH)], tokenizer.pad_token_id)
        yield model(input_ids=ids, labels=labels).loss


def _chain(rng: random.Random, mistakes: float) -> list[dict[str, Any]]:
    """Return the messages of a chain over facts that are drawn for it alone."""
    name = rng.choice(NAMES[rng.choice(["town", "person"])])
    start, steps = name, []
    for _ in range(rng.choice(HOPS)):
        relation, leads_to = rng.choice(list(RELATIONS[kind_of(name)].items()))
        value = rng.choice(NAMES[leads_to])
        steps.append((relation, name, value))
        name = value
    who = "Who" if kind_of(name) == "person" else "Which town"
    chain = " of the ".join(relation for relation, _, _ in reversed(steps))
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"{who} is the {chain} of {start}?"}
    ]
    if rng.random() < mistakes:
        at = rng.randrange(len(steps))
        early = len(steps) > 1 and rng.random() < 0.5
        steps = steps[:-1] if early else [*steps[: at + 1], *steps[at:]]
    for relation, of, value in steps:
        function = {"name": "lookup", "arguments": {"relation": relation, "name": of}}
        calls = [{"type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages.append({"role": "tool", "content": f"The {relation} of {of} is {value}."})
    return [*messages, {"role": "assistant", "content": f"{ANSWER} {steps[-1][2]}"}]

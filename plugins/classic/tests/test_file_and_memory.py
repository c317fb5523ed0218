"""The same rows train the same tokens, from a file in any spelling and from memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset, DatasetDict
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hf_rlhf.contracts import Loaded
from hf_rlhf.data.table_rows import trainable_rows
from hf_rlhf.testing import make_tiny_policy
from hf_rlhf.testing.rows import write_rows
from hf_rlhf_classic.data.preference import preference
from hf_rlhf_classic.data.prompts import prompts
from hf_rlhf_classic.data.sft import sft
from hf_rlhf_classic.data.unpaired import unpaired
from hf_rlhf_classic.encoding import encode_messages, encode_pair, encode_responses, tokens

pytestmark = pytest.mark.usefixtures("cache")
TEMPLATES = ("qwen3", "qwen2_5", "glm4moe", "nemotron_3_nano")
"""Of TRL's for training, those that write calls; the second writes no thoughts."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from transformers import AutoTokenizer

    folder = make_tiny_policy(tmp_path_factory.mktemp("tiny"))
    templates = Path(trl.__file__).parent / "chat_templates"
    loaded = {}
    for name in TEMPLATES:
        loaded[name] = AutoTokenizer.from_pretrained(folder)
        loaded[name].chat_template = (templates / f"{name}_training.jinja").read_text("utf-8")
    return loaded


words = st.text("ab é<>{}[]\"':\n\\", min_size=1, max_size=12).filter(str.strip)
values = st.one_of(
    words,
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.integers(-99, 99).map(lambda n: n / 4),  # `Dataset.from_list` changes one other in 500
    st.lists(st.integers(0, 9), max_size=2),
    st.dictionaries(words, words, max_size=2),
)
functions = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments},
    st.sampled_from(["add", "look_up"]),
    st.dictionaries(st.sampled_from(["x", "y", "z"]), values, max_size=2),
)
schemas = st.lists(
    st.sampled_from(
        [
            {"name": name, "description": name, "parameters": {"properties": {key: {}}}}
            for name, key in (("add", "x"), ("look_up", "y"))
        ]
    ),
    max_size=2,
)


@st.composite
def talks(draw: Any, thoughts: bool) -> list[dict[str, Any]]:
    """Return a conversation in TRL's own form, which ends with the assistant's turn."""
    turns = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 2))):
        turns.append({"role": "user", "content": draw(words)})
        for calls in draw(st.lists(st.lists(functions, min_size=1, max_size=2), max_size=2)):
            called = [{"type": "function", "function": call} for call in calls]
            turns.append({"role": "assistant", "content": "", "tool_calls": called})
            turns += [{"role": "tool", "content": draw(words)} for _ in calls]
        turns.append({"role": "assistant", "content": draw(words)})
        if thoughts and draw(st.booleans()):
            turns[-1]["reasoning_content"] = draw(words)
    return turns


NAMES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


def as_openai(turn: dict[str, Any], key: str) -> dict[str, Any]:
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"]["arguments"]),
            },
        }
        for call in turn.get("tool_calls", ())
    ]
    spelt = {"role": turn["role"], "content": turn["content"] or None, "tool_calls": calls or None}
    if turn["role"] == "tool":
        spelt["content"] = turn["content"]
    return {**spelt, key: turn.get("reasoning_content")}


def as_sharegpt(turn: dict[str, Any], key: str) -> dict[str, Any]:
    if calls := [call["function"] for call in turn.get("tool_calls", ())]:
        return {"from": "function_call", "value": json.dumps(calls)}
    return {
        "from": NAMES[turn["role"]],
        "value": turn["content"],
        key: turn.get("reasoning_content"),
    }


SPELLINGS = {"as it is": lambda turn, _: turn, "openai": as_openai, "sharegpt": as_sharegpt}


def spelt(data: Any, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    spell = SPELLINGS[data.draw(st.sampled_from(sorted(SPELLINGS)))]
    key = data.draw(st.sampled_from(["reasoning_content", "reasoning", "thinking"]))
    return [spell(turn, key) for turn in turns]


def load(
    adapter: Any, folder: Path, rows: list[Any], tokenizer: Any, **arguments: Any
) -> list[Any]:
    arguments = {"tokenizer": tokenizer, "test_rows": 0, "max_rejected_share": 0.0, **arguments}
    return list(adapter(write_rows(folder, rows), **arguments).dataset["train"])


@pytest.mark.parametrize("template", TEMPLATES)
@given(data=st.data())
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
def test_rows_of_a_file_train_the_tokens_of_the_same_rows_in_memory(
    tmp_path_factory: Any, tokenizers: dict[str, Any], template: str, data: st.DataObject
) -> None:
    folder, tokenizer = tmp_path_factory.mktemp("rows"), tokenizers[template]
    drawn = data.draw(st.lists(talks(template != "qwen2_5"), min_size=1, max_size=3))
    given_tools = [data.draw(schemas) for _ in drawn]
    tools = [
        [{"type": "function", "function": schema} for schema in each] or None
        for each in given_tools
    ]
    others = [
        {"tools": data.draw(st.sampled_from([each, json.dumps(each), wrapped]))}
        for each, wrapped in zip(given_tools, tools, strict=True)
    ]
    column = data.draw(st.sampled_from(["messages", "conversations"]))
    files = [
        {column: spelt(data, turns), **other} for turns, other in zip(drawn, others, strict=True)
    ]
    memory = [{"messages": turns, "tools": each} for turns, each in zip(drawn, tools, strict=True)]
    table = Dataset.from_list(memory, on_mixed_types="use_json")
    memory = list(trainable_rows(Loaded(DatasetDict(train=table), {})).dataset["train"])

    for row, wanted in zip(
        load(sft, folder, files, tokenizer, target="every"), memory, strict=True
    ):
        assert encode_messages(tokenizer, row) == encode_messages(tokenizer, wanted)

    for row, wanted in zip(load(sft, folder, files, tokenizer), memory, strict=True):
        *prompt, answer = wanted["messages"]
        wanted = {**wanted, "prompt": prompt, "completion": [answer]}
        assert encode_responses(tokenizer, [row], [row["completion"]]) == encode_responses(
            tokenizer, [wanted], [wanted["completion"]]
        )

    for row, wanted in zip(load(prompts, folder, files, tokenizer), memory, strict=True):
        assert tokens(tokenizer, row["prompt"]) == tokens(tokenizer, wanted["messages"][:-1])

    pairs, judged = [], []
    for turns, other in zip(drawn, others, strict=True):
        *prompt, answer = turns
        rejected = {"role": "assistant", "content": f"{answer['content']}!"}
        pairs.append(
            {"prompt": spelt(data, prompt), "chosen": [answer], "rejected": rejected, **other}
        )
        judged.append({"prompt": spelt(data, prompt), "completion": spelt(data, [answer]), **other})
    for row, wanted in zip(load(preference, folder, pairs, tokenizer), memory, strict=True):
        *prompt, answer = wanted["messages"]
        rejected = {"role": "assistant", "content": f"{answer['content']}!"}
        wanted = {**wanted, "prompt": prompt, "chosen": [answer], "rejected": [rejected]}
        sides = ("chosen", "rejected")
        assert encode_pair(tokenizer, row, sides) == encode_pair(tokenizer, wanted, sides)
    labelled = [{**row, "label": True} for row in judged]
    for row, wanted in zip(load(unpaired, folder, labelled, tokenizer), memory, strict=True):
        *prompt, answer = wanted["messages"]
        wanted = {**wanted, "prompt": prompt}
        assert encode_responses(tokenizer, [row], [row["completion"]]) == encode_responses(
            tokenizer, [wanted], [[answer]]
        )


def test_calls_and_answers_have_a_loss_and_results_none(
    tmp_path: Path, tokenizers: dict[str, Any]
) -> None:
    call = {"name": "look_up", "arguments": {"of": "Rome"}}
    turns = [
        {"from": "human", "value": "How warm?"},
        {
            "from": "function_call",
            "value": json.dumps([call, {**call, "arguments": {"of": "Oslo"}}]),
        },
        {"from": "observation", "value": "thirty-one"},
        {"from": "observation", "value": "five"},
        {"from": "gpt", "value": "Warm and cold."},
    ]
    tokenizer = tokenizers["qwen3"]
    (row,) = load(sft, tmp_path, [{"conversations": turns}], tokenizer, target="every")
    encoded = encode_messages(tokenizer, row)
    learned = tokenizer.decode(
        [token for token, counts in zip(encoded.ids, encoded.counted, strict=True) if counts]
    )
    for text in ('{"name": "look_up", "arguments": {"of": "Rome"}}', '{"of": "Oslo"}', "Warm and"):
        assert text in learned
    for text in ("thirty-one", "five", "How warm?"):
        assert text not in learned
        assert text in tokenizer.decode(encoded.ids)

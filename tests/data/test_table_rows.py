"""Rows of tables as they enter a run: in plain Python, with turns as files have them."""

import json

import pytest
from datasets import Dataset, DatasetDict

from hf_rlhf.contracts import Loaded
from hf_rlhf.data.table_rows import trainable_rows
from hf_rlhf.errors import DataError

USER = {"role": "user", "content": "x"}
CALL = {"name": "f", "arguments": {"n": 0.7}}
WRITTEN = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": CALL}],
}


def entered(rows, columns=()):
    data = rows if isinstance(rows, Dataset) else Dataset.from_list(rows)
    return trainable_rows(Loaded(DatasetDict(train=data)), columns).dataset["train"]


@pytest.mark.parametrize(
    "turn",
    [
        {"tool_calls": [CALL]},
        {"tool_calls": [{"function": {"name": "f", "arguments": json.dumps(CALL["arguments"])}}]},
        {"tool_calls": json.dumps([CALL])},
        {"function_call": CALL},
        {"content": None, "tool_calls": [{"name": "f", "args": {"n": 0.7}}]},
    ],
)
def test_calls_have_one_form(turn):
    assert entered([{"messages": [USER, {"role": "assistant", **turn}]}])[0]["messages"] == [
        USER,
        WRITTEN,
    ]


def test_the_keys_of_other_rows_are_no_nulls():
    other = {"name": "g", "arguments": {"deep": [{"a": 1}]}}
    rows = [
        {"prompt": [USER], "completion": [WRITTEN], "chat_template_kwargs": {"a": 1}},
        {"prompt": [USER], "completion": [{**WRITTEN, "tool_calls": [other]}]},
        {"prompt": [USER], "completion": None, "chat_template_kwargs": {"b": 2}},
    ]
    first, second, third = entered(rows)
    assert first["completion"] == [WRITTEN]
    assert second["completion"][0]["tool_calls"] == [{"type": "function", "function": other}]
    assert third["completion"] is None
    kwargs = [row["chat_template_kwargs"] for row in (first, second, third)]
    assert kwargs == [{"a": 1}, {}, {"b": 2}]


def test_no_calls_are_no_key_and_thoughts_and_results_are_as_from_files():
    turns = [
        USER,
        {"role": "assistant", "content": "y", "tool_calls": [], "thought": "because"},
        {"role": "tool", "content": {"a": 1}, "tool_call_id": "1"},
    ]
    rows = Dataset.from_list([{"messages": turns}], on_mixed_types="use_json")
    assert entered(rows)[0]["messages"] == [
        USER,
        {"role": "assistant", "content": "y", "reasoning_content": "because"},
        {"role": "tool", "content": '{"a": 1}', "tool_call_id": "1"},
    ]


def test_tools_as_text_are_schemas_or_none():
    turns, schemas = [USER, {"role": "assistant", "content": "y"}], [{"name": "f"}]
    texts = ["[]", "null", "", json.dumps(schemas), "f(x)", None]
    rows = entered([{"messages": turns, "tools": text} for text in texts])
    wrapped = [{"type": "function", "function": schemas[0]}]
    assert rows["tools"][:] == [None, None, None, json.dumps(wrapped), "f(x)", None]


def test_other_columns_and_rows_of_text_stay_as_they_are():
    table = {"prompt": ["x", "y"], "chosen": [[[1.0]], [[2.0]]], "answer": [{"a": None}, {"a": 1}]}
    rows = Dataset.from_dict(table)
    assert entered(rows).to_dict() == table
    assert entered(rows)._fingerprint == rows._fingerprint
    assert entered(rows.with_format("numpy"))[0]["chosen"] == [[1.0]]
    assert entered(rows.with_format(None, columns=["prompt"])).column_names == ["prompt"]
    messages = Dataset.from_list([{"messages": [USER]}])
    assert entered(messages)._fingerprint == messages._fingerprint


def test_a_function_that_changes_rows_at_each_reading_is_refused():
    with pytest.raises(DataError, match=r"train: a function changes.*dataset\.map\(function\)"):
        entered(Dataset.from_list([{"prompt": "x"}]).with_transform(dict))


def test_sides_that_are_no_texts_get_no_prompt():
    rows = [{"chosen": [1, 2], "rejected": [1, 3]}]
    assert entered(rows, {"prompt", "chosen", "rejected"}).column_names == ["chosen", "rejected"]

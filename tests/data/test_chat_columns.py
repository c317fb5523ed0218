"""Columns beside the conversation: tools, margins, what rewards need; and how long rows are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import DataError
from hf_rlhf.testing.rows import TemplateOnly, WordTokenizer, write_rows
from tests.data.chat_adapters import preference, prompts, sft

pytestmark = pytest.mark.usefixtures("cache")


def load(adapter: Callable[..., Any], path: str, **arguments: Any) -> Any:
    return adapter(path, **{"tokenizer": TemplateOnly(), "test_rows": 0, **arguments})


GOOD = {
    sft: {"prompt": "q", "response": "a"},
    preference: {"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1.0},
}


TOOL = {"name": "add", "parameters": {"properties": {"x": {"type": "number"}}}}


def test_tools_go_to_the_chat_template_as_json_and_count(tmp_path: Path) -> None:
    rows = [
        {**GOOD[sft], "tools": given}
        for given in (
            json.dumps([TOOL]),
            [json.dumps({**TOOL, "strict": None})],
            "",
            None,
            "[]",
            "a hammer",
            ["hammer"],
        )
    ]
    path = write_rows(tmp_path, rows[:5])
    loaded = load(sft, path)
    tools = loaded.dataset["train"]["tools"][:]
    wrapped = [{"type": "function", "function": TOOL}]
    assert [json.loads(one) if one else one for one in tools] == [wrapped] * 2 + [None] * 3
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=True), max_tokens=4)
    assert loaded.report["dropped"] == {"too_long": 2}
    kept = load(sft, path, tokenizer=WordTokenizer(chat=True), max_tokens=4, keep=[])
    assert kept.report["kept"] == 5
    with pytest.raises(DataError, match=r"wrong_type:tools: 2[^$]*field 'tools': is 'a hammer'"):
        load(sft, write_rows(tmp_path, rows))
    path = write_rows(tmp_path, [rows[0], rows[5]])
    assert load(prompts, path).dataset["train"]["tools"][1] == "a hammer", "a reward may know them"


def test_margins_are_of_all_rows_or_of_none(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    rows = [{**row, "margin": 0.5}, {**row, "margin": 2}]
    loaded = load(preference, write_rows(tmp_path, rows))
    assert loaded.dataset["train"]["margin"][:] == [0.5, 2.0]
    path = write_rows(tmp_path, [*rows, row])
    with pytest.raises(DataError, match="1 of 3 rows have no `margin`"):
        load(preference, path)
    left_out = load(preference, path, margin="none")
    assert "margin" not in left_out.dataset["train"].column_names
    assert left_out.report["columns_left_out"] == ["margin"]
    scored = write_rows(tmp_path, [{**row, "score_chosen": 8, "score_rejected": 6.5}])
    first = load(preference, scored, margin="scores").dataset["train"][0]
    assert (first["margin"], first["score_chosen"]) == (1.5, 8)


def test_other_columns_stay_as_asked(tmp_path: Path) -> None:
    rows = [
        {"question": f"q{n}", "answer": "a", "meta": {"n": n}, "tags": ["x"] * n, "text": "t"}
        for n in range(3)
    ]
    path = write_rows(tmp_path, rows)
    loaded = load(prompts, path)
    assert loaded.dataset["train"].column_names == ["prompt", "answer", "meta", "tags"]
    assert loaded.dataset["train"][2]["meta"] == {"n": 2}
    assert loaded.report["columns_left_out"] == ["text"]
    assert load(prompts, path, keep=[]).dataset["train"].column_names == ["prompt"]
    kept = load(prompts, path, keep=["question", "answer"])
    assert kept.dataset["train"].column_names == ["prompt", "question", "answer"]
    with pytest.raises(DataError, match="`keep` names anwser, which no row has"):
        load(prompts, path, keep=["anwser"])
    with pytest.raises(DataError, match="`keep` names text, to which TRL gives its own meaning"):
        load(prompts, path, keep=["text"])


def test_types_of_other_columns_grow_until_they_clash(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": f"q{n}", "x": n, "o": {"a": 1}} for n in range(600)]
    rows += [{"prompt": "f", "x": 0.5, "o": {"b": "t"}}, {"prompt": "none"}]
    loaded = load(prompts, write_rows(tmp_path, rows))
    first, last = loaded.dataset["train"][0], loaded.dataset["train"][600]
    assert (first["x"], first["o"]) == (0.0, {"a": 1, "b": None})
    assert (last["x"], last["o"]) == (0.5, {"a": None, "b": "t"})
    path = write_rows(tmp_path, [*rows, {"prompt": "text", "x": "five"}])
    with pytest.raises(
        DataError, match=r"two types, first at \S+rows.jsonl:603: column 'x': .*`keep`"
    ):
        load(prompts, path)
    assert load(prompts, path, keep=["o"]).report["kept"] == 603
    # A whole number that no fraction can hold, in another batch than the fractions.
    rows = [{"prompt": f"q{n}", "x": 2**53 + 1 if n < 512 else 0.5} for n in range(600)]
    with pytest.raises(
        DataError, match=r"two types, in rows that lie far apart: column .x.: .*9007199254740993"
    ):
        load(prompts, write_rows(tmp_path, rows))


def test_what_is_always_null_stays_null_however_deep(tmp_path: Path) -> None:
    tools = [{"name": f"t{n}", "strict": None, "more": [{"of": []}]} for n in range(5)]
    rows: list[Any] = [{"prompt": f"q{n}", "meta": {"tools": tools}, "x": None} for n in range(3)]
    loaded = load(prompts, write_rows(tmp_path, rows))
    for row, given in zip(loaded.dataset["train"], rows, strict=True):
        assert (row["meta"], row["x"]) == (given["meta"], None)


def test_lengths_are_measured_as_they_are_trained(tmp_path: Path) -> None:
    rows = [{"prompt": "one " * n, "response": "two " * n} for n in (1, 5, 9)]
    path = write_rows(tmp_path, rows)
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=True), max_prompt_tokens=7)
    assert loaded.report["dropped"] == {"prompt_too_long": 1}  # 2 marks and 9 words
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=True), max_tokens=12)
    assert loaded.report["dropped"] == {"too_long": 1}  # 2 marks and 18 words
    loaded = load(sft, path, tokenizer=WordTokenizer(chat=False), max_prompt_tokens=8)
    assert loaded.report["dropped"] == {"prompt_too_long": 1}  # 2 marks, 9 words, 1 special
    pairs = [{"prompt": "q", "chosen": "a", "rejected": "b " * 50}, GOOD[preference]]
    asked = {"margin": "none", "max_tokens": 20, "tokenizer": WordTokenizer(chat=True)}
    loaded = load(preference, write_rows(tmp_path, pairs), **asked)
    assert loaded.report["dropped"] == {"too_long": 1}

"""Calls of tools and their results in the spellings in use, thoughts, and marks of turns."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf.data.arrow_rows import exact_json
from hf_rlhf.data.examples import Example
from hf_rlhf.data.splits import row_hashes
from hf_rlhf.errors import DataError
from hf_rlhf.testing.rows import TemplateOnly, WordTokenizer, write_rows
from tests.data.chat_adapters import preference, prompts, sft, unpaired

pytestmark = pytest.mark.usefixtures("cache")

USER = {"role": "user", "content": "Weather in Rome and Oslo?"}
ANSWER = {"role": "assistant", "content": "Mild."}
ARGUMENTS = [{"city": "Rome", "days": 0.7}, {"city": "Oslo", "at": [1, None]}]
RESULTS = ['{"sky": "blue"}', "snow"]


def function(arguments: Any) -> dict[str, Any]:
    return {"name": "weather", "arguments": arguments}


def called(*arguments: Any, **names: Any) -> dict[str, Any]:
    calls = [{**names, "type": "function", "function": function(each)} for each in arguments]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def returned(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "content": text} for text in texts]


def load(adapter: Any, folder: Path, rows: list[Any], **arguments: Any) -> Any:
    arguments = {"tokenizer": TemplateOnly(), "test_rows": 0, **arguments}
    return adapter(write_rows(folder, rows), **arguments)


OPENAI = [USER, called(*ARGUMENTS), *returned(*RESULTS), ANSWER]
TEXT_ARGUMENTS = [json.dumps(arguments) for arguments in ARGUMENTS]
BARE = [function(arguments) for arguments in ARGUMENTS]
HUMAN, GPT = {"from": "human", "value": USER["content"]}, {"from": "gpt", "value": "Mild."}


def shared(role: str, value: Any) -> dict[str, Any]:
    return {"from": role, "value": value}


def observed(role: str) -> list[dict[str, Any]]:
    return [shared(role, text) for text in RESULTS]


def talk(call: dict[str, Any]) -> list[dict[str, Any]]:
    return [USER, {**called(), **call}, *returned(*RESULTS), ANSWER]


LANGCHAIN = [{"name": "weather", "args": each} for each in ARGUMENTS]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "texts": talk(called(*TEXT_ARGUMENTS)),
    "no content": talk({**called(*ARGUMENTS), "content": None}),
    "nulls": [
        {**USER, "tool_calls": None, "function_call": {"name": None, "arguments": None}},
        called({**ARGUMENTS[0], "at": None}, {**ARGUMENTS[1], "days": None}, id=None),
        *({**turn, "tool_calls": [], "tool_call_id": None} for turn in returned(*RESULTS)),
        {**ANSWER, "tool_calls": []},
    ],
    "bare": talk({"tool_calls": BARE}),
    "calls as text": talk({"tool_calls": json.dumps(BARE)}),
    "langchain": talk({"tool_calls": LANGCHAIN}),
    "one list": [HUMAN, shared("function_call", json.dumps(BARE)), *observed("observation"), GPT],
    "objects in a list": [HUMAN, shared("tool_call", BARE), *observed("tool_response"), GPT],
    "one after the other": [
        HUMAN,
        *(shared("function_call", json.dumps(function(text))) for text in TEXT_ARGUMENTS),
        *observed("tool"),
        GPT,
    ],
    "results as data": [
        *OPENAI[:2],
        {"role": "tool", "content": {"sky": "blue"}},
        {"role": "tool", "content": [{"type": "text", "text": "snow"}]},
        ANSWER,
    ],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_calls_and_results_in_every_spelling(tmp_path: Path, name: str) -> None:
    plain = [{"role": "user", "content": "q"}, ANSWER]
    rows: list[Any] = [{"messages": CONVERSATIONS[name]}, {"messages": plain}]
    loaded = load(sft, tmp_path, rows, target="every")
    assert loaded.dataset["train"]["messages"][:] == [OPENAI, plain]
    assert loaded.report["tool_calls"] == {"read": 2, "learned": 2}
    row = load(sft, tmp_path, rows).dataset["train"][0]
    assert (row["prompt"], row["completion"]) == (OPENAI[:-1], OPENAI[-1:])
    assert load(prompts, tmp_path, rows).dataset["train"][0]["prompt"] == OPENAI[:-1]


def test_the_older_call_of_openai_and_its_schemas(tmp_path: Path) -> None:
    schema = {"name": "weather", "parameters": {"properties": {"city": {}, "at": None}}}
    call = {"role": "assistant", "content": None, "function_call": function('{"city": "Rome"}')}
    result = {"role": "function", "name": "weather", "content": "blue"}
    rows = [{"messages": [USER, call, result, ANSWER], "functions": [schema]}]
    row = load(sft, tmp_path, rows).dataset["train"][0]
    assert row["prompt"] == [USER, called({"city": "Rome"}), {**result, "role": "tool"}]
    wrapped = {"name": "weather", "parameters": {"properties": {"city": {}}}}
    assert json.loads(row["tools"]) == [{"type": "function", "function": wrapped}]
    anthropic = {"name": "weather", "input_schema": wrapped["parameters"], "strict": None}
    rows = [{"messages": [USER, ANSWER], "tools": [anthropic]}]
    read = load(sft, tmp_path, rows).dataset["train"][0]["tools"]
    assert json.loads(read) == [{"type": "function", "function": wrapped}]


def test_a_call_is_an_answer_to_learn_and_to_prefer(tmp_path: Path) -> None:
    call, other = called({"city": "Rome"}), called({"city": "Oslo"})
    pair = {"prompt": "q", "chosen": [call], "rejected": ANSWER}
    rows = [pair, {**pair, "rejected": [other]}, {**pair, "chosen": ANSWER, "rejected": [call]}]
    loaded = load(preference, tmp_path, rows)
    assert loaded.dataset["train"]["chosen"][:] == [[call], [call], [ANSWER]]
    assert loaded.dataset["train"]["rejected"][:] == [[ANSWER], [other], [call]]
    judged = load(unpaired, tmp_path, [{"prompt": "q", "completion": [call], "label": True}])
    assert judged.dataset["train"][0]["completion"] == [call]
    context = {"chosen": [*OPENAI[:-1], ANSWER], "rejected": [*OPENAI[:-1], call]}
    row = load(preference, tmp_path, [context]).dataset["train"][0]
    assert (row["prompt"], row["rejected"]) == (OPENAI[:-1], [call])


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([called("[1]"), ANSWER], "malformed_call"),
        ([called("Rome"), ANSWER], "malformed_call"),
        ([called({"x": float("nan")}), *returned("x"), ANSWER], "unfit:tool_calls"),
        ([called({"x": 10**30}), *returned("x"), ANSWER], "unfit:tool_calls"),
        ([called('{"x": 1, "x": 2}'), ANSWER], "malformed_call"),
        ([{**called(), "tool_calls": [{"type": "function"}]}, ANSWER], "malformed_call"),
        ([shared("function_call", ""), ANSWER], "malformed_call"),
        ([called({}), *returned("x", "y"), ANSWER], "result_without_call"),
        (
            [called({}, id="a"), {**returned("x")[0], "tool_call_id": "b"}, ANSWER],
            "result_without_call",
        ),
        ([called({}), ANSWER], "two_final_answers"),
        ([called({}), ANSWER, USER, ANSWER], "role_order"),
        ([called({}), *returned("x")], "ends_with_tool"),
        ([called({}), {"role": "tool", "content": [{"type": "image"}]}, ANSWER], "wrong_type"),
        ([{**USER, **called({}), "role": "user"}, ANSWER], "not_the_assistant"),
    ],
)
def test_calls_that_cannot_be_used_are_rejected_with_the_reason(
    tmp_path: Path, turns: list[Any], reason: str
) -> None:
    rows = [{"messages": [USER, ANSWER]}, {"messages": [USER, *turns]}]
    loaded = load(sft, tmp_path, rows, max_rejected_share=0.5)
    assert [each.split(":")[0] for each in loaded.report["rejected"]] == [reason.split(":")[0]]


def test_results_in_another_order_find_their_calls(tmp_path: Path) -> None:
    calls = [{"id": name, "type": "function", "function": function({})} for name in "ab"]
    results = [{"role": "tool", "content": name, "tool_call_id": name} for name in "ba"]
    turns = [USER, {**called(), "tool_calls": calls}, *results, ANSWER]
    assert load(sft, tmp_path, [{"messages": turns}]).dataset["train"][0]["prompt"] == turns[:-1]


def test_rows_that_differ_in_calls_or_results_alone_are_no_duplicates(tmp_path: Path) -> None:
    rows: list[Any] = [{"messages": [USER, called({"x": x})]} for x in (1, 2)]
    assert load(sft, tmp_path, rows, drop_duplicates="normalised").report["kept"] == 2
    histories = [[USER, called({"x": 1}), *returned(text)] for text in ("a", "b")]
    assert len({row_hashes(Example(history))[2] for history in histories}) == 2


def test_one_split_with_calls_and_one_without_have_one_type(tmp_path: Path) -> None:
    plain = [USER, ANSWER]
    write_rows(tmp_path / "rows", [{"messages": plain}], "train.jsonl")
    write_rows(
        tmp_path / "rows", [{"messages": [{**USER, "content": "q"}, *OPENAI[1:]]}], "test.jsonl"
    )
    splits = sft(tmp_path / "rows", target="every", tokenizer=TemplateOnly()).dataset
    assert splits["train"].features == splits["test"].features
    assert splits["train"][0]["messages"] == plain
    assert splits["test"][0]["messages"][1:] == OPENAI[1:]


def test_text_without_a_chat_template_has_no_calls_and_no_thoughts(tmp_path: Path) -> None:
    rows = [{"messages": OPENAI}, {"messages": [USER, {**ANSWER, "thinking": "t"}]}]
    with pytest.raises(DataError, match=r"needs_messages: 2.*\n.*a tool call.*\n.*a thought"):
        load(sft, tmp_path, rows, format="text")


THOUGHT = "It is one and one."
THINKING: dict[str, dict[str, Any]] = {
    "two alike": {"reasoning": THOUGHT, "reasoning_content": THOUGHT, "thinking": None},
    "details": {"reasoning_details": [{"type": "reasoning.text", "text": THOUGHT}]},
    "blocks": {"thinking_blocks": [{"type": "thinking", "thinking": THOUGHT}]},
    "part": {"content": [{"type": "reasoning", "text": THOUGHT}, {"type": "text", "text": "2"}]},
    "flagged part": {"content": [{"text": THOUGHT, "thought": True}, {"text": "2"}]},
}


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("target", ["final", "every"])
def test_thoughts_go_to_the_chat_template(tmp_path: Path, name: str, target: str) -> None:
    turn = {"role": "assistant", "content": "2", **THINKING[name]}
    expected = {"role": "assistant", "content": "2", "reasoning_content": THOUGHT}
    for rows in ([{"messages": [USER, turn]}], [{"messages": json.dumps([USER, turn])}]):
        row = load(sft, tmp_path, rows, target=target).dataset["train"][0]
        assert (row.get("messages") or row["completion"])[-1] == expected
    pair = {"prompt": "q", "chosen": turn, "rejected": {**turn, "content": "3"}}
    if target == "final":
        row = load(preference, tmp_path, [pair]).dataset["train"][0]
        assert row["chosen"] == [expected]


def test_a_thought_before_a_written_call_is_one(tmp_path: Path) -> None:
    written = f"<think>{THOUGHT}</think>\n" + json.dumps(function({}))
    rows = [{"conversations": [HUMAN, shared("function_call", written)]}]
    (turn,) = load(sft, tmp_path, rows).dataset["train"][0]["completion"]
    assert turn == {**called({}), "reasoning_content": THOUGHT}


class Thinking(WordTokenizer):
    """Writes the thoughts under one key of turns, or none."""

    key = ""

    def apply_chat_template(self, turns: Any, *args: Any, **given: Any) -> str:
        thoughts = " ".join(str(turn[self.key]) for turn in turns if self.key in turn)
        return f"{thoughts} {super().apply_chat_template(turns, **given)}"


def test_thoughts_have_the_key_that_the_template_reads_or_are_refused(tmp_path: Path) -> None:
    tokenizer = Thinking(chat=True)
    rows = [{"messages": [USER, {**ANSWER, "reasoning": THOUGHT}]}]
    tokenizer.key = "thinking"
    row = load(sft, tmp_path, rows, tokenizer=tokenizer).dataset["train"][0]
    assert row["completion"] == [{**ANSWER, "thinking": THOUGHT}]
    tokenizer.key = "other"
    with pytest.raises(DataError, match=r"thought_not_written: 1.*\n.*`ignore`"):
        load(sft, tmp_path, rows, tokenizer=tokenizer)
    row = load(sft, tmp_path, rows, tokenizer=tokenizer, ignore=["reasoning"]).dataset["train"][0]
    assert row["completion"] == [ANSWER]
    with pytest.raises(DataError, match="`ignore` names thinking, which no row has"):
        load(sft, tmp_path, rows, ignore=["thinking", "reasoning"])


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"reasoning": "a", "thinking": "b"}, "two_thoughts"),
        ({"reasoning": 5}, "wrong_type:thought"),
        ({"content": [{"type": "redacted_thinking", "data": "x"}, {"text": "2"}]}, "wrong_type:th"),
        ({"content": [{"text": "2"}, {"type": "reasoning", "text": "late"}]}, "wrong_type:content"),
        ({"content": [{"type": "tool_use", "text": "x", "name": "f"}]}, "wrong_type:content"),
    ],
)
def test_parts_of_other_kinds_are_not_glued_to_the_text(
    tmp_path: Path, turn: dict[str, Any], reason: str
) -> None:
    rows = [{"messages": [USER, ANSWER]}, {"messages": [USER, {**ANSWER, **turn}]}]
    loaded = load(sft, tmp_path, rows, max_rejected_share=0.5)
    assert next(iter(loaded.report["rejected"])).startswith(reason)


MARKS = ({"weight": 0}, {"train": False}, {"masked": True})
FINE = ({"weight": 1}, {"train": True}, {"loss": None}, {"loss_mask": 1.0}, {"masked": "false"})


@pytest.mark.parametrize("mark", [*MARKS, {"weight": 0.5}, {"train_detail": [{"begin": 0}]}])
def test_a_turn_that_is_marked_is_not_learned(tmp_path: Path, mark: dict[str, Any]) -> None:
    bad = {**ANSWER, "content": "WRONG", **mark}
    turns = [USER, bad, {**USER, "content": "no"}, {**ANSWER, "weight": 1}]
    row = load(sft, tmp_path, [{"messages": turns}]).dataset["train"][0]
    assert row["completion"] == [ANSWER], "the bad turn is context"
    with pytest.raises(DataError, match=rf"marked:{next(iter(mark))}.*\n.*turn 2: .*`target: fin"):
        load(sft, tmp_path, [{"messages": turns}], target="every")
    with pytest.raises(DataError, match=r"marked:.*\n.*turn 2: .*`ignore`"):
        load(sft, tmp_path, [{"messages": turns[:2]}])
    with pytest.raises(DataError, match="marked:"):
        load(preference, tmp_path, [{"prompt": "q", "chosen": [bad], "rejected": "b"}])
    ignored = load(sft, tmp_path, [{"messages": turns[:2]}], ignore=list(mark))
    assert ignored.dataset["train"][0]["completion"] == [{**ANSWER, "content": "WRONG"}]
    assert load(prompts, tmp_path, [{"messages": turns[:2]}]).report["kept"] == 1


@pytest.mark.parametrize("mark", FINE)
def test_a_mark_that_all_is_learned_is_fine(tmp_path: Path, mark: dict[str, Any]) -> None:
    row = {"messages": [USER, {**ANSWER, **mark}]}
    assert load(sft, tmp_path, [row], target="every").report["kept"] == 1


def test_marks_in_a_list_beside_the_turns(tmp_path: Path) -> None:
    row = {"messages": [USER, ANSWER, USER, ANSWER], "loss_mask": [0, 0, 0, 1]}
    assert load(sft, tmp_path, [row]).report["kept"] == 1
    with pytest.raises(DataError, match=r"marked:loss_mask.*\n.*turn 2"):
        load(sft, tmp_path, [row], target="every")


@pytest.mark.parametrize(
    ("adapter", "media"),
    [
        (sft, {"image": "p.png"}),
        (preference, {"videos": [{"path": "v.mp4"}]}),
        (prompts, {"image_url": "https://example.org/p.png"}),
    ],
)
def test_media_are_refused(tmp_path: Path, adapter: Any, media: dict[str, Any]) -> None:
    (name,) = media
    plain = {"prompt": "<image>What?", "response": "a"}
    if adapter is preference:
        plain = {"prompt": "<image>What?", "chosen": "a", "rejected": "b"}
    with pytest.raises(DataError, match=rf"media:{name}: 1.*\n.*`ignore`"):
        load(adapter, tmp_path, [{**plain, **media}])
    row = load(adapter, tmp_path, [{**plain, **media}], ignore=[name]).dataset["train"][0]
    assert name not in row
    assert row["prompt"][0]["content"] == "<image>What?"
    with pytest.raises(DataError, match=rf"media:{name}.*\n.*field 'messages'"):
        load(sft, tmp_path, [{"messages": [{**USER, **media}, ANSWER]}])
    empty = {name: type(media[name])()}
    assert load(adapter, tmp_path, [{**plain, **empty}, plain]).report["kept"] == 2


def test_what_is_neither_prompt_nor_answer_is_named(tmp_path: Path, capsys: Any) -> None:
    row = {"question": "q", "input": "more", "answer": "a", "text": "t", "history": []}
    load(sft, tmp_path, [row])
    printed = "not part of prompts and answers: columns kept for rewards: input, history; columns"
    assert f"{printed} left out: text." in capsys.readouterr().err
    load(sft, tmp_path, [{"messages": OPENAI}])
    assert "none of 2 tool calls learned: `target: final` learns" in capsys.readouterr().err
    load(prompts, tmp_path, [{"messages": OPENAI}])
    assert "tool calls" not in capsys.readouterr().err


numbers = st.one_of(st.floats(-1e15, 1e15), st.decimals(-999, 999, places=2).map(float))
arguments = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), numbers, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(st.one_of(st.none(), inner), max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(arguments)
@settings(max_examples=100, deadline=None)
def test_a_table_gives_back_arguments_to_the_last_digit(value: Any) -> None:
    from datasets.utils.json import ujson_loads

    text = exact_json(value)
    assert ujson_loads(text) == json.loads(text) == value

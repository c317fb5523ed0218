"""Rollouts as items and as chat: what was asked, done and answered, and faults by their place."""

import json
from collections import Counter
from typing import Any

import pytest

from hf_rlhf.data import BadRow
from hf_rlhf_rollouts import (
    Answer,
    Document,
    Form,
    Reasoning,
    Rollout,
    Search,
    SearchResult,
    Unknown,
    forms,
    read_rollout,
)


def call(number: int, name: str = "search", **arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments or {"q": str(number)})
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": text}


def output(number: int, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def read(steps: list[Any], asked: Any = "Question:\nWho?", **fields: Any) -> Rollout:
    values = {"responses_create_params": {"input": asked}, "response": {"output": steps}, **fields}
    return read_rollout(values, "runs.jsonl:3", Counter())


def result(text: str) -> SearchResult:
    return SearchResult((Document("", text),))


def submit(number: int, answer: str) -> list[dict[str, Any]]:
    return [call(number, "submit_answer", answer=answer), output(number, "ok")]


LOOK = [call(1), output(1, "x")]
NUDGE = message("user", "Research is complete. Provide your final answer now.")


def test_outputs_of_parallel_calls_come_in_their_order_with_the_calls() -> None:
    noted: Counter[str] = Counter()
    steps = [call(1), call(2, "browse"), output(2, "B"), output(1, "A")]
    rollout = read_rollout({"input": "Who?", "output": steps}, "runs.jsonl:3", noted)
    assert rollout.steps[2:] == (result("A"), result("B"))
    assert (rollout.callers, noted["results_reordered"]) == (((1, "search"), (2, "browse")), 1)


@pytest.mark.parametrize(
    ("steps", "callers"),
    [
        ([call(1), output(1, "A"), call(1), output(1, "B")], [1, 2]),
        ([call(1), call(1), output(1, "A"), output(1, "B")], [1, 2]),
        ([call(1), call(2), output(2, "A"), call(1), output(1, "B")], [2, 3]),
        ([call(1), output(1, "A"), output(1, "more")], [1, 1]),
    ],
)
def test_an_id_that_is_used_again_is_paired_by_order(steps: Any, callers: list[int]) -> None:
    """Servers that count the calls of each turn begin with `call_0` in every turn."""
    assert [number for number, _ in read(steps).callers] == callers


@pytest.mark.parametrize(
    ("asked", "question"),
    [
        ("Who built it?", "Who built it?"),
        ("Be brief.\n\nQuestion:\nWho built\nit?", "Who built\nit?"),
        (
            [
                message("system", "Question:\nnot this"),
                {"role": "user", "content": [{"text": "Who?"}]},
            ],
            "Who?",
        ),
        # Carried on: its calls are in the request, which ends with a demand for the answer.
        ([message("system", "Search."), message("user", "Who?"), *LOOK, NUDGE], "Who?"),
        ([message("user", "Hi"), message("assistant", "Hello!"), message("user", "Who?")], "Who?"),
    ],
)
def test_the_question_is_the_last_turn_of_the_user_before_the_first_call(
    asked: Any, question: str
) -> None:
    rollout = read([*LOOK, message("assistant", "Ada.")], asked)
    assert (rollout.question, rollout.answer) == (question, "Ada.")
    nudges = [step.value["content"] for step in rollout.steps if isinstance(step, Unknown)]
    assert nudges == [NUDGE["content"]] * (isinstance(asked, list) and NUDGE in asked)
    turns = [turn["content"] for turn in rollout.fields.get("input", ())]
    assert not turns or question in turns[-1]


@pytest.mark.parametrize("ends", [[message("assistant", "Ada.")], submit(2, "Ada.")])
def test_a_turn_of_the_user_behind_an_answer_is_a_second_question(ends: list[Any]) -> None:
    again = [message("user", "And when?"), message("assistant", "In 1842.")]
    with pytest.raises(BadRow, match=r"^runs.jsonl:3: a question after .*: And when\?"):
        read([*LOOK, *ends, *again])
    talk = [message("assistant", "I search."), *LOOK, message("system", "One turn."), NUDGE, *ends]
    assert read(talk).answer == "Ada."
    like = [call(1, "get_answer", query="capital"), output(1, "Paris it is."), NUDGE]
    assert read([*like, message("assistant", "Paris")]).answer == "Paris"


def test_thoughts_and_words_between_calls_are_reasoning() -> None:
    steps = [
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look it up."}]},
        message("assistant", "I will search."),
        *LOOK,
        message("assistant", "<think>x says.</think>Ada."),
    ]
    assert read(steps).steps == (
        *(Reasoning("Look it up."), Reasoning("I will search."), Search("1"), result("x")),
        *(Reasoning("x says."), Answer("Ada.", "answer")),
    )
    assert read([*LOOK, message("assistant", "<think>It was cut")]).answer == ""
    assert read([message("assistant", "I will search."), *LOOK]).answer == ""


@pytest.mark.parametrize(
    ("ends", "answers"),
    [
        (submit(2, "Ada"), ["Ada"]),
        ([*submit(2, "Ada"), message("assistant", "I have submitted it.")], ["Ada"]),
        ([*submit(2, "Ada"), *submit(3, "Bob")], ["Bob"]),
        ([*submit(2, "Ada"), call(3), output(3, "y"), *submit(4, "Bob")[:1]], ["Bob"]),
        (
            [submit(2, "Ada")[0], submit(3, "Bob")[0], output(2, "ok"), output(3, "ok")],
            ["Ada", "Bob"],
        ),
        ([call(2, "submit_answer", first="Ada", second="Bob")], []),
    ],
)
def test_the_last_calls_hand_in_the_answer(ends: list[Any], answers: list[str]) -> None:
    noted: Counter[str] = Counter()
    rollout = read_rollout({"input": "Who?", "output": [*LOOK, *ends]}, "runs.jsonl:3", noted)
    assert [step.content for step in rollout.steps if isinstance(step, Answer)] == answers
    assert noted["submissions_unclear"] == (not answers)


def test_items_of_unknown_type_stay_in_their_places() -> None:
    rollout = read([{"type": "web_search_call"}, *LOOK, {}])
    assert rollout.steps[0] == Unknown("web_search_call", {"type": "web_search_call"})
    assert rollout.steps[-1] == Unknown("without type", {})


def test_chat_messages_are_the_rollout_that_items_of_a_response_are() -> None:
    talk = [message("user", "Hi"), message("assistant", "Hello!"), message("user", "Who?")]
    asked = {"id": "c1", "function": {"name": "search", "arguments": {"q": "1", "n": None}}}
    messages = [
        *talk,
        {"role": "assistant", "content": "<think>Hm.</think>I look.", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": 7},
        message("assistant", "Ada."),
    ]
    items = [message("assistant", "<think>Hm.</think>I look."), call(1), output(1, "7")]
    noted: Counter[str] = Counter()
    chat = read_rollout({"messages": messages, "reward": 1}, "runs.jsonl:3", noted)
    other = read([*items, message("assistant", "Ada.")], talk, reward=1)
    assert (chat.question, chat.steps, chat.fields) == (other.question, other.steps, other.fields)
    assert (chat.form, other.form, noted["numbers_as_text"]) == ("chat", "responses", 1)


FAULTS = [
    ([1], "step_not_object", r"input \+ output\[1\] is 1, expected an object"),
    ("x", "no_form", "the row has: responses_create_params, response"),
    ([{"type": "function_call", "call_id": "c", "name": ""}], "malformed", "names no function"),
    ([output(9, "y")], "result_before_search", "an output answers no call: y"),
    ([{"role": "assistant", "content": {"a": [1]}}], "", ""),
]


@pytest.mark.parametrize(("steps", "reason", "said"), FAULTS)
def test_a_fault_names_row_and_item(steps: Any, reason: str, said: str) -> None:
    if not reason:
        assert read(steps).answer == '{"a": [1]}'
        return
    with pytest.raises(BadRow, match=rf"^runs\.jsonl:3: .*{said}") as caught:
        read(steps)
    assert caught.value.reason == reason


def test_a_package_may_add_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Form(lambda row: "log" in row, lambda row, _: Rollout("a", row["log"], ()), "a `log`")

    class Entry:
        name = "log"

        def load(self) -> Form:
            return log

    monkeypatch.setattr(forms, "entry_points", lambda group: [Entry()])
    forms.rollout_forms.cache_clear()
    try:
        rollout = read_rollout({"log": "Who?"}, "a.log:1", Counter())
    finally:
        forms.rollout_forms.cache_clear()
    assert (rollout.question, rollout.form, rollout.where) == ("Who?", "log", "a.log:1")

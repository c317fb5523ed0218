"""Rollouts in the Responses form: what was asked, done and answered, and faults by their place."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.data.response_rollouts import parse_rollout, rollout_forms
from hf_rlhf.data.rollouts import Call, Message, Other, Output, Rollout
from hf_rlhf.data.sources import Row, read_rows
from hf_rlhf.errors import DataError

DATA = Path(
    os.environ.get("HF_RLHF_DATA") or Path(__file__).resolve().parents[2] / "../shared/data"
)


def call(number: int, name: str = "search", **arguments: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": name,
        "arguments": json.dumps(arguments),
    }


def output(number: int, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def parsed(steps: list[Any], asked: Any = "Question:\nWho?", **fields: Any) -> Rollout:
    values = {
        "responses_create_params": {"input": asked},
        "response": {"output": steps},
        **fields,
    }
    return parse_rollout(Row(values, "runs.jsonl:3"))


def test_parallel_calls_find_their_outputs_in_any_order() -> None:
    rollout = parsed([call(1, q="a"), call(2, q="b"), output(2, "B"), output(1, "A")])
    assert [(found.text, found.call and found.call.number) for found in rollout.outputs] == [
        ("B", 2),
        ("A", 1),
    ]


def test_an_id_that_is_used_again_is_paired_by_order() -> None:
    """Servers that count the calls of each turn begin with `call_0` in every turn."""

    def pairs(*steps: Any) -> list[tuple[str, int | None]]:
        return [
            (found.text, found.call and found.call.number) for found in parsed([*steps]).outputs
        ]

    assert pairs(call(1), output(1, "A"), call(1), output(1, "B")) == [("A", 1), ("B", 2)]
    assert pairs(call(1), call(1), output(1, "A"), output(1, "B")) == [("A", 1), ("B", 2)]
    aborted = (call(1), call(2), output(2, "A"), call(1), output(1, "B"))
    assert pairs(*aborted) == [("A", 2), ("B", 3)]
    assert pairs(call(1), output(1, "A"), output(1, "more")) == [("A", 1), ("more", 1)]
    talk = [message("user", "Who?")]
    for text in "AB":
        asked = {"id": "call_0", "function": {"name": "search", "arguments": {"q": text}}}
        talk.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        talk.append({"role": "tool", "tool_call_id": "call_0", "content": text})
    chat = parse_rollout(Row({"messages": talk}, "runs.jsonl:3"))
    assert [found.call and found.call.number for found in chat.outputs] == [1, 2]


def test_the_question_stands_behind_its_framing() -> None:
    system = {"role": "system", "content": "Question:\nnot this"}
    user = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Be brief.\n\nQuestion:\nWho built\nit?"}],
    }
    assert parsed([], [system, user]).question == "Who built\nit?"
    assert parsed([], "Who built it?").question == "Who built it?"
    assert parsed([], []).question == ""


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


NUDGE = "Research is complete. Provide your final answer now."


def test_the_question_is_the_last_turn_of_the_user_before_the_first_call() -> None:
    """The request of a rollout carried on has its calls, and ends with a demand for the answer."""
    asked = [message("system", "Search."), message("user", "Who?"), call(1), output(1, "x")]
    rollout = parsed([message("assistant", "Ada.")], [*asked, message("user", NUDGE)])
    assert (rollout.question, rollout.answer) == ("Who?", "Ada.")
    assert [turn.role for turn in rollout.input] == ["system", "user"]
    assert rollout.later_turns == (Message("user", NUDGE),)
    assert rollout.second_question is None
    assert NUDGE not in rollout.reasoning


def test_turns_before_the_question_are_its_context_wherever_they_stand() -> None:
    talk = [message("user", "Hi"), message("assistant", "Hello!"), message("user", "Who?")]
    steps = [call(1), output(1, "x"), message("assistant", "Ada.")]
    for asked, done in ((talk, steps), (talk[:1], [*talk[1:], *steps])):
        rollout = parsed(done, asked)
        assert rollout.question == "Who?"
        assert rollout.earlier_turns == (Message("user", "Hi"), Message("assistant", "Hello!"))
        assert rollout.steps[0] == Call(1, "c1", "search", "{}")
    without_calls = parsed(
        [message("assistant", "Guido."), *talk[2:], message("assistant", "1991")], "By?"
    )
    assert (without_calls.question, without_calls.answer) == ("Who?", "1991")
    assert without_calls.steps == (Message("assistant", "1991"),)


@pytest.mark.parametrize(
    "ends",
    [[message("assistant", "Ada.")], [call(2, "submit_answer", answer="Ada."), output(2, "ok")]],
)
def test_a_turn_of_the_user_behind_an_answer_is_a_second_question(ends: list[Any]) -> None:
    again = [message("user", "And when?"), message("assistant", "In 1842.")]
    rollout = parsed([call(1), output(1, "x"), *ends, *again], "Who?")
    assert rollout.second_question == Message("user", "And when?")
    talking = [
        message("assistant", "I search."),
        call(1),
        output(1, "x"),
        message("system", "One turn is left."),
        message("user", NUDGE),
        *ends,
    ]
    assert parsed(talking, "Who?").second_question is None


def test_a_thought_in_tags_is_no_part_of_the_answer() -> None:
    rollout = parsed([call(1), output(1, "x"), message("assistant", "<think>x says.</think>Ada.")])
    assert (rollout.answer, rollout.reasoning) == ("Ada.", "x says.")
    assert parsed([call(1), output(1, "x"), message("assistant", "<think>It was cut")]).answer == ""


def test_reasoning_is_what_is_shown_before_the_last_call() -> None:
    steps = [
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look it up."}]},
        {"type": "message", "role": "assistant", "content": "I will search."},
        call(1),
        output(1, "x"),
        {"type": "message", "role": "assistant", "content": [{"text": "It was Ada."}]},
    ]
    rollout = parsed(steps)
    assert rollout.reasoning == "Look it up.\n\nI will search."
    assert rollout.answer == "It was Ada."


def test_a_handed_in_answer_is_the_answer_and_its_echo_no_tool_output() -> None:
    steps = [
        call(1),
        output(1, "found"),
        call(2, "submit_final_result", final_result="It was Ada.", mode="x"),
        output(2, '{"success": true}'),
    ]
    rollout = parsed(steps)
    assert rollout.answer == "It was Ada."
    assert [found.text for found in rollout.outputs] == ["found"]


def test_a_tool_that_is_named_like_a_submission_is_a_tool() -> None:
    steps = [call(1, "get_answer", query="capital"), output(1, "Paris it is."), output(1, "again")]
    rollout = parsed([*steps, message("assistant", "Paris")])
    assert rollout.answer == "Paris"
    assert [found.text for found in rollout.outputs] == ["Paris it is.", "again"]
    assert parsed([*steps, message("user", "Provide your final answer.")]).second_question is None


def test_a_submission_counts_before_what_the_agent_says_of_it() -> None:
    steps = [call(1), output(1, "x"), call(2, "submit_answer", answer="Ada"), output(2, "ok")]
    rollout = parsed([*steps, message("assistant", "I have submitted it.")])
    answers = [event.text for event in rollout.events if event.kind == "answer"]
    assert (rollout.answer, answers) == ("Ada", ["Ada"])
    corrected = parsed([*steps, call(3, "submit_answer", answer="Bob"), output(3, "ok")])
    assert [event.text for event in corrected.events if event.kind == "answer"] == ["Bob"]
    again = parsed([*steps, call(3), output(3, "y"), call(4, "submit_answer", answer="Bob")])
    assert again.answer == "Bob"
    assert [event.text for event in again.events if event.kind == "answer"] == ["Bob"]


def test_parallel_submissions_are_all_answers() -> None:
    both = [call(number, "submit_answer", answer=text) for number, text in ((2, "Ada"), (3, "Bob"))]
    rollout = parsed([call(1), output(1, "x"), *both, output(2, "ok"), output(3, "ok")])
    kinds = ["call", "output", "answer", "answer", "answer_echo", "answer_echo"]
    assert [event.kind for event in rollout.events] == kinds


def test_a_submission_without_a_clear_answer_is_a_call_that_is_counted() -> None:
    unclear = call(2, "submit_answer", first="Ada", second="Bob")
    rollout = parsed([call(1), output(1, "x"), unclear])
    assert rollout.answer == ""
    assert rollout.unclear_submission is not None
    assert rollout.unclear_submission.number == 2
    assert parsed([call(1, "get_answer", q="x")]).unclear_submission is None


def test_a_message_before_the_tools_is_no_answer() -> None:
    message = {"type": "message", "role": "assistant", "content": "I will search."}
    assert parsed([message, call(1), output(1, "found")]).answer == ""


def test_unknown_steps_and_outputs_without_call_are_kept_in_sight() -> None:
    rollout = parsed([{"type": "web_search_call"}, {"type": "web_search_call"}, output(9, "x"), {}])
    assert rollout.unknown == {"web_search_call": 2, "without type": 1}
    web_search = Other("web_search_call", {"type": "web_search_call"})
    output_step = Output("x", None)
    assert rollout.steps == (web_search, web_search, output_step, Other("without type", {}))


def test_a_bare_response_is_a_rollout_too() -> None:
    row = Row({"input": "Who?", "output": [call(1)]}, "runs.jsonl:1")
    rollout = parse_rollout(row)
    assert rollout.steps == (Call(1, "c1", "search", "{}"),)
    assert rollout.question == "Who?"


def test_chat_messages_are_the_rollout_that_items_of_a_response_are() -> None:
    talk = [message("user", "Hi"), message("assistant", "Hello!"), message("user", "Who?")]
    asked = {"id": "c1", "function": {"name": "search", "arguments": {"q": "a", "n": None}}}
    messages = [
        *talk,
        {"role": "assistant", "content": "<think>Hm.</think>I look.", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "c1", "content": 7},
        message("assistant", "Ada."),
    ]
    steps = [
        message("assistant", "<think>Hm.</think>I look."),
        call(1, q="a"),
        output(1, "7"),
        message("assistant", "Ada."),
    ]
    chat = parse_rollout(Row({"messages": messages, "reward": 1}, "runs.jsonl:3"))
    other = parsed(steps, talk)
    for name in ("input", "steps", "question", "reasoning", "answer", "outputs", "earlier_turns"):
        assert getattr(chat, name) == getattr(other, name), name
    assert (chat.columns, chat.notes) == (("messages",), {"numbers_as_text": 1})
    assert rollout_forms({"messages": messages}) == ["chat"]
    assert rollout_forms({"messages": [*talk, *steps[1:]]}) == ["responses"]
    assert rollout_forms({"messages": "Hi", "output": "x", "input": 1}) == []


FAULTS = [
    ([1], "output item 1: is int, expected an object"),
    ("x", "field 'output': is str, expected a list"),
    ([{"type": "function_call", "callid": "c", "name": "n"}], "'call_id': .*did you mean 'callid'"),
    ([{"type": "function_call", "call_id": "c", "name": ""}], "'name': is empty, expected a text"),
    ([output(1, 5)], "output item 1, field 'output': is int"),
    ([{"role": "assistant", "content": ["a"]}], "item 1, field 'content': is list"),
]


@pytest.mark.parametrize(("steps", "said"), FAULTS)
def test_a_fault_names_row_and_item(steps: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"^runs\.jsonl:3: .*{said}"):
        parsed(steps)


def test_a_row_that_is_no_rollout_says_what_it_has() -> None:
    with pytest.raises(DataError, match=r"neither response.output nor output \(did you mean 'out"):
        parse_rollout(Row({"input": "Who?", "outputs": []}, "runs.jsonl:1"))


@pytest.mark.skipif(not (DATA / "agent_rollouts").is_dir(), reason="the real rollouts are absent")
def test_ten_real_rollouts_are_read() -> None:
    rows = read_rows(DATA / "agent_rollouts").split("train")
    real = list(map(parse_rollout, rows))
    assert len(real) == 10
    assert all(rollout.question and rollout.answer and rollout.outputs for rollout in real)
    assert all(not rollout.question.startswith("You are") for rollout in real)
    assert all(not rollout.unknown for rollout in real)
    assert all(found.call is not None for rollout in real for found in rollout.outputs)
    names = {found.call.name for rollout in real for found in rollout.outputs if found.call}
    assert "submit_final_result" not in names

"""Answers and calls, read from messages and compared with a task."""

import inspect

import pytest

from hf_rlhf_agents.code import code_of
from hf_rlhf_agents.desk import TOOLS, Desk, Register, ToolUnavailable, calculate
from hf_rlhf_agents.rewards import TaskOutcome, TaskProcess
from hf_rlhf_agents.scores import Called, answer_of, calls_of, process, right, token_f1
from hf_rlhf_agents.tasks import ARGUMENTS, Call, Task

TASK = Task(
    id="t",
    category="c",
    question="q",
    answers=("Tomas Wrede", "Wrede"),
    tools=("search", "read", "calculate"),
    calls=(
        Call(tool="search", arguments={"query": ["mayor"]}),
        Call(tool="read", arguments={"title": "Brannick"}),
        Call(tool="calculate", arguments={"expression": "2*(3+4)"}),
    ),
    documents={"Brannick": "Its mayor is Tomas Wrede."},
)
RIGHT = [
    Called("search", {"query": "the mayor of Brannick"}),
    Called("read", {"title": "brannick"}),
    Called("calculate", {"expression": "(4 + 3) * 2"}),
]


def says(text, **more):
    return [{"role": "assistant", "content": text, **more}]


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        (says("So.\nANSWER: Wrede"), "Wrede"),
        (says("It is\nWrede"), "Wrede"),
        (says("ANSWER: 5\nANSWER: 6"), ""),
        (says("ANSWER: 5\nANSWER: 5."), "5."),
        (says("ANSWER:"), ""),
        (says(""), ""),
        (says(None), ""),
        ([], ""),
        ([*says("ANSWER: 1"), {"role": "tool", "content": "ANSWER: 2"}], ""),
        (says("ANSWER: 1", tool_calls=[{"function": {"name": "read"}}]), ""),
    ],
)
def test_the_answer(messages, answer):
    assert answer_of(messages) == answer


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("tomas wrede.", True),
        ("the Wrede", True),
        ('"Wrede"', True),
        ("Tomas", False),
        ("Wrede or Calder", False),
        ("not Wrede", False),
        ("", False),
    ],
)
def test_texts(answer, is_right):
    assert right(TASK, answer) is is_right


@pytest.mark.parametrize(
    ("answer", "is_right"),
    [
        ("1,131", True),
        ("$1131", True),
        ("1131.0", True),
        ("1131 or 7", False),
        ("11 31x", False),
        ("1 131", True),
        ("11 31", False),
        ("1,1,3,1", False),
        ("1e999", False),
        ("1132", False),
        ("inf", False),
        ("", False),
    ],
)
def test_numbers(answer, is_right):
    task = TASK.model_copy(update={"scored": "number", "answers": ("1131",)})
    assert right(task, answer) is is_right


def test_a_refusal_counts_after_the_calls_that_show_it():
    task = TASK.model_copy(update={"scored": "refusal", "answers": ()})
    assert right(task, "I cannot answer that.", RIGHT)
    assert not right(task, "I cannot answer that.", RIGHT[:1])
    assert not right(task, "Wrede", RIGHT)
    assert not right(task, "The year is not known, perhaps 1893.", RIGHT)
    failing = task.model_copy(update={"fails": {"search": "503 down"}})
    assert right(failing, "I cannot answer: error 503.", RIGHT)


def test_f1():
    assert token_f1(TASK, "Tomas") == pytest.approx(2 / 3)
    assert token_f1(TASK, "Calder") == 0.0


def test_calls_that_no_calculator_computes_are_other_calls():
    made = Called("calculate", {"expression": "*".join(["10**100"] * 5)})
    assert process(TASK, [made]).matched == 0


@pytest.mark.parametrize(
    ("calls", "score", "matched", "wasted"),
    [
        (RIGHT, 1.0, 3, 0),
        ([], 0.0, 0, 0),
        (RIGHT[:2], 2 / 3, 2, 0),
        ([RIGHT[1], RIGHT[0], RIGHT[2]], 1 / 3, 2, 1),
        ([*RIGHT, RIGHT[0], RIGHT[0]], 0.6, 3, 2),
        ([Called("search", {"query": "weather"}), *RIGHT[1:]], 2 / 3, 2, 1),
        ([Called("search", None), Called("nothing", {})], 0.0, 0, 2),
    ],
)
def test_process(calls, score, matched, wasted):
    found = process(TASK, calls)
    assert (found.score, found.matched, found.wasted) == (pytest.approx(score), matched, wasted)


def test_process_without_expected_calls():
    task = TASK.model_copy(update={"calls": ()})
    assert (process(task, []).score, process(task, RIGHT).score) == (1.0, 0.0)


def test_calls_are_read_from_objects_and_texts():
    functions = [
        {"name": "read", "arguments": {"title": "B"}},
        {"name": "read", "arguments": '{"title": "B"}'},
        {"name": "read", "arguments": "{broken"},
        {"name": "read", "arguments": "[1]"},
        {"name": "read", "arguments": "[" * 100_000},
    ]
    messages = [
        {"role": "user", "content": "", "tool_calls": [{"function": functions[0]}]},
        *says("", tool_calls=[{"function": each} for each in functions]),
    ]
    assert [call.arguments for call in calls_of(messages)] == [{"title": "B"}] * 2 + [None] * 3


def row(task=TASK):
    return {"task": [task.model_dump_json()]}


def test_turns_earn_what_they_raise_the_process_by():
    calls = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": c.tool, "arguments": c.arguments}}],
        }
        for c in (RIGHT[0], RIGHT[0], RIGHT[1])
    ]
    completion = [*calls, {"role": "tool", "content": "x"}, *says("ANSWER: Wrede")]
    reward = TaskProcess()
    (turns,) = reward.turn_scores([""], [completion], **row())
    assert turns == pytest.approx([1 / 3, 0.0, 0.0, 0.0]) or len(turns) == 4
    assert sum(turns) == pytest.approx(reward([""], [completion], **row())[0])


def test_a_tool_that_could_not_run_is_no_score():
    desk = Desk()
    with pytest.raises(ToolUnavailable):
        desk.read("Brannick")
    reward = TaskOutcome()
    assert reward([""], [says("ANSWER: Wrede")], **row(), environments=[desk]) == [None]
    desk.reset(task=TASK.model_dump_json())
    assert reward([""], [says("ANSWER: Wrede")], **row(), environments=[desk]) == [1.0]
    with pytest.raises(ValueError, match="no document"):
        desk.read("Nowhere")
    assert not desk.unavailable, "bad arguments are the model's fault"


def test_tools():
    desk = Desk()
    fails = {"read: brannick": "503", "calculate": "down"}
    desk.reset(task=TASK.model_copy(update={"fails": fails}).model_dump_json())
    assert desk.search("who is mayor?") == "Brannick: Its mayor is Tomas Wrede."
    assert desk.search("zzz") == "no results"
    for call in (lambda: desk.read("Brannick"), lambda: desk.calculate("1+1")):
        with pytest.raises(ValueError, match="503|down"):
            call()
    register = Register()
    register.reset(task=TASK.model_copy(update={"facts": 0}).model_dump_json())
    assert register.lookup("mayor", "Barby").startswith("The mayor of Barby is ")
    for relation, name in (("mayor", "Nowhere"), ("mentor", "Barby")):
        with pytest.raises(ValueError, match="in the register"):
            register.lookup(relation, name)


def test_every_tool_has_an_environment():
    assert TOOLS.keys() == ARGUMENTS.keys()
    for name, environment in TOOLS.items():
        taken = inspect.signature(getattr(environment, name)).parameters
        assert set(taken) - {"self"} == ARGUMENTS[name]


def test_long_results_are_cut_and_say_so():
    desk = Desk()
    long = TASK.model_copy(update={"documents": {"D": "x" * 1_000_000}})
    desk.reset(task=long.model_dump_json())
    assert desk.read("D").endswith("[cut: 1000000 characters]")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2*(3+4)", "14"), ("2^10", "1024"), ("7/2", "3.5"), ("0.1+0.2", "0.3"), ("-5 // 2", "-3")],
)
def test_calculator(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1/0",
        "9**9**9",
        "__import__('os')",
        "a+1",
        "1;2",
        "(1",
        "'a'*9",
        "(-8)**0.5",
        "10**400*1.0",
        "True+1",
        "((-8)**0.5) % 2",
        "*".join(["10**100"] * 5),
    ],
)
def test_calculator_refuses(expression):
    with pytest.raises(ValueError, match=r"comput|power|only|numbers"):
        calculate(expression)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FIXED CODE:\n```python\na = 1\n```", "a = 1"),
        ("FIXED CODE:\na = 1", "a = 1"),
        ("```\na\n```\n```py\nb\n```", "b"),
        ("```python\na\n```\nFIXED CODE: \n```python\nb\n```\nDone.", "b"),
        ("none", ""),
    ],
)
def test_code_of_an_answer(text, code):
    assert code_of(text) == code

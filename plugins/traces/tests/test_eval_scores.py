"""The metrics of a reply: what is 1, what is 0, and what is not defined."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hf_rlhf_rollouts import Answer, Document, Reasoning, Search, SearchResult, Step
from hf_rlhf_traces.evaluation.metrics import METRICS, TaskName, metrics_of
from hf_rlhf_traces.evaluation.scores import Expected, is_valid, read_reply, score
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.summary import Quote, Summary, render

FORM = Format()
DOCUMENT = "The mayor of Tarn is Kira Voss. Tarn lies by the sea."
CONTEXT = "\n".join(
    [
        FORM.question_text("Who is the mayor of Tarn?"),
        FORM.turn_text([Reasoning("I need the mayor."), Search("mayor of Tarn")]),
        FORM.results_text([SearchResult((Document("Tarn", DOCUMENT),))]),
    ]
)
SUMMARY = Summary(
    "Who is the mayor of Tarn?",
    "I looked for the mayor.",
    (Quote("The mayor of Tarn is Kira Voss.", "Tarn"),),
)
WRITTEN = render(SUMMARY, FORM)
ANSWER = FORM.turn_text([Reasoning("It is said there."), Answer("Kira Voss")])
SEARCH = FORM.turn_text([Reasoning("More."), Search("age of Kira Voss")])


def expected(task: TaskName, reply: str, answers: tuple[str, ...] = ("Kira Voss",)) -> Expected:
    text = f"{WRITTEN}\n{reply}" if task == "prefix" else reply
    return Expected(task, text, CONTEXT, answers)


def scored(text: str, wanted: Expected, *, cut_off: bool = False) -> Mapping[str, float | None]:
    def count(part: str) -> int:
        return 50 if part == CONTEXT else 10

    return score(text, wanted, FORM, count=count, tokens=20, cut_off=cut_off)


@pytest.mark.parametrize("task", ["prefix", "only"])
@pytest.mark.parametrize("reply", [ANSWER, SEARCH])
def test_the_expected_reply_is_the_best_there_is(task: TaskName, reply: str) -> None:
    wanted = expected(task, reply)
    scores = scored(wanted.text, wanted)
    assert scores.keys() == {one.name for one in metrics_of(task)}
    for name, value in scores.items():
        if value is not None and METRICS[name].better and name != "cut_off":
            assert value == float(METRICS[name].better == "higher"), name
    asked = "answer_f1" if reply == ANSWER else "query_f1"
    other = "query_f1" if reply == ANSWER else "answer_f1"
    assert scores[asked] == 1
    assert scores[other] is None


@pytest.mark.parametrize("task", ["prefix", "only"])
@pytest.mark.parametrize(
    "text", ["", "Sure! Kira Voss.", "<answer>", "<summary><question>x", "</s>"]
)
def test_rubbish_is_worth_nothing(task: TaskName, text: str) -> None:
    for reply, names in (
        (ANSWER, ("answer_exact", "answer_f1", "expected_exact", "expected_f1")),
        (SEARCH, ("query_f1",)),
    ):
        scores = scored(text, expected(task, reply))
        assert [scores[name] for name in (*names, "format_valid", "kind_right")] == [0] * (
            len(names) + 2
        )
        if task == "prefix":
            assert (scores["summary_valid"], scores["summary_rouge_l"]) == (0, 0)
            assert scores["quotes_recall"] == 0
            assert scores["quotes_verbatim"] is scores["compression"] is None


SAYS: list[tuple[list[Step], bool]] = [
    ([Answer("x")], True),
    ([Reasoning("r"), Search("q"), Search("p")], True),
    ([Search("q"), Reasoning("r"), Search("p", "edgar")], True),
    ([Reasoning("tags: <answer>"), Search("</search>")], True),
    ([Search("q"), Reasoning("r")], False),
    ([Reasoning("r")], False),
    ([Answer("x"), Answer("y")], False),
    ([Search("q"), Answer("x")], False),
    ([Search(" ")], False),
    ([], False),
]


@pytest.mark.parametrize(("steps", "valid"), SAYS)
def test_what_follows_is_reasoning_and_then_searches_or_an_answer(
    steps: list[Step], valid: bool
) -> None:
    text = FORM.turn_text(steps)
    assert is_valid(read_reply(text, "only", FORM), FORM) is valid
    for whole in (f"{WRITTEN}\n{text}", f"\n{WRITTEN}{text}\n"):
        assert is_valid(read_reply(whole, "prefix", FORM), FORM) is valid


@pytest.mark.parametrize(
    "text",
    [
        f"Here: {WRITTEN}\n{ANSWER}",
        f"{WRITTEN}\n{ANSWER}\nDone.",
        ANSWER,
        f"{WRITTEN}\n{WRITTEN}\n{ANSWER}",
        WRITTEN,
        f"{WRITTEN.replace('<reasoning>', '')}\n{ANSWER}",
        f"{WRITTEN.replace('</summary>', '')}\n{ANSWER}",
        f"{WRITTEN}\n<think><think>r</think><answer>x</answer>",
    ],
)
def test_anything_else_is_not_of_the_form(text: str) -> None:
    assert not is_valid(read_reply(text, "prefix", FORM), FORM)


BOTH = FORM.turn_text([Answer("Kira Voss"), Search("age of Kira Voss")])
WRONG = ANSWER.replace("Kira Voss", "Odo Lenn")


@pytest.mark.parametrize(
    ("said", "wanted", "scores"),
    [
        (WRONG, ANSWER, {"format_valid": 1, "kind_right": 1, "answer_f1": 0, "expected_exact": 0}),
        (ANSWER, SEARCH, {"answer_f1": None, "kind_right": 0, "query_f1": 0}),
        (BOTH, ANSWER, {"kind_right": 0}),
        (BOTH, SEARCH, {"kind_right": 0}),
    ],
)
def test_another_reply_than_the_expected_one(
    said: str, wanted: str, scores: dict[str, float | None]
) -> None:
    found = scored(said, expected("only", wanted))
    assert {name: found[name] for name in scores} == scores


def quoted(*quotes: str) -> Mapping[str, float | None]:
    summary = replace(SUMMARY, quotes=tuple(Quote(one) for one in quotes))
    return scored(f"{render(summary, FORM)}\n{ANSWER}", expected("prefix", ANSWER))


FACT = "The mayor of Tarn is Kira Voss."


@pytest.mark.parametrize(
    ("quotes", "verbatim", "recall"),
    [
        ((FACT, "The mayor of Tarn is Odo Lenn."), 0.5, 1),
        ((), None, 0),
        (("Tarn",), 1, pytest.approx(1 / 7)),
        (("Kira Voss is the mayor of Tarn.",), 0, 0),  # the words, and no quote
        (("I need the mayor.",), 0, 0),  # what the agent thought
    ],
)
def test_quotes_are_faithful_and_recall_what_was_to_be_quoted(
    quotes: tuple[str, ...], verbatim: float | None, recall: float
) -> None:
    scores = quoted(*quotes)
    assert (scores["quotes_verbatim"], scores["quotes_recall"]) == (verbatim, recall)


def test_lengths_are_in_tokens_and_undefined_without_a_summary() -> None:
    wanted = expected("prefix", ANSWER)
    scores = scored(wanted.text, wanted, cut_off=True)
    assert (scores["compression"], scores["summary_tokens"]) == (0.2, 10)
    assert (scores["tokens"], scores["cut_off"]) == (20, 1)
    assert scored(ANSWER, wanted)["compression"] is None

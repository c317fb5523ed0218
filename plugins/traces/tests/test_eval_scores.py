"""The metrics of a reply: what is 1, what is 0, and what is not defined."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf_traces.evaluation.metrics import METRICS, Task, metrics_of
from hf_rlhf_traces.evaluation.scores import Expected, Lengths, is_valid, read_reply, score
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.summary import Quote, Summary, render
from hf_rlhf_traces.trace import Answer, Document, Reasoning, Search, SearchResult, Step

FORM = Format()
DOCUMENT = "The mayor of Tarn is Kira Voss. Tarn lies by the sea."
CONTEXT = "\n".join(
    [
        FORM.asked("Who is the mayor of Tarn?"),
        FORM.said([Reasoning("I need the mayor."), Search("mayor of Tarn")]),
        FORM.found([SearchResult((Document("Tarn", DOCUMENT),))]),
    ]
)
SUMMARY = Summary(
    "Who is the mayor of Tarn?",
    "I looked for the mayor.",
    (Quote("The mayor of Tarn is Kira Voss.", "Tarn"),),
)
WRITTEN = render(SUMMARY, FORM)
ANSWER = FORM.said([Reasoning("It is said there."), Answer("Kira Voss")])
SEARCH = FORM.said([Reasoning("More."), Search("age of Kira Voss")])
PIECES = st.lists(st.sampled_from([*WRITTEN.split("\n"), ANSWER, SEARCH])).map("\n".join)
LENGTHS = Lengths(reply=20, summary=10, context=50, cut_off=False)


def expected(task: Task, reply: str, known: tuple[str, ...] = ("Kira Voss",)) -> Expected:
    text = f"{WRITTEN}\n{reply}" if task == "prefix" else reply
    return Expected(task, text, CONTEXT, known)


def scored(text: str, wanted: Expected) -> Mapping[str, float | None]:
    lengths = replace(LENGTHS, summary=10 if "</summary>" in text else None)
    return score(text, wanted, lengths, FORM)


@pytest.mark.parametrize("task", ["prefix", "only"])
@pytest.mark.parametrize("reply", [ANSWER, SEARCH])
def test_the_expected_reply_is_the_best_there_is(task: Task, reply: str) -> None:
    wanted = expected(task, reply)
    found = scored(wanted.text, wanted)
    assert found.keys() == {one.name for one in metrics_of(task)}
    for name, value in found.items():
        if value is not None and METRICS[name].better and name != "cut_off":
            assert value == float(METRICS[name].better == "higher"), name
    asked = "answer_f1" if reply == ANSWER else "query_f1"
    other = "query_f1" if reply == ANSWER else "answer_f1"
    assert found[asked] == 1
    assert found[other] is None


@pytest.mark.parametrize("task", ["prefix", "only"])
@pytest.mark.parametrize(
    "text", ["", "Sure! Kira Voss.", "<answer>", "<summary><question>x", "</s>"]
)
def test_rubbish_is_worth_nothing(task: Task, text: str) -> None:
    for reply, names in (
        (ANSWER, ("answer_exact", "answer_f1", "expected_exact", "expected_f1")),
        (SEARCH, ("query_f1", "query_similarity")),
    ):
        found = scored(text, expected(task, reply))
        assert [found[name] for name in (*names, "format_valid", "kind_right")] == [0] * (
            len(names) + 2
        )
        if task == "prefix":
            assert (found["summary_valid"], found["summary_rouge_l"]) == (0, 0)
            assert (found["quotes_recall"], found["quotes_none"]) == (0, 1)
            assert found["quotes_verbatim"] is found["compression"] is None


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from([*WRITTEN.split("\n"), ANSWER, SEARCH])).map("\n".join)
)
def test_any_text_has_metrics_within_their_bounds(text: str) -> None:
    for task in ("prefix", "only"):
        for reply in (ANSWER, SEARCH):
            for name, value in scored(text, expected(task, reply)).items():
                if value is not None and METRICS[name].bounded:
                    assert 0 <= value <= 1, name


def test_the_answer_of_another_sample_is_not_right() -> None:
    found = scored(ANSWER.replace("Kira Voss", "Odo Lenn"), expected("only", ANSWER))
    assert found["format_valid"] == found["kind_right"] == 1
    assert found["answer_f1"] == found["expected_exact"] == 0


def test_the_nearest_of_several_known_answers_counts() -> None:
    wanted = expected("only", FORM.said([Answer("She is Kira Voss")]), ("Voss", "K. Voss"))
    found = scored(FORM.said([Answer("voss")]), wanted)
    assert found["expected_exact"] == 1
    assert found["answer_exact"] == 0
    assert scored(ANSWER, expected("only", ANSWER, ()))["expected_f1"] is None


def test_an_answer_where_a_search_is_expected_is_no_answer_metric() -> None:
    found = scored(ANSWER, expected("only", SEARCH))
    assert found["answer_f1"] is None
    assert (found["kind_right"], found["query_f1"]) == (0, 0)


def test_both_an_answer_and_a_search_hits_neither() -> None:
    both = FORM.said([Answer("Kira Voss"), Search("age of Kira Voss")])
    assert scored(both, expected("only", ANSWER))["kind_right"] == 0
    assert scored(both, expected("only", SEARCH))["kind_right"] == 0


SAYS: list[tuple[list[Step], bool]] = [
    ([Answer("x")], True),
    ([Reasoning("r"), Answer("x")], True),
    ([Reasoning("r"), Reasoning("r"), Search("q")], True),
    ([Reasoning("r"), Search("q"), Search("p")], True),
    ([Search("q"), Reasoning("r"), Search("p", "edgar")], True),
    ([Reasoning("tags: <answer>"), Search("</search>")], True),
    ([Search("q"), Reasoning("r")], False),
    ([Reasoning("r")], False),
    ([Answer("x"), Answer("y")], False),
    ([Search("q"), Answer("x")], False),
    ([Answer("x"), Search("q")], False),
    ([Search(" ")], False),
    ([Answer("")], False),
    ([], False),
]


@pytest.mark.parametrize(("steps", "valid"), SAYS)
def test_what_follows_is_reasoning_and_then_searches_or_an_answer(
    steps: list[Step], valid: bool
) -> None:
    text = FORM.said(steps)
    assert is_valid(read_reply(text, "only", FORM), FORM) is valid
    for whole in (f"{WRITTEN}\n{text}", f"\n{WRITTEN}{text}\n"):
        assert is_valid(read_reply(whole, "prefix", FORM), FORM) is valid


@pytest.mark.parametrize(
    "text",
    [
        f"Here: {WRITTEN}\n{ANSWER}",
        f"{WRITTEN}\n{ANSWER}\nDone.",
        f"{WRITTEN}\nSo: {ANSWER}",
        ANSWER,
        f"{WRITTEN}\n{WRITTEN}\n{ANSWER}",
        f"{ANSWER}\n{WRITTEN}",
        WRITTEN,
        f"{WRITTEN.replace('<reasoning>', '')}\n{ANSWER}",
        f"{WRITTEN.replace('</summary>', '')}\n{ANSWER}",
        f"{WRITTEN}\n<answer>x</answer",
        f"{WRITTEN}\n<think><think>r</think><answer>x</answer>",
    ],
)
def test_anything_else_is_not_of_the_form(text: str) -> None:
    assert not is_valid(read_reply(text, "prefix", FORM), FORM)


def quoted(*quotes: str) -> Mapping[str, float | None]:
    summary = replace(SUMMARY, quotes=tuple(Quote(one) for one in quotes))
    return scored(f"{render(summary, FORM)}\n{ANSWER}", expected("prefix", ANSWER))


def test_an_invented_quote_is_counted() -> None:
    found = quoted("The mayor of Tarn is Kira Voss.", "The mayor of Tarn is Odo Lenn.")
    assert (found["quotes_verbatim"], found["quotes_invented"]) == (0.5, 1)
    assert found["quotes_recall"] == 1


def test_saying_nothing_is_not_faithful() -> None:
    found = quoted()
    assert found["quotes_verbatim"] is found["quotes_invented"] is None
    assert (found["quotes_recall"], found["quotes_none"]) == (0, 1)


def test_a_single_word_is_faithful_and_recalls_little() -> None:
    found = quoted("Tarn")
    assert found["quotes_verbatim"] == 1
    assert found["quotes_recall"] == pytest.approx(1 / 7)


def test_what_is_invented_recalls_nothing() -> None:
    # The words are the expected ones, but the quote is not in the context.
    found = quoted("Kira Voss is the mayor of Tarn.")
    assert (found["quotes_verbatim"], found["quotes_recall"]) == (0, 0)


def test_quotes_of_what_the_agent_thought_are_invented() -> None:
    assert quoted("I need the mayor.")["quotes_verbatim"] == 0


@given(st.integers(0, len(DOCUMENT) - 1), st.integers(1, len(DOCUMENT)))
def test_whatever_is_cut_out_of_a_document_is_verbatim(start: int, size: int) -> None:
    text = DOCUMENT[start : start + size].strip()
    if text:
        assert quoted(text)["quotes_verbatim"] == 1


def test_lengths_are_in_tokens_and_undefined_without_a_summary() -> None:
    wanted = expected("prefix", ANSWER)
    found = score(wanted.text, wanted, Lengths(20, 10, 50, True), FORM)
    assert (found["compression"], found["summary_tokens"]) == (0.2, 10)
    assert (found["tokens"], found["cut_off"]) == (20, 1)
    assert score(ANSWER, wanted, Lengths(20, None, 50, True), FORM)["compression"] is None

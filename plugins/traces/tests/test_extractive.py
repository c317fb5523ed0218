"""The summariser without a model: what it quotes, within which limits, and in which languages."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_rollouts import Answer, Document, Reasoning, Rollout, Search, SearchResult, Step
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.samples import step_rows
from hf_rlhf_traces.summaries.extractive import Extractive
from hf_rlhf_traces.summaries.sentences import sentences
from hf_rlhf_traces.summaries.summary import Summary, are_verbatim, parse, render
from hf_rlhf_traces.synthetic import synthetic_traces as traces
from hf_rlhf_worlds.multihop import Recipe, World

FORM = Format()
TRICKY = st.sampled_from(
    ["<think>", "</information>", "Doc 1 (Title: x)\n", "\nDoc 2 (Title: <b>)\n", '"', "&lt;"]
    + [". ", "。", "\n", "\x1c", "\u202eא", "ไทย", "ß", "🙂", "a" * 450, "\u3000", "</quote>"]
)
TEXT = st.lists(TRICKY | st.text(max_size=12), max_size=8).map("".join)
STEPS = st.lists(
    st.builds(Reasoning, TEXT)
    | st.builds(Search, TEXT)
    | st.builds(SearchResult, st.lists(st.builds(Document, TEXT, TEXT), max_size=3).map(tuple)),
    max_size=8,
).map(lambda steps: (*steps, Answer("x")))


def row_of(*steps: Step, question: str = "Who?") -> Any:
    rows, _ = step_rows(Rollout("t", question, (*steps, Answer("x"))), FORM)
    return rows[-1]


def summary_of(*steps: Step, question: str = "Who?", **limits: Any) -> Summary:
    return Extractive(FORM, **limits).summarise(row_of(*steps, question=question))


@settings(max_examples=20)
@given(STEPS, TEXT, st.integers(1, 60))
def test_quotes_are_always_word_for_word_and_within_the_limit(
    steps: tuple[Step, ...], question: str, limit: int
) -> None:
    rows, _ = step_rows(Rollout("t", question, steps), FORM)
    by = Extractive(FORM, max_quote_chars=limit, max_reasoning_chars=limit)
    for row in rows:
        summary = by.summarise(row)
        assert summary.question == question
        assert all(quote.text.strip() for quote in summary.quotes)
        assert all(are_verbatim(summary.quotes, row["prompt"], FORM))
        assert len(summary.reasoning) <= limit
        assert sum(len(quote.text) for quote in summary.quotes) <= limit
        assert by.summarise(row) == Extractive(FORM, limit, limit).summarise(row) == summary
        if question.strip():
            read = parse(render(summary, FORM), FORM)
            assert all(are_verbatim(read.quotes, row["prompt"], FORM))


@pytest.mark.parametrize(
    ("language", "asked", "right", "wrong"),
    [
        ("German", "Wer gründete ÄSKULAP?", "Äskulap gründete Ada.", "Bo mag Tee. Cy malt."),
        ("Chinese", "谁创立了远山公司？", "远山公司由王芳创立。", "今天天气很好。他喜欢喝茶。"),
        ("Thai", "ใครก่อตั้งบริษัท", "บริษัทก่อตั้งโดยสมชาย", "วันนี้อากาศดีมาก"),
        ("Arabic", "من أسس الشركة؟", "أسس أحمد الشركة عام 1925.", "الطقس جميل اليوم. القط نائم."),
        ("Hindi", "कंपनी की स्थापना किसने की?", "कंपनी की स्थापना राम ने की।", "आज मौसम अच्छा है।"),
    ],
)
def test_the_sentence_that_was_asked_for_is_quoted_in_any_language(
    language: str, asked: str, right: str, wrong: str
) -> None:
    found = SearchResult((Document("T", f"{wrong}\n\n{right}\n\n{wrong}"),))
    summary = summary_of(Search(asked), found, question=asked)
    assert [quote.text for quote in summary.quotes] == [right]


def test_wrapped_text_and_records_are_not_torn_into_lines() -> None:
    text = "Ada led\nAlder. Bo\ndid not.\n\ncik: 7\nform: 8-K\n\n" + "row of a table\n" * 60
    cut = [text[start:end] for start, end in sentences(text)]
    assert cut[:3] == ["Ada led\nAlder.", "Bo\ndid not.", "cik: 7\nform: 8-K"]
    assert [len(piece) for piece in cut[3:]] == [21 * 15 - 1] * 2 + [18 * 15 - 1]


def test_each_result_is_quoted_and_the_newest_first_when_room_is_short() -> None:
    steps: list[Step] = []
    for number in range(5):
        steps += [Search(f"fact {number}"), SearchResult((Document("T", f"Fact {number} is so."),))]
    texts = [quote.text for quote in summary_of(*steps).quotes]
    assert texts == [f"Fact {number} is so." for number in range(5)]
    texts = [quote.text for quote in summary_of(*steps, max_quote_chars=30).quotes]
    assert texts == ["Fact 3 is so.", "Fact 4 is so."]


def test_long_reasoning_is_cut_to_the_last_sentence_of_each_thought() -> None:
    found = SearchResult((Document("T", "x"),))
    steps = (Reasoning("First A. Then B."), found, Reasoning("On C.\nSo D."), found)
    assert summary_of(*steps).reasoning == "First A. Then B.\nOn C.\nSo D."
    assert summary_of(*steps, max_reasoning_chars=20).reasoning == "Then B.\nSo D."
    assert summary_of(*steps, max_reasoning_chars=5).reasoning == "So D."
    unseen = (Search("one"), found, Search("two"), found)
    assert summary_of(*unseen).reasoning == "one\ntwo"  # thoughts may be encrypted


@pytest.mark.parametrize("recipe", [Recipe(5), Recipe(6, hops=(2, 4), documents=6, sentences=20)])
def test_the_fact_for_the_next_hop_is_quoted(recipe: Recipe) -> None:
    by = Extractive(FORM)
    world = World(recipe.seed)
    quoted = total = 0
    for trace in traces(recipe, 20):
        for row in step_rows(trace, FORM)[0]:
            needed = re.findall(r"<search>(\w+) of (\w+)</search>", row["prompt"])[-1]
            fact = world.hop(*needed).sentence
            assert fact in row["answer"]
            total += 1
            quoted += any(fact in quote.text for quote in by.summarise(row).quotes)
    assert quoted == total > 20

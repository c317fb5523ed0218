"""A summary as text in tags and back, and what counts as quoted word for word."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_rollouts import Document, SearchResult
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.summary import (
    Malformed,
    Quote,
    Summary,
    are_verbatim,
    parse,
    render,
    split,
)

FORM = Format()
TRICKY = st.sampled_from(
    [
        *("<summary>", "</summary>", "</question>", "<quote", "</quote>", '<quote title="a">'),
        *("<\\evidence>", "</reasoning", "\\", "<", ">", '"', "&quot;", "&", "\u202eא", "\x00"),
        *("<think>", "</information>", "\ud800", "\n"),
    ]
)
TEXT = st.lists(TRICKY | st.text(max_size=8), max_size=5).map("".join).map(str.strip)
SUMMARIES = st.builds(
    Summary,
    TEXT.filter(bool),
    TEXT,
    st.lists(st.builds(Quote, TEXT, TEXT), max_size=3).map(tuple),
)


@settings(max_examples=50)
@given(SUMMARIES, TEXT)
def test_a_summary_is_the_same_after_it_was_written_and_read(summary: Summary, after: str) -> None:
    text = render(summary, FORM)
    assert parse(text, FORM) == summary
    assert split(text + after, FORM) == (summary, after)


WHOLE = render(Summary("Q", "R", (Quote("a", "T"),)), FORM)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "<summary> is missing"),
        (WHOLE.replace("</summary>", ""), "</summary> is missing"),
        (WHOLE.replace("<reasoning>R</reasoning>", ""), "<reasoning> is missing in <summary>"),
        (WHOLE.replace(">Q<", "> <"), "<question> is empty"),
        (WHOLE.replace("<reasoning>", "So: <reasoning>"), "text stands before <reasoning>"),
        (WHOLE.replace("</evidence>", "None.</evidence>"), "outside of <quote> in <evidence>"),
        (WHOLE.replace('title="T"', "T"), 'does not open with <quote title="…">'),
    ],
)
def test_what_is_no_summary_says_why(text: str, cause: str) -> None:
    with pytest.raises(Malformed, match=cause.replace("(", r"\(")):
        parse(text, FORM)


def test_word_for_word_means_the_characters_of_one_result() -> None:
    results = [
        SearchResult((Document("T", "Alder was\n founded  in 1925."), Document("U", "<think>x"))),
        SearchResult((Document("V", "Ada leads it."),)),
    ]
    context = f"Who leads Alder?\n<think>Ada, I think.</think>\n{FORM.results_text(results)}"
    quotes = {
        "Alder was founded in 1925.": True,
        " was\tfounded in ": True,
        "<think>x": True,
        "Ada leads it.": True,
        "alder was founded": False,
        "Alder was ... 1925.": False,
        "Alder was founded in 1925": True,
        "Ada, I think.": False,  # what the agent thought is no result
        "<think>x Ada leads": False,  # nor is what two results say together
        " ": False,
    }
    assert are_verbatim([Quote(text) for text in quotes], context, FORM) == list(quotes.values())

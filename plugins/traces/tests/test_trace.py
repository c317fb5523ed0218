"""The typed trace, and its text in tags."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_rollouts import Answer, Document, Reasoning, Search, SearchResult, Step, Unknown
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.trace import question_key, turns

TRICKY = st.sampled_from(
    ["<think>", "</think>", "<\\think>", "<\\\\/answer>", "<information", "\u202eabc", "<", "\\"]
)
TEXT = st.lists(TRICKY | st.text(max_size=8), max_size=5).map("".join)
STEPS: st.SearchStrategy[tuple[Step, ...]] = st.lists(
    st.builds(Reasoning, TEXT)
    | st.builds(Search, TEXT, st.sampled_from(["search", "edgar_search"]))
    | st.builds(SearchResult, st.lists(st.builds(Document, TEXT, TEXT), max_size=2).map(tuple))
    | st.builds(Answer, TEXT)
    | st.builds(Unknown, st.just("image"), st.none() | st.integers()),
    max_size=8,
).map(tuple)


@settings(max_examples=30)
@given(STEPS)
def test_turns_joined_are_the_steps(steps: tuple[Step, ...]) -> None:
    joined = [step for turn in turns(steps) for step in (*turn.actions, *turn.results)]
    assert tuple(joined) == steps


@settings(max_examples=30)
@given(STEPS)
def test_what_the_agent_said_can_be_read_back_though_it_holds_tags(steps: tuple[Step, ...]) -> None:
    form = Format()
    said = [s for s in steps if isinstance(s, Reasoning | Search | Answer)]
    assert form.steps(form.turn_text(said)) == said


@settings(max_examples=30)
@given(TEXT)
def test_no_tag_is_left_in_what_is_escaped(text: str) -> None:
    form = Format()
    assert form.blocks(form.escape(text)) == []
    assert form.unescape(form.escape(text)) == text


def test_questions_that_differ_in_case_and_space_have_one_key() -> None:
    assert question_key(" Who  is\nKIRA? ") == question_key("who is kira?")
    assert question_key("Who is Kira") != question_key("Who is Kira?")

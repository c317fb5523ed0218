"""What a trace becomes: every cut a sample or counted, and nothing of it lost."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_rollouts import (
    Answer,
    Document,
    Reasoning,
    Rollout,
    Search,
    SearchResult,
    Step,
    Unknown,
)
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.samples import multiturn_rows, step_rows
from hf_rlhf_traces.summaries.context_blocks import passages
from hf_rlhf_traces.trace import turns

FORM = Format()
TRICKY = st.sampled_from(["<think>", "</think>", "<\\think>", "</information>", "\n", "{x}", "\\"])
TEXT = st.lists(TRICKY | st.text(max_size=6), max_size=4).map("".join)
KNOWN = (
    st.builds(Reasoning, TEXT)
    | st.builds(Search, TEXT, st.sampled_from(["search", 'a "tool" & <more>', ""]))
    | st.builds(SearchResult, st.lists(st.builds(Document, TEXT, TEXT), max_size=2).map(tuple))
    | st.builds(Answer, TEXT)
)
UNKNOWN = st.builds(Unknown, st.just("image"), st.none())


def traces(step: st.SearchStrategy[Step]) -> st.SearchStrategy[Rollout]:
    steps = st.lists(step, max_size=9).map(tuple)
    return st.builds(Rollout, st.text(max_size=3), TEXT, steps)


def of(*steps: Step, question: str = "Who?") -> Rollout:
    return Rollout("t", question, steps)


def multiturn(trace: Rollout, form: Format = FORM, **settings: Any) -> Any:
    return multiturn_rows(trace, form, **{"seed": 42, "think_drop_prob": 0.0, **settings})


THINK, LOOK, SAY = Reasoning("hm"), Search("q"), Answer("a")
RESULT = SearchResult((Document("T", "text"),))
SHOWN = "<information>Doc 1 (Title: T)\ntext</information>"


def parsed(text: str) -> list[Step | str]:
    """A text in tags as steps; of results, what stands in their block."""
    actions = iter(FORM.steps(text))
    return [
        content if tag == "information" else next(actions) for tag, content in FORM.blocks(text)
    ]


def expected(steps: tuple[Step, ...]) -> list[Step | str]:
    return [
        FORM.unescape(FORM.results_text([step])[len("<information>") : -len("</information>")])
        if isinstance(step, SearchResult)
        else Answer(step.content)
        if isinstance(step, Answer)
        else step
        for step in steps
    ]


PLAIN = st.text(st.sampled_from('abc <>\\/&"'), max_size=8)


@settings(max_examples=30)
@given(st.lists(st.builds(Document, PLAIN, PLAIN), min_size=1, max_size=3).map(tuple))
def test_documents_come_back_with_their_titles(documents: tuple[Document, ...]) -> None:
    ((_, inside),) = FORM.blocks(FORM.results_text([SearchResult(documents)]))
    restored = [
        (document.title, document.text.removesuffix("\n")) for document in passages(inside, FORM)
    ]
    assert restored == [(document.title, document.content) for document in documents]


def without_trailing(trace: Rollout) -> tuple[Step, ...]:
    parts = turns(trace.steps)
    last = len(parts[-1].results) if parts else 0
    return trace.steps[: len(trace.steps) - last]


@settings(max_examples=30)
@given(traces(KNOWN))
def test_steps_joined_are_the_trace(trace: Rollout) -> None:
    rows, _ = step_rows(trace, FORM)
    if not rows:
        return
    context = rows[0]["prompt"]
    for row in rows:
        # Each prompt goes on where the sample before it ended; its results follow.
        assert row["prompt"].startswith(context)
        context = f"{row['prompt']}\n{row['answer']}"
    assert context.startswith(FORM.question_text(trace.question))
    after = context[len(FORM.question_text(trace.question)) :]
    assert parsed(after) == expected(without_trailing(trace))


@settings(max_examples=30)
@given(traces(KNOWN))
def test_the_last_conversation_is_the_trace(trace: Rollout) -> None:
    rows, _ = multiturn(trace)
    if not rows:
        return
    opening, *rest = rows[-1]["messages"]
    start = FORM.fill(FORM.multiturn, FORM.escape(trace.question))
    assert opening["content"].startswith(start)
    text = "\n".join([opening["content"][len(start) :], *(turn["content"] for turn in rest)])
    assert parsed(text) == expected(without_trailing(trace))


@settings(max_examples=30)
@given(traces(KNOWN | UNKNOWN), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_cut_is_a_sample_or_counted(trace: Rollout, drop: float) -> None:
    groups = sum(bool(turn.results) for turn in turns(trace.steps))
    both = (*multiturn(trace, think_drop_prob=drop), groups + 1), (*step_rows(trace, FORM), groups)
    for rows, counts, cuts in both:
        assert counts["cuts"] == cuts
        assert counts["samples"] == len(rows)
        assert cuts == len(rows) + counts["trailing_results"] + counts["empty_reply"]
        assert counts["unknown_steps"] == sum(isinstance(step, Unknown) for step in trace.steps)
        assert all(row["steps"] == groups for row in rows)
        assert len({row["id"] for row in rows}) == len(rows)


def test_a_trace_of_n_results_gives_n_and_one_more() -> None:
    trace = of(THINK, LOOK, RESULT, THINK, LOOK, RESULT, THINK, SAY)
    rows, counts = multiturn(trace)
    assert [len(row["messages"]) for row in rows] == [2, 4, 6]
    assert counts["samples"] == 3
    steps, _ = step_rows(trace, FORM)
    assert [(step["step"], step["final"]) for step in steps] == [(1, False), (2, True)]
    unanswered, _ = step_rows(of(THINK, LOOK, RESULT, THINK, LOOK, RESULT, THINK), FORM)
    assert [step["final"] for step in unanswered] == [False, False]
    assert steps[0]["prompt"] == (
        f"<question>Who?</question>\n<think>hm</think>\n<search>q</search>\n{SHOWN}"
    )
    assert steps[0]["answer"] == "<think>hm</think>\n<search>q</search>"
    assert steps[1]["answer"] == "<think>hm</think>\n<answer>a</answer>"


def test_what_unknown_steps_part_is_one_turn_of_the_user() -> None:
    rows, counts = multiturn(of(LOOK, RESULT, Unknown("image", 1), RESULT, SAY))
    assert [turn["content"] for turn in rows[-1]["messages"][2:]] == [
        f"{SHOWN}\n{SHOWN}",
        "<answer>a</answer>",
    ]
    assert counts["empty_reply"] == counts["unknown_steps"] == 1


def replies_of(row: Any) -> list[str]:
    return [turn["content"] for turn in row["messages"] if turn["role"] == "assistant"]


def test_the_tags_of_earlier_thoughts_are_dropped_and_their_text_is_kept() -> None:
    trace = of(Reasoning("hm <think>"), LOOK, RESULT, THINK, RESULT, THINK, SAY)
    rows, counts = multiturn(trace, think_drop_prob=1.0)
    assert replies_of(rows[-1]) == [
        "hm <\\think>\n<search>q</search>",
        "hm",
        "<think>hm</think>\n<answer>a</answer>",
    ]
    assert counts["think_dropped"] == counts["think_turns"] == 3
    unchanged, none = multiturn(trace)
    assert none["think_dropped"] == 0
    # The reply to learn and what it is asked for under are the same, whatever was dropped.
    for row, other in zip(rows, unchanged, strict=True):
        assert row["messages"][-1] == other["messages"][-1]
        assert row["messages"][0] == other["messages"][0]


def test_reasoning_is_dropped_from_a_whole_conversation_that_asks_for_none() -> None:
    trace = of(THINK, LOOK, RESULT, THINK, LOOK, RESULT, THINK, SAY)
    rows, counts = multiturn(trace, think_drop_prob=1.0, reasoning_drop_prob=1.0)
    assert replies_of(rows[-1]) == ["<search>q</search>"] * 2 + ["<answer>a</answer>"]
    for row in rows:
        opening = row["messages"][0]["content"]
        assert opening == FORM.fill(FORM.multiturn_without_reasoning, "Who?")
        assert "think" not in opening.lower()
    assert counts["reasoning_dropped"] == 3
    assert counts["think_turns"] == 0


def test_the_format_is_what_rows_are_written_in() -> None:
    form = Format(
        think="reason",
        information="found",
        document="[{number}] {content}",
        system="You use <{search}>.",
        multiturn="Q: {context} Think in <{think}>.",
    )
    rows, _ = multiturn(of(THINK, LOOK, RESULT, SAY, question="<reason>{think}?"), form)
    assert rows[-1]["messages"] == [
        {"role": "system", "content": "You use <search>."},
        {"role": "user", "content": "Q: <\\reason>{think}? Think in <reason>."},
        {"role": "assistant", "content": "<reason>hm</reason>\n<search>q</search>"},
        {"role": "user", "content": "<found>[1] text</found>"},
        {"role": "assistant", "content": "<answer>a</answer>"},
    ]

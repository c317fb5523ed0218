"""Each form of traces, read to the same typed steps."""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from hf_rlhf.data.formats import READERS
from hf_rlhf_rollouts import (
    Answer,
    Document,
    Reasoning,
    Rollout,
    Search,
    SearchResult,
    Step,
    Unknown,
    rollout_forms,
)
from hf_rlhf_traces.build_command import _show_rows
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row

FORMS = list(rollout_forms())
DATA = Path(
    os.environ.get("HF_RLHF_DATA") or Path(__file__).resolve().parents[3] / "../shared/data"
)
DOCS = Path(__file__).resolve().parents[3] / "docs/reference/traces-formats.md"
SECTIONS = re.findall(r"### `(\w+)`(.*?)(?=\n##)", DOCS.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLES = [
    (form, example)
    for form, section in SECTIONS
    for example in re.findall(r"```json\n(.*?)\n```", section, re.DOTALL)
]
"""The rows of the docs, under the form they stand under."""
Q, ANSWER = "Where is Paris?", Answer("France", "answer")
STEPS: tuple[Step, ...] = (
    Reasoning("I look for Paris."),
    Search("Paris"),
    SearchResult((Document("Paris", "Paris is the capital of France."),)),
    Reasoning("Found."),
    Answer("France"),
)


def read(values: dict[str, Any], **options: Any) -> Read:
    found = read_row(json.dumps(values).encode() + b"\n", "t.jsonl:1", Options(**options))
    assert isinstance(found, Read), found
    return found


def reasons(values: dict[str, Any], **options: Any) -> tuple[str, str]:
    found = read_row(json.dumps(values).encode(), "t.jsonl:1", Options(**options))
    assert isinstance(found, Rejected), found
    return found.reason, found.detail


SEARCH = {
    "question": "Where is Paris?",
    "trace": [
        {"type": "reasoning", "content": "I look for Paris."},
        {"type": "search", "query": "Paris"},
        {
            "type": "search_result",
            "documents": [{"title": "Paris", "content": "Paris is the capital of France."}],
        },
        {"type": "reasoning", "content": "Found."},
        {"type": "CorrectAnswer", "content": "France"},
    ],
}


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": name,
        "arguments": arguments,
    }


def output(number: int, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text}


def responses(*items: dict[str, Any]) -> dict[str, Any]:
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": "You search."},
                {"role": "user", "content": "Question:\nWhere is Paris?"},
            ]
        },
        "response": {"id": "resp_1", "model": "m", "output": list(items)},
        "reward": 1.0,
    }


def test_results_and_answers_of_rollouts_are_unwrapped_and_counted() -> None:
    documents = [{"title": "Paris", "content": "In France.", "url": "http://p", "score": None}]
    found = read(
        responses(
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            call(1, "web_search", '{"search_query": "Paris"}'),
            call(2, "edgar_search", '{"q": "Paris", "n": 3}'),
            output(2, '{"results": "[]"}'),
            output(1, json.dumps({"results": json.dumps(documents)})),
            call(3, "submit_final_result", '{"final_result": "France"}'),
            output(3, '{"results": "France"}'),
        )
    )
    assert found.trace.steps == (
        Search("Paris", "web_search"),
        Search('{"q": "Paris", "n": 3}', "edgar_search"),
        SearchResult((Document("Paris", "url: http://p\nIn France."),)),
        SearchResult(()),
        ANSWER,
    )
    assert (found.trace.question, found.trace.id, found.trace.fields["model"]) == (Q, "resp_1", "m")
    assert found.noted["hidden_reasoning"] == found.noted["answer_echoes"] == 1


CHAT = [{"role": "system", "content": "You search."}, {"role": "user", "content": Q}]
PARIS, LOOK = Search("Paris"), Reasoning("I look.")
FOUND = (PARIS, SearchResult((Document("", "In France."),)), ANSWER)
FUNCTION = {"name": "search", "arguments": '{"query": "Paris"}'}
CALL = {"id": "1", "type": "function", "function": FUNCTION}
GIVEN = {"role": "tool", "tool_call_id": "1", "content": "In France."}
END = {"role": "assistant", "content": "France"}
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": Q},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "1", "name": "find", "arguments": '{"q": "Paris"}'},
    {"type": "function_call_output", "call_id": "1", "output": "In France."},
    {"type": "message", "role": "assistant", "content": [{"text": "France"}]},
]


def said(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def chat(*turns: Any) -> dict[str, Any]:
    return {"messages": [*CHAT, *turns]}


def langgraph(key: str) -> dict[str, Any]:
    call = {"name": "search", "args": {"query": "Paris"}, "id": "1", "type": "tool_call"}
    messages = [
        {key: "human", "content": Q},
        {key: "ai", "content": "", "tool_calls": [call]},
        {key: "tool", "content": "In France.", "tool_call_id": "1", "name": "search"},
        {key: "ai", "content": "France"},
    ]
    return {"messages": messages}


INSPECT_CALL = {
    "id": "1",
    "function": "search",
    "arguments": {"query": "Paris"},
    "type": "function",
}
INSPECT = {
    "id": 7,
    "epoch": 1,
    "input": Q,
    "target": "France",
    "messages": [
        {"id": "m0", "role": "user", "content": Q, "source": "input"},
        {
            **said(INSPECT_CALL, id="m1", source="generate"),
            "content": [{"type": "reasoning", "reasoning": "I look."}],
        },
        {"role": "tool", "content": "In France.", "tool_call_id": "1", "function": "search"},
        {**END, "source": "generate"},
    ],
    "output": {"model": "m", "choices": [{"message": END}]},
    "scores": {"match": {"value": "C", "answer": "France"}},
}
SEARCH_R1 = (
    "<|im_start|>user\nAnswer with <search> query </search> and <answer> Beijing </answer>. "
    "Question: Where is Paris?<|im_end|>\n<|im_start|>assistant\n"
    "I look.\n<search> Paris </search>\n\n"
    '<information>Doc 1(Title: "Paris") In France.\n'
    "Doc 2(Title: Paris (Texas)) A town.\n</information>\n\n"
    "<think>Found.</think><answer> France </answer><|im_end|>"
)
INVALID = (
    "My previous action is invalid. If I want to search, I should put the query between "
    "<search> and </search>. If I want to give the final answer, I should put the answer "
    "between <answer> and </answer>. Let me try again."
)
FEEDBACK = Unknown("feedback on an invalid action", INVALID)
MARKED = {
    "prompt": "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\nReason in <think> first.\n"
    f"Question: {Q}\n\nThen <search> in tags.<|im_end|>\n",
    "response": "I look.\n<search>Paris</search>\n<|im_end|><|im_start|>user\n"
    '<tool_response>\n<information>Doc 1(Title: "Paris") In France.\n</information>\n'
    '<information>Doc 1(Title: "Rome") In Italy.</information>'
    "Last one.\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    "<answer>France</answer><|endoftext|>",
}
DR_TULU = (
    "<think>I look.</think>\n"
    '<call_tool name="snippet_search" limit="2">Paris</call_tool>\n'
    "<tool_output><snippet id=s1-0>\nTitle: Paris\nURL: http://p\nIn France.\n</snippet>\n"
    '<webpage id="w">No title.</webpage></tool_output>\n'
    "Found.</think>\n"
    '<call_tool name="browse_webpage">http://p</call>'
    "<tool_output>exceed allowed tool call requests</tool_output>"
    '<answer>It is <cite id="s1-0">in France</cite>.</answer>'
)
DR_TULU_STEPS = (
    LOOK,
    Search('{"query": "Paris", "limit": "2"}', "snippet_search"),
    SearchResult(
        (Document("Paris", "id: s1-0\nURL: http://p\nIn France."), Document("", "id: w\nNo title."))
    ),
    Reasoning("Found."),
    Search("http://p", "browse_webpage"),
    SearchResult((Document("", "exceed allowed tool call requests"),)),
    Answer('It is <cite id="s1-0">in France</cite>.', "answer"),
)
WEBDANCER = """A conversation between User and Assistant. The assistant calls these tools.
<tools>
{"name": "search", "parameters": {}}
</tools>
Example response:
<think> thinking process here </think>
<tool_call>
{"name": "tool name here", "arguments": {}}
</tool_call>
<tool_response>
tool_response here
</tool_response>
<think> thinking process here </think>
<answer> answer here </answer>

User: Where is Paris?"""
HERMES_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": ["Paris"]}}\n</tool_call>'
DANCED = [
    {"role": "user", "content": WEBDANCER},
    {"role": "assistant", "content": f"<think> I look. </think>\n{HERMES_CALL}"},
    {"role": "user", "content": "<tool_response>\nIn France.\n</tool_response>"},
    {"role": "assistant", "content": "<answer> France </answer>"},
]
NEAR = [
    {"type": "Thought", "thought": "I look."},
    {"type": "Web Search", "queries": ["Paris", "Paris France"]},
    {"type": "observation", "content": "In France."},
    {"type": "search results", "results": ["In France.", None]},
    {"type": "final_answer", "answer": "France"},
]
NEAR_STEPS = (
    LOOK,
    Search("Paris", "web_search"),
    Search("Paris France", "web_search"),
    *FOUND[1:2] * 2,
    Answer("France", "final_answer"),
)
REFLECTION = {"type": "reflection", "content": "Hm."}
READ: dict[str, tuple[dict[str, Any], str, tuple[Step, ...]]] = {
    "names near those of the search form": ({"problem": Q, "steps": NEAR}, "search", NEAR_STEPS),
    "chat": (chat(said(CALL, reasoning_content="I look."), GIVEN, END), "chat", (LOOK, *FOUND)),
    "the older function call": (
        chat(
            {"role": "assistant", "function_call": {"name": "search", "arguments": "{}"}},
            {"role": "function", "name": "search", "content": [{"title": "A", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "France"}]},
        ),
        "chat",
        (Search("{}"), SearchResult((Document("A", "b"),)), ANSWER),
    ),
    "langgraph, types": (langgraph("type"), "chat", FOUND),
    "langgraph, roles": (langgraph("role"), "chat", FOUND),
    **{
        f"agents sdk, {column}": (
            {column: ITEMS},
            "responses",
            (LOOK, Search("Paris", "find"), *FOUND[1:]),
        )
        for column in ("messages", "input", "items")
    },
    "trl": ({"prompt": CHAT, "completion": [said(CALL), GIVEN, END]}, "chat", FOUND),
    "verifiers": (
        {"prompt": Q, "completion": [said(json.dumps(CALL)), GIVEN, END]},
        "chat",
        FOUND,
    ),
    "a step of unknown type": (
        {**SEARCH, "trace": [*SEARCH["trace"][:3], REFLECTION]},
        "search",
        (*STEPS[:3], Unknown("reflection", REFLECTION)),
    ),
    "inspect": (INSPECT, "chat", (LOOK, *FOUND)),
    "search-r1": (
        {"sequences_str": SEARCH_R1},
        "tagged",
        (
            LOOK,
            PARIS,
            SearchResult((Document("Paris", "In France."), Document("Paris (Texas)", "A town."))),
            Reasoning("Found."),
            ANSWER,
        ),
    ),
    "what search-r1 says of an invalid action": (
        {
            "question": Q,
            "response": f"<think>I look.</think> Paris!\n{INVALID}\n<search>Paris</search>"
            f"<information>In France.</information>{INVALID}<answer>France</answer>",
        },
        "tagged",
        (LOOK, Reasoning("Paris!"), FEEDBACK, *FOUND[:2], FEEDBACK, ANSWER),
    ),
    "marks of a chat template": (
        MARKED,
        "tagged",
        (
            LOOK,
            PARIS,
            SearchResult(
                (
                    Document("Paris", "In France."),
                    Document("Rome", "In Italy."),
                    Document("", "Last one."),
                )
            ),
            ANSWER,
        ),
    ),
    "dr tulu": ({"problem": Q, "response": DR_TULU}, "tagged", DR_TULU_STEPS),
    "calls as JSON in tags": (
        {
            "messages": [
                CHAT[1],
                {
                    "role": "assistant",
                    "content": "<think>I look.</think><tool_call>"
                    '{"name": "search", "arguments": {"query_list": ["Paris"]}}</tool_call>',
                },
                {
                    "role": "user",
                    "content": '<tool_response>{"result": "In France."}</tool_response>',
                },
                {"role": "assistant", "content": "<think>Found.</think><answer>France</answer>"},
            ]
        },
        "tagged",
        (LOOK, *FOUND[:2], Reasoning("Found."), ANSWER),
    ),
    "webdancer": ({"messages": DANCED}, "tagged", (LOOK, *FOUND)),
}


@pytest.mark.parametrize("name", READ)
def test_rows_of_each_form_and_framework(name: str) -> None:
    row, form, steps = READ[name]
    found = read({**row, "reward": 1.0})
    assert (found.form, found.trace.question, found.trace.steps) == (form, Q, steps)
    assert found.trace.fields["reward"] == 1.0
    assert "documents_empty" not in found.noted


def test_what_stands_before_the_trace_is_kept_and_a_later_question_rejected() -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    found = read({"messages": [*before, CHAT[1], END]})
    assert found.trace.question == Q
    assert found.trace.fields == {"input": [*before, CHAT[1]]}
    assert found.noted["earlier_turns"] == 2
    turns = [said(CALL), GIVEN, END]
    for row in (chat(*turns), {"prompt": CHAT, "completion": turns}):
        assert read(row).trace.fields == {"input": CHAT}
    assert read({"messages": DANCED}).trace.fields["input"] == DANCED[:1]
    assert read(INSPECT).trace.id == "7"
    again = {"role": "user", "content": "And Rome?"}
    for row in (
        {"prompt": CHAT, "completion": [*turns, again]},
        {"items": [*ITEMS, again]},
    ):
        reason, detail = reasons(row)
        assert (reason, "And Rome?" in detail) == ("user_turn_in_the_middle", True)


@pytest.mark.parametrize("on", ["<search> Lyon </search>", "<think> Or Ly"])
def test_a_model_that_writes_on_behind_its_answer_has_answered(on: str) -> None:
    text = SEARCH_R1.removesuffix("<|im_end|>") + f" The answer is France. {on}"
    found = read({"sequences_str": text})
    assert found.trace.steps[-1] == Answer("France", "answer")
    behind = {name: count for name, count in found.noted.items() if "after_the_answer" in name}
    assert sum(behind.values()) == 2
    # A result, even one that is cut off, shows that the agent was not done.
    went_on = f"{text.partition(' The answer')[0]}<search>Lyon</search><information>In France."
    assert reasons({"sequences_str": went_on})[0] == "tag_not_closed"
    assert read({"sequences_str": f"{went_on}</information>"}).trace.answer == ""


def test_a_form_that_is_asked_for_is_used() -> None:
    both = {**SEARCH, **chat(END)}
    reason, detail = reasons(both)
    assert reason == "two_forms"
    assert detail.startswith("search, chat fit this row")
    assert read(both, form="search").trace.steps == STEPS
    assert read(both, form="chat").form == "chat"


SMOL = [
    {"task": Q, "task_images": None},
    {
        "step_number": 1,
        "model_output": "Thought: I look.\n<code>\nweb_search('Paris')\n</code>",
        "tool_calls": [{"id": "1", "function": {"name": "python_interpreter", "arguments": "x"}}],
        "observations": "Execution logs:\nIn France.",
    },
]
SMOLAGENTS = ({"steps": SMOL}, {"question": Q, "memory": SMOL}, {"memory": {"steps": SMOL}})
SWE_STEP = {"action": "ls -F", "observation": "a.py", "response": "x", "thought": "x"}


@pytest.mark.parametrize(
    ("row", "form"),
    [
        *(({"question": "q", "nothing": 1}, form) for form in FORMS),
        ({"version": 2, "eval": {"task": "t"}, "samples": [INSPECT]}, None),
        ({"environment": "main", "trajectory": [SWE_STEP], "history": [], "info": {}}, None),
        ({"instruction": "a", "label": 1}, None),
        *((row, None) for row in SMOLAGENTS),
    ],
)
def test_a_form_that_does_not_fit_is_a_rejection(row: dict[str, Any], form: Any) -> None:
    reason, detail = reasons(row, form=form)
    assert reason in ("no_trace", "malformed", "no_form", "no_question")
    assert "instruction" not in row or "instruction, label" in detail


_WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)
_SAID = _WORDS.map(str.strip).filter(bool)
_DOCUMENTS = st.builds(Document, _WORDS, _SAID)
_RESULTS = st.builds(SearchResult, st.lists(_DOCUMENTS, max_size=3).map(tuple))


@st.composite
def traces(draw: st.DrawFn) -> Rollout:
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, 3))):
        steps += draw(st.lists(st.builds(Reasoning, _SAID), max_size=2))
        searches = draw(st.lists(st.builds(Search, _WORDS, st.sampled_from(["search", "web"]))))
        steps += searches
        if searches:
            steps += draw(st.lists(_RESULTS, max_size=len(searches)))
        steps += draw(st.lists(st.builds(Unknown, st.just("plan"), _WORDS), max_size=1))
    steps.append(Answer(draw(_SAID), draw(st.sampled_from(["CorrectAnswer", "answer"]))))
    fields = draw(st.dictionaries(_WORDS, st.integers(0, 9), max_size=2))
    return Rollout("t", draw(_SAID), tuple(steps), fields, "t.jsonl:1")


def test_rows_of_a_table_are_read_as_those_of_a_text(tmp_path: Path) -> None:
    """Arrow gives every object of a column the keys of all."""
    import pyarrow
    import pyarrow.parquet

    for form, example in EXAMPLES:
        row = json.loads(example)
        other = json.loads(example.replace('"title": "Paris"', '"url": "u"'))
        other = json.loads(json.dumps(other).replace('"query": "Paris"', '"n": "1"'))
        table = pyarrow.Table.from_pylist([row, other])
        pyarrow.parquet.write_table(table, tmp_path / f"{form}.parquet")
        _, values = next(READERS[".parquet"](tmp_path / f"{form}.parquet"))
        found = read_row(values, "t.jsonl:1", Options())
        assert isinstance(found, Read), found
        expected = read(row)
        assert (found.trace.steps, +found.noted) == (expected.trace.steps, +expected.noted)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data is not at {DATA} (HF_RLHF_DATA)")
def test_no_item_of_real_rollouts_is_lost() -> None:
    items: Counter[str] = Counter()
    read_: Counter[str] = Counter()
    for file in sorted((DATA / "agent_rollouts").glob("*.jsonl")):
        for number, line in enumerate(file.read_bytes().splitlines(), start=1):
            items.update(item["type"] for item in json.loads(line)["response"]["output"])
            found = read_row(line, f"{file.name}:{number}", Options())
            assert isinstance(found, Read), found
            read_.update(found.steps)
            read_.update({name: count for name, count in found.noted.items() if count})
    assert sum(items.values()) > 100
    assert read_["searches"] + read_["answers"] == items["function_call"]
    assert read_["results"] + read_["answer_echoes"] == items["function_call_output"]
    assert read_["hidden_reasoning"] + read_["reasoning"] == items["reasoning"]
    assert not read_["unknown"]
    assert not read_["documents_cut"]


def test_the_examples_of_the_docs_are_read_by_the_form_they_stand_under() -> None:
    assert list(dict.fromkeys(form for form, _ in EXAMPLES)) == list(FORMS)
    assert len(EXAMPLES) == len(FORMS) + 2  # Anthropic's, and ShareGPT's
    for form, example in EXAMPLES:
        found = read(json.loads(example))
        assert found.form == form
        assert found.trace.question == "Where is Paris?"
        assert found.trace.answer == "France"
        assert not found.noted["searches_without_result"]


def test_the_names_in_rows_send_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    counts = dict.fromkeys(("rejected", "forms", "steps", "answers", "places"), {})
    report = {"questions": {"train": 1, "validation": 0}, "rows": 1, "traces": 1, **counts}
    report |= {"unknown": {"a\x1b[2J": 1}, "noted": {"\x9b2J\u202e": 1}, "sources": []}
    _show_rows(report, "title")
    shown = capsys.readouterr().out
    assert r"unknown: a\u001b[2J" in shown
    assert r"\u009b2J\u202e" in shown
    assert not set(shown) & set("\x1b\x9b\u202e")

"""Rollouts as refiner rows: ids by call, rubrics with weights, and nothing of the answer leaks."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_rlhf.errors import DataError
from hf_rlhf.testing.rows import write_rows
from hf_rlhf_refiner.answer import scan_sources
from hf_rlhf_refiner.rollouts import judged_rollouts

DATA = Path(
    os.environ.get("HF_RLHF_DATA") or Path(__file__).resolve().parents[3] / "../shared/data"
)
real = pytest.mark.skipif(
    not (DATA / "agent_rollouts").is_dir(), reason="the real rollouts are absent"
)


def tokenizer() -> Any:
    inner = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    template = "{% for m in messages %}{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<unk>", eos_token="<end>", chat_template=template
    )


TOKENIZER = tokenizer()


def rollout(*outputs: str, **fields: Any) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "reasoning", "summary": [{"text": "Search first."}]}]
    for number, text in enumerate(outputs):
        call = {"call_id": f"c{number}", "name": "search", "arguments": "{}"}
        steps += [
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": f"c{number}", "output": text},
        ]
    submit = {"call_id": "end", "name": "submit_final_result"}
    steps += [
        {"type": "function_call", **submit, "arguments": '{"final_result": "Secret 1900."}'},
        {"type": "function_call_output", "call_id": "end", "output": "Secret 1900."},
    ]
    return {
        "responses_create_params": {"input": "Question:\nWhen was the tower built?"},
        "response": {"output": steps},
        "expected_answer": "1900",
        **fields,
    }


def load(folder: Path, *rows: dict[str, Any], **arguments: Any) -> Any:
    return judged_rollouts(write_rows(folder, rows), tokenizer=TOKENIZER, **arguments)


def test_ids_say_the_call_and_the_document(tmp_path: Path) -> None:
    hits = [{"title": "Tower", "content": "Built.", "id": "x", "score": 1, "raw": None}, "Second."]
    row = load(
        tmp_path,
        rollout("Plain text.", "[]", json.dumps({"results": json.dumps(hits)}), "word " * 300),
    ).dataset["train"][0]
    ids = [source["id"] for source in row["sources"]]
    assert ids == ["T1", "T3-1", "T3-2", "T4-1", "T4-2", "T4-3"]
    assert [source["text"] for source in row["sources"][:3]] == [
        "Plain text.",
        "title: Tower\nBuilt.",
        "Second.",
    ]
    assert scan_sources(row["prompt"][1]["content"]).sources == row["sources"]
    assert "Search first." in row["prompt"][1]["content"]
    assert (row["answer"], row["expected_answer"]) == ("Secret 1900.", "1900")
    assert "Secret" not in json.dumps(row["prompt"])


def test_results_beside_a_query_are_snippets_without_debris(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"title": "Tower", "url": "http://t", "text": "Built.", "meta": {"a": 1}}
    found = json.dumps({"query": "tower", "results": [page, page | {"title": "Inn"}]})
    wrapped = json.dumps({"search_results": json.dumps({"kind": "x", "items": [page]})})
    loaded = load(tmp_path, rollout(found, wrapped))
    text = "title: {}\nurl: http://t\nBuilt."
    assert [(source["id"], source["text"]) for source in loaded.dataset["train"]["sources"][0]] == [
        ("T1-1", text.format("Tower")),
        ("T1-2", text.format("Inn")),
        ("T2", text.format("Tower")),
    ]
    assert loaded.report["document_fields_left_out.meta"] == 3
    assert "not shown in prompts: document_fields_left_out.meta: 3" in capsys.readouterr().err


def test_rubrics_are_the_recorded_ones_or_the_expected_answer(tmp_path: Path) -> None:
    recorded = [
        {"criteria": "States 1900.", "severity": 2.0, "score": 1, "votes": [1, 0, 1]},
        {"criteria": "States stone.", "severity": 1.0, "score": None, "error": "timeout"},
    ]
    loaded = load(tmp_path, rollout("x", rubric_judgements=recorded), rollout("y"))
    rubrics = loaded.dataset["train"]["positive_rubrics"]
    assert list(rubrics) == [
        [
            {"criterion": "States 1900.", "weight": 2.0},
            {"criterion": "States stone.", "weight": 1.0},
        ],
        [{"criterion": "States 1900.", "weight": 1.0}],
    ]


def test_the_report_counts_what_was_odd(tmp_path: Path) -> None:
    row = rollout("x", "", "[]")
    row["response"]["output"].append({"type": "web_search_call"})
    report = load(tmp_path, row).report
    assert report["empty_tool_results"] == 2
    assert report["unknown_step:web_search_call"] == 1


BAD = [
    ({"expected_answer": None}, "no_rubrics", "'rubric_judgements' and 'expected_answer'"),
    (
        {"rubric_judgements": "x"},
        "wrong_type:rubric_judgements",
        "'rubric_judgements': Invalid JSON",
    ),
    ({"rubric_judgements": [{"severity": 1}]}, "wrong_type:rubric_judgements", "item 1"),
    ({"response": {"output": [5]}}, "step_not_object", "input + output[1] is 5"),
    ({"response": {"output": []}}, "no_tool_output", "no tool returned anything"),
]


@pytest.mark.parametrize(("changes", "reason", "said"), BAD)
def test_a_bad_rollout_stops_with_its_place_or_is_dropped(
    tmp_path: Path, changes: dict[str, Any], reason: str, said: str
) -> None:
    rows = [rollout("x"), rollout("x", **changes)]
    with pytest.raises(DataError) as caught:
        load(tmp_path, *rows)
    assert "rows.jsonl:2: " in str(caught.value)
    assert said in str(caught.value)
    assert load(tmp_path, *rows, on_bad_row="drop").report["dropped"] == {reason: 1}


def talk(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"type": "message", "role": role, "content": text} for role, text in turns]


def test_turns_of_the_user_are_counted_where_the_user_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A demand for the answer is no question; a question behind an answer makes a bad row."""
    row = rollout("Built in 1900.", "x")
    asked = talk(("user", "Hi"), ("assistant", "Hello!"), ("user", "When was the tower built?"))
    steps = row["response"]["output"]
    nudge = talk(("user", "Provide your final answer now."))
    row["responses_create_params"]["input"] = [*asked, *steps[:3], *nudge]
    row["response"]["output"] = steps[3:]
    again = rollout("y")
    again["response"]["output"] += talk(("user", "And by whom?"), ("assistant", "By Ben."))
    with pytest.raises(DataError, match=r"rows.jsonl:2: a question after .*And by whom"):
        load(tmp_path, row, again)
    loaded = load(tmp_path, row, again, on_bad_row="drop")
    assert loaded.dataset["train"]["question"][0] == "When was the tower built?"
    assert "final answer now" not in json.dumps(loaded.dataset["train"]["prompt"][0])
    assert loaded.report["dropped"] == {"user_turn_in_the_middle": 1}
    shown = capsys.readouterr().err
    assert "1 of 2 rows kept; left out: user_turn_in_the_middle: 1" in shown
    assert "earlier_turns: 2, later_turns: 1" in shown


@real
@pytest.mark.parametrize("cap", [512, 6144])
def test_ten_real_rollouts_fit_the_cap(cap: int) -> None:
    path = str(DATA / "agent_rollouts")
    loaded = judged_rollouts(path, tokenizer=TOKENIZER, max_prompt_tokens=cap, test_rows=2)
    rows = [*loaded.dataset["train"], *loaded.dataset["test"]]
    assert len(rows) == 10
    assert sum(len(row["positive_rubrics"]) for row in rows) == 35 + 5
    for row in rows:
        encoded = TOKENIZER.apply_chat_template(row["prompt"], add_generation_prompt=True)
        assert len(encoded["input_ids"]) <= cap
        assert row["sources"]
        assert scan_sources(row["prompt"][1]["content"]).sources == row["sources"]
        assert row["answer"]
        assert "submit_final_result" not in row["prompt"][1]["content"]
    report = loaded.report
    shown = report["tool_results_shown"] + report["tool_results_dropped"]
    assert shown == 78
    assert report["empty_tool_results"] == 2

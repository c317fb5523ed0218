"""The table by depth, the worst cases, and the report."""

import random

from hf_rlhf_traces.evaluation.analysis import (
    SCORE_METRICS,
    Sample,
    depth_table,
    report,
    score_of,
    worst_cases,
)


def sample(number: int, depth: int = 1, value: float = 1.0) -> Sample:
    metrics = {
        **dict.fromkeys(SCORE_METRICS["only"], value),
        "answer_f1": None if number % 2 else value,
        "cut_off": 0.0,
    }
    return {
        "id": f"t{number}#1", "question_key": f"q{number}", "question": "Q?",
        "step": number % depth + 1, "steps": depth, "prompt_tail": "tail", "expected": "right",
        "text": "```", "metrics": metrics,
    }  # fmt: skip


def test_the_table_has_all_models_side_by_side_at_every_depth() -> None:
    every = [sample(at, depth=at % 3 + 1) for at in range(12)]
    other = [sample(at, depth=at % 3 + 1, value=0.0) for at in range(12) if at % 3]
    headings, rows = depth_table("only", {"a": every, "b": other})
    assert headings == ["metric", "model", "1", "2", "3"]
    assert len(rows) == 2 * len(SCORE_METRICS["only"])
    assert rows[0][1:] == ["a", *["1.000 (all 4 alike), n=4"] * 3]
    assert rows[1][1:] == ["b", "-", *["0 (all 4 alike), n=4"] * 2]


def test_the_worst_come_first_and_undefined_metrics_do_not_count() -> None:
    rng = random.Random(0)
    samples = [sample(at, value=rng.random()) for at in range(9)]
    cases = worst_cases("only", samples, 3)
    scores = [score_of("only", case) for case in cases]
    assert scores == sorted(score_of("only", each) for each in samples)[:3]
    assert score_of("only", sample(1, value=1.0)) == 1


def test_the_report_has_the_worst_cases_of_each_model() -> None:
    results = {"tasks": {"only": {"title": "t"}}, "verdicts": [], "method": "m"}
    samples = [sample(at) for at in range(6)]
    text = "\n".join(report(results, {"only": {"a": samples, "b": samples[:2]}}, 3))
    assert (text.count("#### `a`"), text.count("#### `b`")) == (3, 2)
    # What a model wrote does not end the block that shows it.
    assert "````text\n```\n````" in text

"""The table by depth, the worst cases, and the plot."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_rlhf_traces.evaluation.analysis import (
    SCORE_METRICS,
    Analysis,
    depth_table,
    score_of,
    worst_cases,
    write_analysis,
)
from hf_rlhf_traces.evaluation.results import task_results
from hf_rlhf_traces.evaluation.scoring import Scored


def row(number: int, tokens: int, depth: int = 1, value: float = 1.0) -> Scored:
    metrics: dict[str, float | None] = {
        **dict.fromkeys(SCORE_METRICS["only"], value),
        "answer_f1": None if number % 2 else value,
        "cut_off": 0.0,
    }
    where = (f"t{number}#1", f"t{number}", f"q{number}", "Q?")
    return Scored(
        *where, number % depth + 1, depth, "tail", tokens, tokens, "right", "```", metrics
    )


def analysis(**models: Sequence[Scored]) -> Analysis:
    results: dict[str, Any] = {
        "data": {"only": {"questions": 1}},
        "models": {
            label: {"asked": label, "tasks": {"only": task_results("only", rows)}}
            for label, rows in models.items()
        },
        "baseline": next(iter(models)),
        "differences": {},
        "method": "m",
    }
    return Analysis(results, {label: {"only": rows} for label, rows in models.items()})


def test_the_table_has_all_models_side_by_side_at_every_depth() -> None:
    one = [row(at, 10, depth=at % 3 + 1) for at in range(12)]
    other = [row(at, 10, depth=at % 3 + 1, value=0.0) for at in range(12) if at % 3]
    headings, rows = depth_table(analysis(a=one, b=other), "only")
    assert headings == ["metric", "model", "1", "2", "3"]
    assert len(rows) == 2 * len(SCORE_METRICS["only"])
    assert rows[0][1:] == ["a", *["1.000 (all 4 alike), n=4"] * 3]
    assert rows[1][1:] == ["b", "-", *["0 (all 4 alike), n=4"] * 2]


def test_the_worst_come_first_and_undefined_metrics_do_not_count() -> None:
    rng = random.Random(0)
    rows = [row(at, 10, value=rng.random()) for at in range(9)]
    cases = worst_cases(analysis(a=rows, b=rows[:2]), 3)
    assert [case["model"] for case in cases] == ["a"] * 3 + ["b"] * 2
    scores = [case["score"] for case in cases[:3]]
    assert scores == sorted(score_of("only", one) for one in rows)[:3]
    assert score_of("only", row(1, 10, value=1.0)) == 1
    assert cases[0]["got"] == "```"


def test_the_report_has_a_plot_and_the_worst_cases(tmp_path: Path) -> None:
    found = analysis(a=[row(at, at) for at in range(6)])
    written = {path.name for path in write_analysis(found, tmp_path)}
    assert written == {"report.md", "worst.jsonl", "overview.png"}
    again = (tmp_path / "overview.png").read_bytes()
    assert again.startswith(b"\x89PNG")
    write_analysis(found, tmp_path)
    assert (tmp_path / "overview.png").read_bytes() == again
    # What a model wrote does not end the block that shows it.
    assert "````text\n```\n````" in (tmp_path / "report.md").read_text()

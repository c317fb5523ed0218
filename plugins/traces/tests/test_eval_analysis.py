"""Groups of samples, worst cases, and the tables and pictures of them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf_traces.evaluation.analysis import (
    JUDGED_BY,
    Analysed,
    by_depth,
    by_length,
    by_step,
    score_of,
    worst,
)
from hf_rlhf_traces.evaluation.report import depth_rows, group_table
from hf_rlhf_traces.evaluation.results import Scored
from hf_rlhf_traces.evaluation.tables import markdown


def row(number: int, tokens: int, depth: int = 1, value: float = 1.0) -> Scored:
    metrics: dict[str, float | None] = {
        **dict.fromkeys(JUDGED_BY["only"], value),
        "answer_f1": None if number % 2 else value,
        "cut_off": 0.0,
    }
    where = (f"t{number}#1", f"t{number}", f"q{number}", "Q?")
    return Scored(
        *where, number % depth + 1, depth, "tail", tokens, tokens, "right", "```", metrics
    )


def analysed(**models: Sequence[Scored]) -> Analysed:
    data: dict[str, Any] = {"only": {"questions": 1}}
    results = {"data": data, "models": {label: {"asked": label} for label in models}}
    return Analysed(
        {**results, "claims": [], "method": "m"}, {k: {"only": v} for k, v in models.items()}
    )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 6))
def test_every_sample_is_in_one_bin_of_lengths(lengths: list[int], bins: int) -> None:
    found = by_length(analysed(a=[row(at, size) for at, size in enumerate(lengths)]), "only", bins)
    counts = [part["format_valid"].n for part in found.means["a"] if part["format_valid"]]
    assert sum(counts) == len(lengths)
    assert len(counts) == len(found.names) == len(set(found.names)) <= bins
    ends = [int(one) for name in found.names for one in name.split("–")]
    assert ends == sorted(ends)
    assert (ends[0], ends[-1]) == (min(lengths), max(lengths))


def test_groups_have_all_models_side_by_side() -> None:
    one = [row(at, 10, depth=at % 3 + 1) for at in range(12)]
    other = [row(at, 10, depth=at % 3 + 1, value=0.0) for at in range(12) if at % 3]
    found = by_depth(analysed(a=one, b=other), "only")
    assert found.names == ["1", "2", "3"]
    first, *_ = found.means["b"]
    assert first["format_valid"] is None
    headings, rows = group_table(found)
    assert len(rows) == 6
    assert {len(line) for line in rows} == {len(headings)}
    assert [ends for _, ends in depth_rows(found)] == [False, True] * len(JUDGED_BY["only"])
    assert by_step(analysed(a=one), "only").names == ["1", "2", "3"]


def test_the_worst_come_first_and_what_is_not_defined_does_not_count() -> None:
    rng = random.Random(0)
    rows = [row(at, 10, value=rng.random()) for at in range(9)]
    cases = worst(analysed(a=rows, b=rows[:2]), 3)
    assert [case.model for case in cases] == ["a"] * 3 + ["b"] * 2
    scores = [case.score for case in cases[:3]]
    assert scores == sorted(score_of("only", one) for one in rows)[:3]
    assert score_of("only", row(1, 10, value=1.0)) == 1
    assert cases[0].as_json()["got"] == "```"


def test_cells_do_not_break_a_table() -> None:
    from hf_rlhf_traces.evaluation.tables import lines_of

    assert list(lines_of((["a|b"], [["x"]])))[0] == "| a\\|b |"
    assert "# Evaluation" in markdown(
        {"data": {}, "models": {}, "claims": [], "notes": [], "method": "m"}
    )


@pytest.mark.slow
def test_pictures_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    from hf_rlhf_traces.evaluation.report import write_analysis

    rows = [row(at, at, depth=1) for at in range(6)]
    written = {path.name for path in write_analysis(analysed(a=rows), tmp_path)}
    # All traces are of one depth: there is no trend to draw.
    assert written == {"report.md", "worst.jsonl", "overview.png", "only_by_length.png"}
    again = (tmp_path / "overview.png").read_bytes()
    write_analysis(analysed(a=rows), tmp_path)
    assert (tmp_path / "overview.png").read_bytes() == again
    # What a model wrote does not end the block that shows it.
    assert "````text\n```\n````" in (tmp_path / "report.md").read_text()

"""The table by depth."""

from hf_rlhf_traces.evaluation.analysis import SCORE_METRICS, Sample, depth_table


def sample(number: int, depth: int = 1, value: float = 1.0) -> Sample:
    metrics = {
        **dict.fromkeys(SCORE_METRICS["only"], value),
        "answer_f1": None if number % 2 else value,
        "cut_off": 0.0,
    }
    return {
        "id": f"t{number}#1",
        "question_key": f"q{number}",
        "steps": depth,
        "metrics": metrics,
    }


def test_the_table_has_all_models_side_by_side_at_every_depth() -> None:
    every = [sample(at, depth=at % 3 + 1) for at in range(12)]
    other = [sample(at, depth=at % 3 + 1, value=0.0) for at in range(12) if at % 3]
    headings, rows = depth_table("only", {"a": every, "b": other})
    assert headings == ["metric", "model", "1", "2", "3"]
    assert len(rows) == 2 * len(SCORE_METRICS["only"])
    assert rows[0][1:] == ["a", *["1.000 (all 4 alike), n=4"] * 3]
    assert rows[1][1:] == ["b", "-", *["0 (all 4 alike), n=4"] * 2]

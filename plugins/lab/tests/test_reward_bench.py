"""Rows of RewardBench 2's form: read one by one, scored by subset, ties as there."""

import json
from pathlib import Path

import numpy as np
import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_lab.command import rewards
from hf_rlhf_lab.graded import ITEM, graded
from hf_rlhf_lab.validation.gold import Gold, Scored
from hf_rlhf_lab.validation.reward_bench import best_of_all


def row(subset, correct, wrong, number=0, **more):
    """Return a row whose texts are their scores."""
    texts = {"chosen": list(map(str, correct)), "rejected": list(map(str, wrong))}
    return {"prompt": f"{subset} {number} {more}", **texts, "subset": subset, **more}


def check(rows, tmp_path, score=float):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    gold = Gold.of_rows("rows", graded(str(path)).dataset["train"])
    return best_of_all(Scored(gold, np.array([score(text) for text in gold.completions])))


def by_subset(result):
    return {each["subset"]: each["score"]["mean"] for each in result.details["subsets"]}


def test_responses_of_lists_become_graded_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [row("Math", [3], [1, 2, 0], id="7"), row("Math", [1, 2], [0], 1, id="8")]
    path.write_text("\n".join(map(json.dumps, rows)))
    read = graded(str(path)).dataset["train"].to_list()
    assert [each["completion"] for each in read] == ["3", "1", "2", "0", "1", "2", "0"]
    assert [each["grade"] for each in read] == [[1], [0], [0], [0], [1], [1], [0]]
    assert [each[ITEM] for each in read] == [0, 0, 0, 0, 1, 1, 1]
    assert {each["id"] for each in read} == {"7", "8"}
    assert "chosen" not in read[0]


def test_a_row_without_lists_among_rows_with_them_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [row("Math", [3], [1]), {"prompt": "p", "chosen": "a", "rejected": "b"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=r"rows.jsonl:2: expected lists of texts under `chosen`"):
        graded(str(path))


def test_a_subset_is_scored_by_the_best_of_all_responses(tmp_path):
    rows = [row("Focus", [3], [1, 2, 0], 0), row("Focus", [1], [3, 2, 0], 1)]
    rows += [row("Focus", [2], [2, 1, 0], 2), row("Math", [2], ["2.0", "2.00", "2.000"], 3)]
    result = check(rows, tmp_path)
    assert by_subset(result) == {"Math": 0.25, "Focus": 0.5}
    assert result.details["average"] == pytest.approx((0.25 + 0.5) / 2)
    assert [each["subset"] for each in result.details["subsets"]] == ["Math", "Focus"]


def test_the_same_prompt_in_two_rows_stays_two_items(tmp_path):
    rows = [{**row("A", [3], [1, 2]), "prompt": "p"}, {**row("B", [1], [4, 3]), "prompt": "p"}]
    rows.append(row("A", [3], [1]))
    assert by_subset(check(rows, tmp_path)) == {"A": 1.0, "B": 0.0}


def published_ties(ref, tied):
    """The score as the benchmark computes it: (correct, wrong) of each question, by its number."""
    correct = (
        np.mean([min(c) > max(w) for c, w in tied]),
        np.mean([min(c) > max(w) for c, w in ref]),
    )
    spread = np.array([max(c) - min(c) for c, _ in tied])
    margins = [np.array([min(c) - max(w) for c, w in rows]) for rows in (tied, ref)]
    least = np.minimum(*margins)
    return (
        0.3 * correct[0]
        + 0.3 * correct[1]
        + 0.2 * np.mean(margins[0] > spread)
        + 0.2 * np.mean(least > spread)
        + 0.01 * np.mean(np.tanh(least / spread - 1))
    )


def test_ties_are_weighted_as_published(tmp_path):
    rng = np.random.default_rng(0)
    draw = [
        [(rng.normal(1.0, 0.7, n).round(3).tolist(), rng.normal(0, 0.7, 3).round(3).tolist())
         for _ in range(20)]
        for n in (1, 4)
    ]  # fmt: skip
    rows = [
        row("Ties", *texts, number, id=f"{kind}:{number}")
        for kind, questions in zip(("ref", "tied"), draw, strict=True)
        for number, texts in enumerate(questions)
    ]
    assert by_subset(check(rows, tmp_path))["Ties"] == pytest.approx(published_ties(*draw))


def test_a_subset_below_chance_fails_and_unscored_prompts_are_left_out(tmp_path):
    rows = [row("Math", [0], [1, 2, 3], n) for n in range(20)]
    rows += [row("Focus", [3], [1, 2, 0], n) for n in range(20)]
    result = check(rows, tmp_path)
    assert result.verdict == "fail"
    assert "WORSE than chance: Math." in result.summary
    few = check([*rows[:5], *rows[20:]], tmp_path)
    assert (few.verdict, by_subset(few)["Math"]) == ("pass", 0.0)

    def abstains(text):
        return np.nan if text == "3" else float(text)

    assert check(rows, tmp_path, abstains).verdict == "not measurable"


def test_the_command_reads_the_form_and_shows_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [row("Math", ["x"], ["x y", "x y z", "x y z w"], n) for n in range(12)]
    rows += [row("Focus", ["x y z w"], ["x y", "x y z", "x"], n) for n in range(12)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("mine.py").write_text(
        "def short(completions, **_):\n    return [-len(c.split()) for c in completions]\n"
    )
    assert rewards(["validate", "mine.py:short", "--data", "rows.jsonl"]) == 1
    page = Path("evals/validation/validation.md").read_text()
    assert "## Best of all responses, by subset" in page
    assert "| `Focus` | 0 (all 12 alike) | 12 |" in page
    assert page.index("`Focus`") < page.index("`Math`")
    assert "on average over 2 subsets 0.500" in page

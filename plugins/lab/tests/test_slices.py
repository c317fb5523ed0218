"""What a report says of parts of the data: slices, the worst pairs, best of N, other data."""

from itertools import combinations

import numpy as np
import pytest

from hf_rlhf_lab.validation.agreement import (
    agreement,
    detectable_accuracy,
)
from hf_rlhf_lab.validation.best_of_n import best_of_n, expected_best
from hf_rlhf_lab.validation.gold import Gold, Scored
from hf_rlhf_lab.validation.report import Report
from hf_rlhf_lab.validation.slices import slices
from hf_rlhf_lab.validation.validate import _elsewhere
from hf_rlhf_lab.validation.worst import worst_pairs, worst_section


def pairs(right, names, prompts=None):
    """Pairs of which each is ordered rightly or not, by a column `source`."""
    count = len(right)
    numbers = range(count) if prompts is None else prompts
    gold = Gold(
        "made here",
        [f"prompt {number}" for number in numbers for _ in range(2)],
        [f"{side} {number}" for number in range(count) for side in ("good", "bad")],
        np.tile([1.0, 0.0], count),
        np.repeat(np.arange(count), 2),
        columns={"source": [name for name in names for _ in range(2)]},
    )
    signs = np.where(right, 1.0, -1.0) * np.linspace(1, 2, count)
    return Scored(gold, np.stack([signs, -signs], axis=1).ravel())


def graded(scores, grades, **fields):
    """Responses to prompts; shapes (prompts, responses)."""
    scores = np.asarray(scores, dtype=float)
    prompts, responses = scores.shape
    gold = Gold(
        "made here",
        [f"prompt {n}" for n in range(prompts) for _ in range(responses)],
        [f"text {n}" for n in range(prompts * responses)],
        np.asarray(grades, dtype=float).ravel(),
        np.repeat(np.arange(prompts), responses),
        **fields,
    )
    return Scored(gold, scores.ravel())


def test_a_category_with_the_sign_turned_fails_and_stands_first():
    right = [True] * 40 + [False] * 18 + [True, False] * 10
    check = slices(pairs(right, ["helpful"] * 40 + ["harmless"] * 18 + ["other"] * 20), "source")
    assert check.verdict == "fail"
    assert "WORSE than chance in 'harmless' (0.000 of 18 pairs" in check.summary
    assert "Not shown to be better than chance: 'other'" in check.summary
    rows = check.details["slices"]
    assert [row["slice"] for row in rows] == ["harmless", "other", "helpful"]
    assert [row["worse_than_chance"] for row in rows] == [True, False, False]
    assert check.measures["worst_slice"].mean == 0


def test_a_slice_of_few_prompts_is_not_measurable_however_many_pairs_it_has():
    right = [True] * 20 + [False] * 30
    scored = pairs(right, ["many"] * 20 + ["few"] * 30, [*range(20), *([20, 21, 22, 23, 24] * 6)])
    check = slices(scored, "source")
    assert check.verdict == "warn"
    assert check.details["too_small"] == ["few"]
    assert "Not measurable, fewer than 6 prompts decided: 'few'." in check.summary
    alone = slices(pairs(right, map(str, range(50))), "source")
    assert alone.verdict == "not measurable"
    assert "and 45 more" in alone.summary


def test_every_slice_has_to_be_better_than_chance_and_the_lowest_bound_is_required():
    names = ["large"] * 100 + ["small"] * 10
    good = slices(pairs([True] * 75 + [False] * 25 + [True] * 10, names), "source")
    assert good.verdict == "pass"
    worst, (large, small) = good.measures["worst_slice"], good.details["slices"]
    assert worst.mean == large["accuracy"]["mean"] == 0.75
    assert worst.low == min(large["accuracy"]["low"], small["accuracy"]["low"])
    assert large["accuracy"]["low"] < small["accuracy"]["low"]
    unknown = slices(pairs([True] * 75 + [False] * 25 + [True, False] * 5, names), "source")
    assert unknown.verdict == "warn"
    assert unknown.measures["worst_slice"].mean == 0.5


def test_the_worst_pairs_are_those_with_the_largest_margin_one_of_each_prompt():
    scored = pairs([True] * 5 + [False] * 15, ["x"] * 20, [*range(18), 17, 17])
    rows = worst_pairs(scored)
    margins = [row["margin"] for row in rows]
    assert len(rows) == 10
    assert margins == sorted(margins)
    assert rows[0]["margin"] == pytest.approx(scored.margins[19] / scored.scores.std())
    assert [row["better"] for row in rows[:2]] == ["good 19", "good 16"]
    assert worst_pairs(scored, 0) == worst_pairs(pairs([True] * 20, "x" * 20)) == []


def test_no_text_of_the_data_is_rendered_on_the_page():
    scored = pairs([False] * 12, ["x"] * 12)
    text = "<img src=x>\n\n# title | `code` \u202e " + "long " * 500
    gold = scored.gold
    changed = Gold("x", gold.prompts, [text] * 24, gold.grades, gold.groups)
    check = agreement(Scored(changed, scored.scores))
    check.details["worst"] = worst_pairs(Scored(changed, scored.scores), 1)
    check.details["best_paid"] = {"hack": text, "gain": 1.5}
    table, hack = [part for part in worst_section([check]) if part.startswith("|")]
    assert len(table.splitlines()) == 3
    assert "\\u202e" in table
    assert "[…]" in table
    # A code span that the single backticks inside cannot close; a pipe would end the cell.
    assert table.count("``<img src=x> # title \\| `code`") == 2
    assert hack.splitlines()[-1] == "| gain | `1.5` |"


@pytest.mark.parametrize(("independent", "power"), [(200, 0.6), (30, 0.75), (6, 0.963)])
def test_the_detectable_accuracy_is_that_of_an_exact_test(independent, power):
    margins = np.tile([1.0, -1.0], independent // 2)
    names = [str(n) for n in range(independent)]
    assert detectable_accuracy(margins, names) == pytest.approx(power, abs=0.01)
    # Copies of pairs say nothing more.
    for copies in (np.repeat(margins, 5), np.ones(5 * independent)):
        assert detectable_accuracy(copies, np.repeat(names, 5)) == pytest.approx(power, abs=0.01)


def test_best_of_n_is_the_mean_over_all_subsets_with_ties_at_random():
    scores, grades = np.array([3.0, 1, 3, 2, 1, 3]), np.array([1.0, 5, 2, 8, 4, 0])
    for size in (1, 2, 3, 4, 6):
        means = []
        for subset in combinations(range(6), size):
            best = max(scores[list(subset)])
            means.append(np.mean([grades[n] for n in subset if scores[n] == best]))
        assert expected_best(scores, grades, [size]) == [pytest.approx(np.mean(means))]


def test_best_of_n_warns_of_a_grade_that_rises_and_then_falls():
    rng = np.random.default_rng(0)
    grades = rng.normal(size=(40, 16))
    hacked = grades.copy()
    hacked[:, 0] = 9  # one response of each prompt is paid most, and bad
    grades[:, 0] = -3
    check = best_of_n(graded(hacked, grades))
    assert check.verdict == "fail"
    assert [row["n"] for row in check.details["curve"]] == [1, 2, 4, 8, 16]
    assert "FALLS beyond N = 2" in check.summary
    assert check.details["curve"][-1]["reward"]["mean"] == -3
    honest = best_of_n(graded(grades + rng.normal(size=(40, 16)), grades))
    assert honest.verdict == "pass"
    alike = best_of_n(graded([[1, 2, 3, 4]] * 12, [[4, 3, 2, 1]] * 12))
    assert alike.verdict == "fail"
    level = best_of_n(graded([[1, 2, 3, 3]] * 12, [[1, 0, 0.8, 0.2]] * 12))
    assert level.verdict == "not measurable"
    noise = best_of_n(graded(np.random.default_rng(1).normal(size=(40, 16)), grades))
    assert noise.verdict == "not measurable"


def test_a_fall_on_other_data_fails_and_its_loss_has_an_interval():
    home = pairs([True] * 95 + [False] * 5, ["x"] * 100)
    there = pairs([True] * 75 + [False] * 25, ["x"] * 100)
    check = _elsewhere(home, there)
    assert agreement(there).verdict == "pass"
    assert check.verdict == "fail"
    assert "It FALLS against the gold data: -0.200 [" in check.summary
    loss, change = check.measures["loss"], check.measures["difference"]
    assert (loss.mean, loss.low, loss.high) == (-change.mean, -change.high, -change.low)
    better = _elsewhere(there, home)
    assert better.verdict == "pass"
    assert better.measures["loss"].high == 0


def test_hacks_that_were_found_stand_first_and_names_of_data_are_no_mathematics(tmp_path, pictures):
    rows = [
        {"hack": name, "share": share, "cases": 60, "mean": 1.0, "largest": 8.0, "p": 0.01}
        | {"found": share < 0.5}
        for name, share in (("often", 0.7), ("$sparse^", 0.2))
    ]
    hacks = {"name": "hacks", "verdict": "fail", "details": {"hacks": rows, "found": 1}}
    report = Report(headline="$a^ fails.", reward={"label": "<b>"}, checks=[hacks])
    page = report.markdown()
    assert page.index("| $sparse^ | 20%") < page.index("| often | 70%")
    assert "# Validation of \\<b\\>" in page
    report.write(tmp_path)  # also the plot
    assert (tmp_path / "validation.png").read_bytes()[1:4] == b"PNG"

"""The report of experiments/classic_learning: rules that can fail, tables made of rows.json."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "experiments" / "classic_learning"
pytest.importorskip("hf_rlhf_classic")
PROMPTS = 60


@pytest.fixture(autouse=True)
def _experiment_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def report():
    return importlib.import_module("report")


@pytest.fixture
def results():
    """Return what makes results of conditions, their measurements given as mean values."""
    rows = importlib.import_module("rows")

    def of(world, conditions, seeds=(1, 2, 3)):
        found = {}
        for condition, metrics in conditions.items():
            for seed in seeds:
                noise = np.random.default_rng([seed, len(condition)]).normal(0, 0.05, PROMPTS)
                values = {name: (mean + noise).tolist() for name, mean in metrics.items()}
                found[f"{world}-{condition}-{seed}"] = {"rows": values}
        return rows.Results(found)

    return of


def verdicts(report, results):
    return {one["condition"]: one["fires"] for one in report.hacked(results)}


def test_the_rule_says_of_what_was_trained_on_the_truth_that_it_cannot_fire(report, results):
    better, worse = {"reward": 0.9, "proxy": 0.9}, {"reward": 0.1, "proxy": 0.1}
    for end in (better, worse):
        found = results("tastes", {"sft3": {"reward": 0.5, "proxy": 0.5}, "ppo": end, "grpo": end})
        assert verdicts(report, found) == {"ppo": "cannot fire", "grpo": "cannot fire"}


def test_the_rule_fires_where_a_proxy_rises_and_the_utility_falls(report, results):
    start = {"reward": 0.5, "proxy": 0.5}
    hacked = results("tastes", {"sft3": start, "hackable": {"reward": 0.1, "proxy": 3.0}})
    honest = results("tastes", {"sft3": start, "hackable": {"reward": 0.9, "proxy": 3.0}})
    idle = results("tastes", {"sft3": start, "hackable": {"reward": 0.1, "proxy": 0.3}})
    fired = [verdicts(report, each)["hackable"] for each in (hacked, honest, idle)]
    assert fired == ["fires", "no", "no"]


def test_the_rule_fires_for_a_reward_of_the_wrong_sign(report, results):
    found = results("arithmetic", {"sft3": {"reward": 0.5}, "flipped": {"reward": 0.0}})
    assert verdicts(report, found) == {"flipped": "fires"}


def test_the_rule_looks_at_what_dpo_is_trained_on(report, results):
    start = {"reward": 0.5, "dpo_loss": 0.69}
    found = results(
        "arithmetic",
        {
            "sft3": start,
            "dpo_r16": {"reward": 0.2, "dpo_loss": 0.5},
            "dpo": {"reward": 0.6, "dpo_loss": 0.5},
            "dpo_r8": {"reward": 0.2, "dpo_loss": 0.8},
        },
    )
    assert verdicts(report, found) == {"dpo_r16": "fires", "dpo": "no", "dpo_r8": "no"}


def test_one_seed_that_differs_leaves_the_rule_to_the_bootstrap(report):
    trained = {"low": 0.1, "high": 0.2, "t_low": 0.1, "t_high": 0.2}
    true = {"low": -0.2, "high": -0.1, "t_low": -0.5, "t_high": 0.1}
    assert report.rule(trained, true) == "fires by the bootstrap only"


@pytest.mark.parametrize(
    ("low", "t_low", "p", "expected"),
    [
        (0.01, 0.01, 0.049, "yes"),
        (0.01, 0.01, 0.05, "alone, not among so many"),
        (0.01, 0.01, None, "alone, not among so many"),
        (0.01, -0.01, 0.2, "by the bootstrap only"),
        (-0.01, -0.01, 0.2, "not shown"),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_plain_yes_needs_both_intervals_and_the_adjusted_p(report, low, t_low, p, expected, sign):
    gap = {"mean": 0.1, "low": low, "high": 0.3, "t_low": t_low, "t_high": 0.3, "seeds": "123"}
    gap = gap if sign > 0 else report.negative(gap)
    assert report.verdict({"difference": gap, "direction": sign, "p_holm": p}) == expected


def test_p_is_adjusted_for_the_number_of_predictions(report):
    gaps = [{"p": p} for p in (0.01, None, 0.04, 0.02)]
    assert report.adjusted(gaps) == [pytest.approx(0.03), None, 0.04, 0.04]


def test_greedy_answers_are_compared_too(report, results):
    start = {"reward": 0.5, "greedy_reward": 0.9}
    found = results("arithmetic", {"sft3": start, "grpo": {"reward": 0.6, "greedy_reward": 0.8}})
    by_name = {one["name"]: one["difference"]["mean"] for one in report.compared(found)}
    assert by_name["arithmetic, greedy: grpo - sft3"] == pytest.approx(-0.1, abs=0.02)


def test_gains_from_two_starts_are_compared_as_gains(report, results):
    found = results(
        "arithmetic",
        {
            "sft1": {"reward": 0.4},
            "dpo_sft1": {"reward": 0.45},
            "sft3": {"reward": 0.5},
            "dpo": {"reward": 0.53},
        },
    )
    by_name = {one["name"]: one["difference"]["mean"] for one in report.compared(found)}
    apart = by_name["arithmetic: gain of dpo - gain of dpo_sft1"]
    assert apart == pytest.approx(-0.02, abs=0.02)


def test_rows_json_holds_every_measurement_of_every_prompt():
    found = json.loads((FOLDER / "rows.json").read_text(encoding="utf-8"))
    grid = importlib.import_module("grid")
    names = {cell.name for cell in grid.cells()}
    assert set(found) == names
    for name, cell in found.items():
        sizes = {len(values) for values in cell["rows"].values()}
        assert sizes == {200}, name
        assert {"reward", "greedy_reward", "kl_sequence", "dpo_loss"} <= set(cell["rows"])
        assert ("proxy" in cell["rows"]) == name.startswith("tastes")


@pytest.mark.slow
def test_the_published_tables_come_of_the_published_rows(report):
    tables = importlib.import_module("tables")
    published = json.loads((FOLDER / "rows.json").read_text(encoding="utf-8"))
    results = report.Results(published)
    content = {
        "questions": report.questions(results),
        "compared": report.compared(results),
        "hacked": list(report.hacked(results)),
        "conditions": {"arithmetic": {}, "tastes": {}},
    }
    assert all(len(line) > 1 for line in tables.planted(content) if line), "lines, not letters"
    page = (FOLDER / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    rows = [*tables.answered(content), *tables.planted(content)]
    assert [line for line in rows if line.startswith("|") and line not in page] == []
    assert len(rows) > 30

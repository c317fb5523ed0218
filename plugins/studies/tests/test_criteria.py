"""What a plan calls failure: found in its text, told by each report, never left out."""

import numpy as np
import pytest

from hf_rlhf import ConfigError
from hf_rlhf_studies.command import study
from hf_rlhf_studies.folder import failure_sentences
from hf_rlhf_studies.report import answers, criteria_of, markdown
from hf_rlhf_studies.results import read_rows, write_rows
from hf_rlhf_studies.study import Study

PLAN = "# Plan\n\nIt learns. The study fails if `control` is clearly\nabove 0.5, or `new` is not.\n"
QUOTE = "The study fails if `control` is clearly above 0.5, or `new` is not."
STUDY = """
schema: 1
title: Does it learn?
plan: PLAN.md
seeds: [1, 2, 3]
run: {schema: 1, plugin: sft, model_name_or_path: base}
conditions: {control: {}, new: {}}
questions:
  - {name: H1, condition: new, against: control, metric: score, predicted: higher}
"""
CONTROL = "{condition: control, metric: score, above: 0.5}"
NEW = "{condition: new, metric: score, below: 0.5}"


def criteria(*tests, quote=QUOTE, more=""):
    return f"criteria:\n  - quote: '{quote}'\n    met_if: [{', '.join(tests)}]\n{more}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_rlhf_studies.command.draw", lambda *_: [])
    (tmp_path / "PLAN.md").write_text(PLAN)
    return tmp_path


def measured(folder, section, *, control=0.5, new=0.8, noise=0.05, by_seed=(0, 0, 0), plan=None):
    """Return the results of a study with these means of `score`."""
    (folder / "study.yaml").write_text(STUDY + section)
    content = Study.read(folder / "study.yaml")
    rng = np.random.default_rng(0)
    means = {"control": control, "new": new}
    cells = {}
    for cell in content.cells():
        mean = means[cell.condition] + by_seed[cell.seed - 1]
        values = rng.normal(scale=noise, size=200)
        rows = list(values - values.mean() + mean + rng.normal(scale=0.001))
        cells[cell.folder] = {"rows": {"score": rows}}
    write_rows({"plan": plan, "packages": {}, "cells": cells}, folder)
    return read_rows(content, folder)


def outcome(results):
    (result,) = criteria_of(results, answers(results, predicted=True))
    return result


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("The study fails if a is low. Then more.", ["The study fails if a is low."]),
        ("Failure: prediction 1\nnot shown.", ["Failure: prediction 1 not shown."]),
        (
            "It failed unless a.\n\nB is refuted when c.",
            ["It failed unless a.", "B is refuted when c."],
        ),
        ("- x\n- It does not succeed if y.\n- z", ["It does not succeed if y."]),
        ("A planted failure, if any. It failed to start. Does it fail if a? It fails if:\n- b", []),
        ("# Does what should fail fail?\n\nIt learns.", []),
    ],
)
def test_failure_sentences_of_a_plan(plan, expected):
    assert failure_sentences(plan) == expected


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "",
            r"study.yaml criteria: PLAN.md says what counts as failure, .* leaves out: 'The study",
        ),
        (criteria(CONTROL, quote=QUOTE[:-8]), "leaves out: 'The study fails"),
        (criteria(CONTROL, quote=QUOTE.replace("above", "over")), "criteria.0.quote: .*not stand"),
    ],
)
def test_a_report_that_leaves_out_or_misquotes_a_criterion_is_refused(folder, section, message):
    measured(folder, section)
    for words in (["report"], ["run", "--dry_run", "--out", str(folder / "out")]):
        with pytest.raises(ConfigError, match=message):
            study([words[0], str(folder / "study.yaml"), *words[1:]])
    assert not (folder / "RESULTS.md").exists()


def test_a_criterion_that_was_taken_out_of_the_plan_is_still_asked_for(folder):
    recorded = {"sha256": "0" * 64, "recorded": "2026-01-01T00:00:00Z", "text": PLAN}
    (folder / "PLAN.md").write_text("# Plan\n\nIt learns.\n")
    measured(folder, "", plan=recorded)
    with pytest.raises(ConfigError, match=r"leaves out: 'The study .* put the sentence back"):
        study(["report", str(folder / "study.yaml")])


@pytest.mark.parametrize(
    ("tests", "means", "expected"),
    [
        ((CONTROL, NEW), {"control": 0.6}, "met"),
        ((CONTROL, NEW), {"control": 0.4}, "not met"),
        ((CONTROL, NEW), {"control": 0.5}, "not decidable"),
        ((CONTROL, NEW), {"control": 0.4, "new": 0.45}, "met"),
        ((CONTROL,), {"control": 0.55, "by_seed": (0.3, 0, -0.3)}, "not decidable"),
        (("{not_shown: H1}",), {"new": 0.8}, "not met"),
        (("{not_shown: H1}",), {"new": 0.5}, "met"),
        (("{condition: new, against: control, metric: score, below: 0.1}",), {"new": 0.5}, "met"),
        (("{condition: new, metric: other, below: 0.1}",), {}, "not decidable"),
    ],
)
def test_whether_a_criterion_is_met_is_computed_of_the_rows(folder, tests, means, expected):
    results = measured(folder, criteria(*tests), **means)
    assert outcome(results).outcome == expected


def test_the_report_begins_with_what_the_plan_calls_failure(folder, capsys):
    section = criteria(CONTROL, NEW, more="    note: as the start has 0.6\n")
    results = measured(folder, section, control=0.6)
    assert study(["report", str(folder / "study.yaml")]) == 0
    page = (folder / "RESULTS.md").read_text()
    assert "**By its plan this study failed: 1 of 1 criteria met.**" in page
    assert page.index("What the plan calls failure") < page.index("What was predicted")
    (line,) = (line for line in page.splitlines() if QUOTE in line)
    assert "| **met** |" in line
    assert "control, score: 0.599 (" in line
    assert "as the start has 0.6" in line
    assert f"failure criterion met: {QUOTE} (control, score: 0.5" in capsys.readouterr().out
    assert "By its plan" not in markdown(measured(folder, section, control=0.3), [])
    assert results.missing == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (CONTROL, "{condition: contrl, metric: score, above: 0.5}", "`contrl` .*`control`"),
        (CONTROL, "{not_shown: H2}", "met_if.0.not_shown: `H2` does not exist.*H1"),
        (CONTROL, "{condition: new, metric: score, above: 1, below: 2}", "needs one of `above`"),
        (f"met_if: [{CONTROL}]", "note: x", "criteria.0: needs either `met_if` or `outcome`"),
        (f"met_if: [{CONTROL}]", "outcome: met", "needs a `note` with the numbers"),
    ],
)
def test_problems_of_criteria_are_reported(folder, old, new, message):
    (folder / "study.yaml").write_text(STUDY + criteria(CONTROL).replace(old, new))
    with pytest.raises(ConfigError, match=message):
        Study.read(folder / "study.yaml")


def test_a_null_tells_what_could_have_been_shown(folder):
    results = measured(folder, criteria(CONTROL), new=0.51, by_seed=(0, 0.1, -0.1))
    page = markdown(results, [])
    assert "*Could show*: the smallest difference" in page
    (answer,) = answers(results, predicted=True)
    smallest = answer.difference.smallest_shown(1)
    half = (answer.difference.t.high - answer.difference.t.low) / 2
    assert smallest == pytest.approx(half)
    assert f"| {smallest:.3f} | {answer.verdict} |" in page
    assert answer.difference.smallest_shown(6) > smallest * 1.4


def test_a_planted_failure_that_stays_silent_is_no_evidence(folder):
    control = "controls:\n  - {condition: new, rises: score, falls: other}\n"
    (folder / "study.yaml").write_text(STUDY.replace("new: {}", "new: {from: control}") + control)
    content = Study.read(folder / "study.yaml")
    rng = np.random.default_rng(0)
    for up, silent in ((0.0, True), (1.0, False)):
        cells = {}
        for cell in content.cells():
            shift = up * (cell.condition == "new")
            score, other = (rng.normal(scale=0.1, size=40) for _ in range(2))
            cells[cell.folder] = {
                "rows": {"score": list(score + shift), "other": list(other - shift)}
            }
        write_rows({"plan": None, "packages": {}, "cells": cells}, folder)
        page = markdown(read_rows(content, folder), [])
        assert ("**A planted failure stayed silent.**" in page) == silent

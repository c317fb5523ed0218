"""A sweep: the study that it makes, what is compared in it, and its command line."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf_studies.report import answers, markdown
from hf_rlhf_studies.results import Results, standard
from hf_rlhf_studies.study import Study
from hf_rlhf_studies.sweep import combinations as combinations_of
from hf_rlhf_studies.sweep import parse_axes, sweep, sweep_study

BASE = """
schema: 1
plugin: refiner_grpo
dataset: {name: tiny_world}
judges: {words: {name: lexical}}
rewards:
  - {name: refiner_reward, label: refiner, citation_weight: 0.5}
  - {name: answer_format, weight: 0}
evaluation: {rows: 4}
learning_rate: 1e-3
seed: 7
"""


@pytest.fixture
def base() -> RunFile:
    return RunFile.parse(BASE, "my.yaml")


def measured(tmp_path, base, vary, seeds, score, digest=lambda settings: "r") -> Results:
    """Return a sweep that has ended; `score(settings, seed)` gives a value for each row."""
    axes, problems = parse_axes([vary], base)
    assert not problems
    content = sweep_study(base, combinations_of(axes), seeds, [], tmp_path)
    study = Study.parse(RunFile.from_mapping(content), tmp_path / "study.yaml")
    cells = {}
    for cell in study.cells():
        settings = study.file.conditions[cell.condition].settings
        if (rows := score(settings, cell.seed)) is not None:
            values = base.override([f"--{key}={value}" for key, value in settings.items()]).values
            cells[cell.folder] = {
                "rows": {"total": rows},
                "before": {"total": [0.1] * len(rows)},
                "rows_digest": digest(settings),
                "standards": {"total": json.dumps(standard(values, "total"))},
            }
    return Results(study, {"cells": cells})


def compared(results: Results) -> list:
    return answers(results, predicted=False)


def test_each_cell_is_compared_with_the_first_by_pairs(tmp_path, base):
    rng = np.random.default_rng(0)
    row = rng.normal(size=50)

    def score(settings, seed):
        gain = {0.001: 0.0, 0.01: 0.3, 0.1: 0.0}[settings["learning_rate"]]
        return list(row + gain + 0.02 * rng.normal() + 0.02 * rng.normal(size=50))

    vary = "learning_rate=1e-3,1e-2,1e-1"
    results = measured(tmp_path, base, vary, [1, 2, 3], score)
    better, same = compared(results)
    assert better.title == "learning_rate 0.01 - learning_rate 0.001"
    # Rows differ far more than cells do, and pairing takes that away.
    first = results.of("", next(iter(results.study.file.conditions)), "total")
    assert first.t.high - first.t.low > 0.4
    assert better.difference.t.low > 0.15
    assert better.p_holm < 0.05 < same.p_holm
    assert same.difference.t.low < 0 < same.difference.t.high
    text = markdown(results, [])
    assert "adjusted for 2 differences" in text
    assert "| learning_rate 0.01 | 0.100 |" in text


def test_a_total_that_is_varied_itself_is_not_compared(tmp_path, base):
    """A total with another weight is another quantity: no difference, and the reason."""
    vary = "rewards.refiner.citation_weight=0,0.5"
    results = measured(tmp_path, base, vary, [1, 2], lambda *_: [0.1, 0.7, 0.3])
    (answer,) = compared(results)
    assert answer.difference is None
    assert answer.verdict == "not comparable: the metric differs"
    assert "add a reward with `weight: 0`" in markdown(results, [])


def test_the_standard_of_a_reward_is_its_settings_and_its_judge(base):
    def standards(*options):
        values = base.override(options).values
        return standard(values, "answer_format"), standard(values, "truncated")

    assert standards("--rewards.0.weight=2", "--rewards.1.weight=1") == standards()
    assert standards("--rewards.answer_format.strict=true")[0] != standards()[0]
    assert standards("--judges.words.full=0.5")[0] != standards()[0]
    assert standards("--judges.words.full=0.5")[1] == standards()[1]


def test_missing_scores_and_runs_are_reported(tmp_path, base):
    def score(settings, seed):
        if settings["learning_rate"] == 0.1 and seed == 8:
            return None
        return [0.0, 1.0, None if seed == 7 else 0.5, 2.0]

    results = measured(tmp_path, base, "learning_rate=1e-3,1e-1", [7, 8], score)
    (answer,) = compared(results)
    assert list(answer.difference.by_seed) == [7]
    text = markdown(results, [])
    assert "learning_rate 0.001: t intervals are without 1 row that some\nseed could not" in text
    assert "**1 of 4 runs are\nmissing** (learning_rate=0.1-" in text
    assert "| learning_rate 0.1 | 1 |" in text


def test_wrong_command_lines_are_all_wrong_at_once(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text(BASE)
    options = ["--seeds", "none", "--jobs", "0", "--output_dir", "x"]
    with pytest.raises(ConfigError) as caught:
        sweep([str(file), *options, "--vary", "seed=1", "--launch", "acelerate"])
    assert len(caught.value.problems) == 5
    assert "`acelerate` is no program" in str(caught.value)
    with pytest.raises(ConfigError, match="varies nothing"):
        sweep([str(file)])
    with pytest.raises(ConfigError, match="names no run"):
        sweep(["--vary", "a=1"])


@pytest.mark.slow
def test_the_command_itself_never_imports_the_training_stack(tmp_path):
    code = """
import sys
from hf_rlhf.cli import main
options = ["--vary", "learning_rate=1", "--dry_run", "--launch", "false"]
main(["sweep", "refiner_grpo", *options])
names = ("torch", "transformers", "trl", "peft", "datasets")
print([name for name in names if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert "The cells could not be checked" in done.stderr
    assert done.stdout.endswith("[]\n")

"""A reward model, a rule and a rubric as one reward, from a run file alone."""

import math

import pytest

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs import resolve_run
from hf_rlhf.training.record_sections import opening

SCORES = """\
def bt(completions, **_):
    return [4.0, -2.0, 1.0]


def rubric(completions, **_):
    return [0.9, 0.5, 3.0]
"""
RUN = """\
schema: 1
plugin: grpo
model_name_or_path: package://hf_rlhf_classic/tiny_sft
dataset: {name: tastes, train_rows: 16, test_rows: 4}
rewards:
  - {name: scores.py:bt, transform: {zscore: [1, 2], sigmoid: 1}, weight: 0.6}
  - {name: concise, hard: true, full: 2, weight: 0.2}
  - {name: scores.py:rubric, clip: [0, 1], weight: 0.2}
max_completion_length: 8
use_cpu: true
bf16: false
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scores.py").write_text(SCORES)
    (tmp_path / "run.yaml").write_text(RUN)
    return RunFile.read("run.yaml")


def test_the_sum_of_a_sigmoid_a_rule_and_a_rubric(file):
    run = resolve_run(file)
    scores = run.reward.score(["p"] * 3, [" red tea", " red tea and cake", " tea"])
    low, high = 1 / (1 + math.exp(1.5)), 1 / (1 + math.exp(-1.5))
    assert scores.total == pytest.approx(
        [0.6 * high + 0.2 + 0.18, 0.6 * low + 0.1, 0.6 * 0.5 + 0.2 + 0.2]
    )
    assert scores.parts["bt"] == [4.0, -2.0, 1.0]
    terms = [part.term for part in opening(run, []).reward.rewards]
    assert terms == ["sigmoid(zscore(bt, 1, 2))", "concise", "clip(rubric, 0, 1)"]


def test_a_gate_has_no_transform(file):
    gates = ["--gates", "[{name: 'scores.py:rubric', label: g, transform: sigmoid}]"]
    with pytest.raises(ConfigError, match="transform"):
        resolve_run(file.override(gates))

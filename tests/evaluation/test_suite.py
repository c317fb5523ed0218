"""A suite with a small task, and its tables, verdicts and plot from results written by hand."""

import json
from dataclasses import asdict

import pytest

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf.evaluation import Candidate, Evaluation, Suite, Task
from hf_rlhf.evaluation.report import Metric, difference_table, result_table, verdicts
from hf_rlhf.evaluation.saved_models import SavedModel
from hf_rlhf.testing.tiny import make_tiny_policy


def test_a_model_is_named_by_what_distinguishes_its_path():
    options = ["runs/prefix/", "x=runs/only", "org/name", "runs/p/checkpoints/checkpoint-5"]
    assert Candidate.parse(options) == {
        "prefix": ["runs/prefix/"],
        "x": ["runs/only"],
        "name": ["org/name"],
        "checkpoints-checkpoint-5": ["runs/p/checkpoints/checkpoint-5"],
    }


def test_a_name_given_twice_has_seeds_and_a_source_may_be_a_mapping():
    options = ["a=runs/1", "a=runs/2", "lora={base: b, adapter: runs/3}", "{adapter: x}"]
    assert Candidate.parse(options) == {
        "a": ["runs/1", "runs/2"],
        "lora": [{"base": "b", "adapter": "runs/3"}],
        "{adapter: x}": [{"adapter": "x"}],
    }
    with pytest.raises(ConfigError, match="two models would be named 'a'") as caught:
        Candidate.parse(["runs/a", "other/a", "a=third", "b={"])
    assert len(caught.value.problems) == 3


def test_seeds_are_compared_with_one_or_as_many(tiny_policy):
    folder = str(tiny_policy)
    _, problems = Candidate.find({"a": [folder] * 2, "b": [folder] * 3}, {}, paired=["a"])
    assert "has 3 seeds, but 'a', to be compared with, 2. Give 'a' one" in str(problems[0])
    candidates, problems = Candidate.find(
        {"a": [f"{folder}/nothing"], "b": [folder]}, {}, paired="a"
    )
    assert "there is no folder" in str(problems)
    assert len(problems) == len(candidates) == 1
    _, problems = Candidate.find({"a": [folder, folder], "a.2": [folder]}, {})
    assert "'a.2' names two models" in str(problems)


def estimate(mean, low, high, n=20):
    return {"mean": mean, "low": low, "high": high, "n": n, "values": 2 * n}


def results_of(**tasks):
    """Results of `new`, which differs from `base` by that much; `base` has 0 everywhere."""
    metrics = [Metric("exact", "exact match"), Metric("f1", "token F1")]
    return {
        "baseline": "base",
        "models": {"base": [], "new": []},
        "tasks": {
            name: {
                "title": name,
                "metrics": [asdict(metric) for metric in metrics],
                "verdict": ["exact", "f1"],
                "data_means": None,
                "results": {
                    "base": {
                        "seeds": 1,
                        "means": {key: estimate(0.0, 0.0, 0.0) for key in differences},
                        "difference": None,
                    },
                    "new": {
                        "seeds": 2,
                        "means": differences,
                        "difference": differences,
                        "lines": {"ties": "2"},
                    },
                },
            }
            for name, differences in tasks.items()
        },
    }


RESULTS = results_of(
    first={"exact": estimate(0.05, 0.0, 0.15), "f1": estimate(0.569, 0.451, 0.691)},
    second={"exact": estimate(1.0, 1.0, 1.0)},
)


def test_a_verdict_for_each_task_with_what_is_not_shown_last():
    assert verdicts(RESULTS) == [
        "verdict, second: new is better than base: "
        "exact match 1.000, base 0 (paired difference +1.000 (all 20 alike), n=40)",
        "verdict, first: new is NOT shown to be better than base: "
        "exact match 0.050, base 0 (paired difference +0.050 [0, +0.150], n=40)",
    ]
    (line,) = verdicts(results_of(first={"exact": estimate(1.0, 1.0, 1.0, n=3)}))
    assert "NOT shown" in line


@pytest.mark.parametrize(
    ("f1", "exact", "better", "words"),
    [
        ((-0.2, -0.3, -0.1), (0.0, -0.1, 0.1), "higher", "is WORSE than base: token F1 -0.200,"),
        ((-0.2, -0.3, -0.1), (0.2, 0.1, 0.3), "higher", "is better in exact match, but WORSE than"),
        ((0.2, 0.1, 0.3), (0.0, -0.1, 0.1), "lower", "is WORSE than base: token F1 0.200,"),
    ],
)
def test_what_got_worse_is_called_worse(f1, exact, better, words):
    results = results_of(first={"exact": estimate(*exact), "f1": estimate(*f1)})
    results["tasks"]["first"]["metrics"][1]["better"] = better
    (line,) = verdicts(results)
    assert f"verdict, first: new {words}" in line
    assert "NOT" not in line


def test_tables_have_a_row_for_each_metric_that_has_a_value():
    second = RESULTS["tasks"]["second"]
    assert result_table(second) == (
        ["metric", "n", "base", "new (2 seeds)"],
        [["exact match", "40", "0 (all 20 alike)", "1.000 (all 20 alike)"], ["ties", "", "-", "2"]],
    )
    assert difference_table(second, "base") == (
        ["metric", "n", "new − base"],
        [["exact match", "40", "+1.000 (all 20 alike)"]],
    )
    with_data = {**second, "data_means": {"f1": estimate(0.5, 0.4, 0.6)}}
    assert result_table(with_data)[1][1] == ["token F1", "0", "-", "-", "0.500"]


class Lengths(Task):
    """Greets with some names, and measures how long the completions are."""

    name, title = "lengths", "lengths of greetings"
    metrics = (Metric("length", "length", None, bounded=False), Metric("short", "short"))
    verdict = ("short",)

    def __init__(self, names):
        self.names = names

    def prompts(self, model):
        talks = [[{"role": "user", "content": f"Greet {name}."}] for name in self.names]
        return dict(zip(self.names, model.prompt_ids(talks), strict=True))

    def score(self, answers):
        texts = {key: each.text for key, each in answers.completions.read().items()}
        rows = [
            {"length": float(len(text)), "short": float(len(text) < 9)} for text in texts.values()
        ]
        samples = [{"id": key, "text": text} for key, text in texts.items()]
        return Evaluation(rows, samples, ids=list(texts))

    def score_data(self, model):
        return Evaluation([{"length": 5.0, "short": 1.0}] * len(self.names), ids=self.names)


def run_suite(folder, models, names, max_new_tokens=6):
    candidates, problems = Candidate.find({name: [path] for name, path in models.items()}, {})
    assert not problems
    spec = EvaluationSpec(batch_size=2)
    suite = Suite(folder, candidates, [Lengths(names)], spec, max_new_tokens, use_cpu=True)
    return suite.run(["eval"])


@pytest.fixture(scope="module")
def models(tiny_policy, tmp_path_factory):
    other = make_tiny_policy(tmp_path_factory.mktemp("other") / "model", seed=1)
    return {"a": str(tiny_policy), "b": str(other)}


def test_a_task_is_run_for_every_model_and_not_again(models, tmp_path, monkeypatch):
    results = run_suite(tmp_path, models, ["Ann", "Bob", "Cy"])
    task = results["tasks"]["lengths"]
    rows = {label: task["rows"][label]["values"]["length"] for label in ("a", "b")}
    mean = sum(rows["b"]) / 3
    assert task["results"]["b"]["means"]["length"]["mean"] == pytest.approx(mean)
    difference = task["results"]["b"]["difference"]["length"]
    assert difference["mean"] == pytest.approx(mean - sum(rows["a"]) / 3)
    assert task["data_means"]["length"]["mean"] == 5.0
    assert "3 prompts only" in results["notes"][0]
    (folder,) = task["results"]["b"]["folders"]
    lines = (tmp_path / folder / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["Ann", "Bob", "Cy"]
    assert json.loads((tmp_path / "results.json").read_text()) == results
    page = (tmp_path / "results.md").read_text()
    assert "| metric | n | a | b | (data) |" in page
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "verdict, lengths of greetings: b is" in page
    monkeypatch.setattr(SavedModel, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    again = run_suite(tmp_path, models, ["Ann", "Bob", "Cy"])
    assert {**again, "made": None} == {**results, "made": None}


def test_prompts_without_room_are_left_out_and_paired_without(models, tmp_path):
    long = "Q7z " * 300
    results = run_suite(tmp_path, models, ["Ann", long])
    assert results["tasks"]["lengths"]["results"]["b"]["left_out"] == 1
    assert "a: 1 of 2 prompts of lengths left out" in results["notes"][0]
    with pytest.raises(ModelError, match="no prompt of lengths and 600 new tokens fit"):
        run_suite(tmp_path, models, ["Ann"], max_new_tokens=600)

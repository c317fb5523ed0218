"""What an evaluation measures, and what its intervals are over."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from datasets import Dataset

from hf_rlhf import Trainer
from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import BrokenPlugin, ModelError, RunFolderError
from hf_rlhf.evaluation import held_out, measure_rows
from hf_rlhf.evaluation.results import Evaluation


class MeasuresNothing(Trainer):
    """A trainer whose own measure has nothing to measure of any model."""

    @classmethod
    def held_out(cls, run, model, model_kwargs):
        return None


def rows(*values):
    return [{"total": value} for value in values]


def test_completions_of_one_prompt_count_as_one():
    """Ten copies of two answers say no more than the two: the interval must not shrink."""
    once = Evaluation(rows(0.0, 1.0)).means()["total"]
    many = Evaluation(rows(*[0.0] * 10, *[1.0] * 10), completions_per_prompt=10).means()["total"]
    assert many == once
    assert many.n == 2


def test_what_could_not_be_scored_leaves_the_mean_and_the_pairs():
    before = Evaluation(rows(0.0, None, 0.5, 0.5))
    after = Evaluation(rows(1.0, 1.0, None, 1.0))
    assert before.means()["total"].n == 3
    difference = after.minus(before).means()["total"]
    assert (difference.mean, difference.n) == (0.75, 2)


def test_pairs_are_of_the_same_prompts():
    before = Evaluation(rows(0.0, 0.2, 0.0, 0.2), completions_per_prompt=2)
    after = Evaluation(rows(1.0, 1.2, 0.0, 0.2), completions_per_prompt=2)
    difference = after.minus(before).means()["total"]
    assert (difference.mean, difference.n) == (0.5, 2)
    with pytest.raises(RunFolderError, match="4 completions cannot be paired with one of 2"):
        Evaluation(rows(0.0, 1.0)).minus(before)


def test_evaluations_with_ids_are_paired_by_them():
    """What one of them lacks, or could not score, is in no pair; clusters are drawn whole."""
    better = Evaluation(rows(1.0, 1.0, None, 0.5), ids="abcd", clusters="xxyy")
    worse = Evaluation(rows(1.0, 0.0, 0.5), ids="cab", clusters="yxx")
    difference = better.minus(worse).means()["total"]
    assert (difference.mean, difference.values, difference.n) == (0.75, 2, 1)
    assert better.select(["d", "a"]).means()["total"].mean == 0.75
    twice = Evaluation(rows(*[1.0, 1.0, 0.0, 0.0] * 6), clusters=[str(at // 2) for at in range(24)])
    once = Evaluation(rows(*[1.0, 0.0] * 6)).means()["total"]
    assert twice.means()["total"].as_json() == once.as_json()


def test_what_a_trainer_measures_is_one_row_of_finite_numbers_for_each():
    def measured(of_row):
        return measure_rows([0, 1, 2], lambda rows: of_row(rows), batch_size=2).rows

    assert measured(lambda rows: [{"loss": None if row else 2.0} for row in rows]) == [
        {"loss": 2.0},
        {"loss": None},
        {"loss": None},
    ]
    with pytest.raises(BrokenPlugin, match="measured 1 of 2 rows"):
        measured(lambda rows: [{"loss": 1.0}])
    with pytest.raises(BrokenPlugin, match="the metrics row0 or row2"):
        measured(lambda rows: [{f"row{rows[0]}": 1.0}] * len(rows))
    with pytest.raises(ModelError, match=r"loss came out as NaN or infinite \(2 times\)"):
        measured(lambda rows: [{"loss": float("nan")}] * len(rows))


def test_a_run_that_goes_on_does_not_merge_again_where_its_trainer_measures_nothing(
    tmp_path, monkeypatch
):
    """PPO measures held-out rows itself only where it has a learned reward."""
    begun = []

    @contextmanager
    def start(run, say):
        begun.append(run.folder)
        yield "model", {}

    monkeypatch.setattr(held_out, "_start", start)
    monkeypatch.setattr(held_out, "_text", lambda *_: Evaluation(rows(1.0)))
    run = SimpleNamespace(
        folder=tmp_path,
        writes_text=True,
        reward=object(),
        spec=SimpleNamespace(evaluation=EvaluationSpec(), plugin="ppo"),
        trainer_class=MeasuresNothing,
        dataset={"test": Dataset.from_list([{"prompt": "a"}])},
    )
    lines = []
    first, again = (held_out.measure_before(run, lines.append) for _ in range(2))
    assert begun == [tmp_path]
    assert first.means() == again.means() == Evaluation(rows(1.0)).means()
    # What was measured on other rows is no pair of what will be measured on these.
    run.dataset = {"test": Dataset.from_list([{"prompt": "b"}])}
    other = held_out.measure_before(run, lines.append)
    assert begun == [tmp_path] * 2
    assert "before.json was measured on other rows than 'test': ignored" in "".join(lines)
    with pytest.raises(RunFolderError, match="rows differ"):
        other.since(first)


def test_a_metric_that_no_held_out_row_has_is_told(tmp_path, monkeypatch):
    measured = Evaluation([{"total": None, "words": 1.0}, {"total": None, "words": None}])
    assert measured.without_values() == ["total"]
    monkeypatch.setattr(held_out, "_text", lambda *_: measured)
    run = SimpleNamespace(
        folder=tmp_path,
        writes_text=True,
        reward=object(),
        dataset={"test": Dataset.from_dict({"prompt": ["a", "b"]})},
        spec=SimpleNamespace(evaluation=EvaluationSpec(), plugin="grpo"),
        trainer_class=Trainer,
    )
    message = []
    held_out.measure(run, "after", "model", {}, message.append)
    assert message[-1] == "note: no row of 'test' has a value for total"


def test_it_is_read_back_as_it_was_saved_but_for_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "canary-in-a-completion")
    samples = [{"completion": "It is canary-in-a-completion."}]
    saved = Evaluation(rows(0.0, None), samples, 2)
    saved.save(tmp_path / "before.json")
    read = Evaluation.load(tmp_path / "before.json")
    assert (read.rows, read.completions_per_prompt) == (saved.rows, 2)
    assert "canary" not in (tmp_path / "before.json").read_text()


@pytest.mark.parametrize("content", ["", "[]", '{"rows": []}'])
def test_another_file_in_its_place_is_named(tmp_path, content):
    path = tmp_path / "before.json"
    path.write_text(content)
    with pytest.raises(RunFolderError, match=r"before.json is not a saved evaluation .*Delete it"):
        Evaluation.load(path)


def test_a_prompt_may_fill_all_positions_that_its_answer_leaves(monkeypatch):
    rows = [{"prompt": "x" * length} for length in (5, 6, 7)]
    monkeypatch.setattr(held_out, "positions", lambda run: 10)
    monkeypatch.setattr(held_out, "held_out_rows", lambda run: rows)
    monkeypatch.setattr(held_out, "token_lengths", lambda run, rows: [len(rows[0]["prompt"])])
    fitting = [row["prompt"] for row in held_out._rows_with_room(None, 4)]
    assert fitting == ["x" * 5, "x" * 6]

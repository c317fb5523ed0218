"""What a card and its curves say of evaluations during training."""

import json
from pathlib import Path

import pytest

from hf_rlhf.cards.facts import setup
from hf_rlhf.cards.notes import known_notes
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import ValidationSection

EXAMPLE = Path(__file__).parents[1] / "golden" / "cards" / "finished_lora.json"
DECIDED = {
    **{"split": "test", "first_row": 100, "rows": 50, "separate": True},
    **{"metric": "held_out/utility", "greater_is_better": True, "best": 0.75, "best_step": 20},
    **{"restored": True, "patience": 2, "threshold": 0.0, "stopped_early": True},
}


@pytest.fixture
def record():
    """Return a record of a run that was stopped at step 40 of 60, and its evaluations."""
    record = RunRecord.from_json(json.loads(EXAMPLE.read_text(encoding="utf-8")))
    record.training.validation = ValidationSection(**DECIDED)
    record.training.steps = 40
    record.training.history = [
        entry
        for step in (10, 20, 30, 40)
        for entry in (
            {"step": step, "loss": 1 / step, "rewards/total/mean": step / 10},
            {"step": step, "eval_loss": 2 / step, "eval_runtime": float(step)},
            {"step": step, "eval_held_out/utility": -abs(step - 20), "eval_held_out/total": 1.0},
        )
    ]
    return record


def said(record):
    return dict(setup(record))["Evaluation during training"]


def test_the_card_says_which_weights_these_are_and_why(record):
    assert said(record) == (
        "on rows 100 to 149 of `test`, none of them among the held-out rows of the results; "
        "`utility` was best at step 20 (0.75), the step whose weights are saved; training was "
        "stopped after 2 evaluations without an improvement"
    )
    assert not [note for note in known_notes(record) if "optimistic" in note or "ended" in note]
    record.training.validation.stopped_early = record.training.validation.restored = False
    assert said(record).endswith("was best at step 20 (0.75), not the step whose weights are")
    record.training.validation.best_step = record.training.steps
    assert said(record).endswith("(0.75), the step whose weights are saved")
    assert "The run ended at step 40 of 60 planned steps." in known_notes(record)
    record.training.validation = None
    assert "Evaluation during training" not in dict(setup(record))


def test_weights_chosen_by_the_rows_of_the_results_are_told_as_optimistic(record):
    record.training.validation.separate = False
    assert "some of them among the held-out rows of the results" in said(record)
    assert any("the results are optimistic" in note for note in known_notes(record))

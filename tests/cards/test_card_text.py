"""What a card says in words: of measurements, of the data, of how long training was."""

import copy
import json
from pathlib import Path

from hf_rlhf.cards.data import data_rows
from hf_rlhf.cards.history import trainer_history
from hf_rlhf.formatting import interval
from hf_rlhf.storage.record_schema import DataSection, RewardSection
from tests.cards.from_json import (
    how_measured,
    known_notes,
    measures,
    render_card,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "cards"
EXAMPLE = json.loads((GOLDEN / "finished_lora.json").read_text(encoding="utf-8"))


def example():
    return copy.deepcopy(EXAMPLE)


def estimate(mean, low, high, n):
    return {"mean": mean, "low": low, "high": high, "n": n}


class TestMeasurements:
    def test_an_interval_of_no_width_is_none(self):
        assert interval(estimate(1.0, 1.0, 1.0, 1)) == "1.000 (one row)"
        assert interval(estimate(1.0, 1.0, 1.0, 200)) == "1.000 (all 200 alike)"
        assert interval(estimate(0.5, None, 0.6, 200)) == "0.500 (no interval)"

    def test_what_is_of_completions_and_what_is_not(self):
        record = example()
        one = estimate(0.5, 0.4, 0.6, 128)
        record["evaluation"]["after"]["loss"] = one
        record["evaluation"]["metrics"] = {"loss": "nats a token", "other": "not measured"}
        said = how_measured(record)
        assert "and `truncated` are of completions that the model wrote: 1 for each row" in said
        assert said.endswith("`loss` is measured by the trainer itself on the same rows.")
        assert "nats a token" in dict(measures(record))["loss"]
        assert "other" not in dict(measures(record))
        assert "- `loss`: nats a token.\n" in render_card(record)

    def test_a_metric_of_fewer_rows_says_so(self):
        record = example()
        record["evaluation"]["after"]["margin"] = estimate(0.5, 0.4, 0.6, 18)
        assert "| `margin` (18 rows) |" in render_card(record)

    def test_ends_of_intervals_and_counters_are_no_facts_of_training(self):
        history = [
            {"step": 1, "policy": 0, "iteration": 1, "held_out/reward": 0.5, "loss": 1.0},
            {"step": 2, "held_out/reward_low": 0.4, "held_out/reward_high": 0.6},
        ]
        rows = trainer_history(history, RewardSection())["rows"]
        assert [row["name"] for row in rows] == ["loss", "held_out/reward"]


def test_few_held_out_rows_are_said_to_be_few():
    record = example()
    for rows, said in ((1, "1 held-out row:"), (20, None)):
        record["evaluation"]["rows"] = rows
        notes = " ".join(known_notes(record))
        assert (f"Only {said}" in notes) if said else ("of so few" not in notes)


class TestData:
    def test_a_report_in_words(self):
        data = {
            "splits": {"train": 36, "test": 4},
            "report": {
                "schema_why": "60 of the 60 rows have prompt, response",
                "commit": None,
                "rows_read": 60,
                "rejected": {"empty_response": 20},
                "dropped": {"empty_response": 20},
                "columns_left_out": [],
                "turn_keys_left_out": {},
                "splits": {"train": 36, "test": 4},
                "source": "rows|1.jsonl",
                "names": ["a", "b_c"],
                "commas": True,
            },
        }
        assert data_rows(DataSection(**data)) == [
            ("rows in `train`", "36"),
            ("rows in `test`", "4"),
            ("why this schema", "60 of the 60 rows have prompt, response"),
            ("rows read", "60"),
            ("rows left out", "empty response: 20"),
            ("source", r"`rows\|1.jsonl`"),
            ("names", "`a`, `b_c`"),
            ("commas", "yes"),
        ]


def test_what_the_trainer_dropped_and_cut_and_what_was_noted_stands_on_the_card():
    record = example()
    record["data"]["used"] = {
        "train": {
            "rows": 915,
            "kept": 13,
            "dropped": {"a text over `max_length` 128": 902},
            "cut": {"none": 0},
        },
        "test": {"rows": 102, "kept": 102, "dropped": {}, "cut": {}},
    }
    record["advice"] = ["the reward model was never measured"]
    record["evaluation"]["rows"] = 102
    record["evaluation"]["after"]["pair_accuracy"] = {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 1}
    notes = " ".join(known_notes(record))
    assert "Of 915 rows of `train` the trainer used 13 (a text over" in notes
    assert ": 902)." in notes
    assert "of `test`" not in notes
    assert "Warning at the start of training: the reward model was never measured" in notes
    assert "Few of 102 held-out rows could be measured: `pair_accuracy` of 1." in notes


def test_samples_of_a_report_are_played_and_shown():
    record = example()
    record["training"]["report"] = {
        "Listen": [
            {"text": "one | two", "after": "samples/after-1.wav", "pitch": "samples/pitch-1.png"},
            {"text": "samples/../x.wav", "after": '<audio src="x.wav">', "pitch": None},
        ]
    }
    there = "https://huggingface.co/acme/tiny-refiner/resolve/main/"
    for publish, root in (({**record["publish"], "commit": "9f2c"}, there), ({}, "")):
        record["publish"], record["model"]["saved"] = publish, ["merged"]
        text = render_card(record)
        assert "\n## Listen\n\n| text | after | pitch |\n|---|---|---|\n" in text
        assert (
            f'| one \\| two | <audio controls src="{root}samples/after-1.wav"></audio> '
            "| ![pitch](samples/pitch-1.png) |\n"
        ) in text
        assert "samples/../x.wav | \\<audio" in text, "anything else is text"
    assert "Listen" not in render_card(record, kind="checkpoint", step=10)

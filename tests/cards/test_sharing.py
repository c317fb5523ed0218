"""What a run says of rows and code before it trains and before it publishes."""

import pytest

from hf_rlhf.cards.sharing import shared_by, will_be_shared
from hf_rlhf.storage.record import RunRecord


@pytest.mark.parametrize(
    ("samples", "rewarded", "text"),
    [
        (8, False, "prompts of up to 8 held-out rows of `leads.jsonl` will be shown"),
        (8, True, "up to 8 held-out rows and a few training rows of `leads.jsonl`"),
        (None, True, "prompts of a few training rows of `leads.jsonl`"),
        (None, False, "no row of the data will be shown"),
        (0, True, "no row of the data will be shown"),
    ],
)
def test_before_training(samples, rewarded, text):
    data = {"path": "/home/alice/acme/leads.jsonl"}
    shown = will_be_shared(samples, trains_by_rewards=rewarded, adapter="sft", data=data)
    assert text in shown
    assert "alice" not in shown


def test_a_record_without_rows_and_code_shows_nothing():
    assert shared_by(RunRecord()) == ""
    assert "of the dataset `sft`" in will_be_shared(
        1, trains_by_rewards=False, adapter="sft", data={}
    )
    hub = {"source": "owner/rows"}
    assert "of `owner/rows`" in will_be_shared(1, trains_by_rewards=False, adapter="a", data=hub)

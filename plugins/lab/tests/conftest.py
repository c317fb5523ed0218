"""Pictures and resamples take longer than all the rest of most tests."""

import pytest


@pytest.fixture
def pictures():
    """Ask for the pictures of reports, which tests have drawn only if they look at them."""


@pytest.fixture(autouse=True)
def _few_pictures(monkeypatch, request):
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("hf_rlhf_lab.validation.plot.draw", lambda *_: None)


@pytest.fixture
def few_resamples(monkeypatch):
    """Draw few resamples for each interval, where no test reads its third digit."""
    monkeypatch.setattr("hf_rlhf.evaluation.statistics.RESAMPLES", 300)

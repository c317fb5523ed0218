"""Tests against the local Hub are not patient: what is to fail fails soon."""

import pytest

from hf_rlhf.hub import retries


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the time of every push."""
    monkeypatch.setattr(retries, "RETRY_S", 20.0)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)

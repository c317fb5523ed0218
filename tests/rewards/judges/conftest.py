import importlib

import pytest
from tenacity import wait_random

from hf_rlhf.rewards.judges import client


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    importlib.import_module("openai")  # takes a second, which no test here should count
    monkeypatch.setattr(client, "_WAIT", wait_random(0.01, 0.05))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees another's cache."""
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

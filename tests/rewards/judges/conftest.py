import importlib
import ssl

import pytest

from hf_rlhf.rewards.judges import client, outage


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    importlib.import_module("aiohttp")  # takes a second, which no deadline here should count
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(outage, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(outage, "LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr(outage, "_POLL_S", 0.01)
    outage._OUTAGES.clear()  # the system gives a port again, to another server


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test sees another's cache."""
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch):
    """Reading them costs each client 50 ms, and these servers speak plain HTTP."""
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)

"""Tests against the local Hub are not patient: what is to fail fails soon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.hub import retries
from hf_rlhf.hub.client import connect
from hf_rlhf.testing.hubs import forget_secrets, use_hub


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the time of every push."""
    monkeypatch.setattr(retries, "RETRY_S", 20.0)
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.01)


@pytest.fixture(scope="session")
def shared_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    local_hub = pytest.importorskip("hf_rlhf_local_hub")
    with local_hub.serve(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def empty_hub(shared_hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """An empty Hub, and a user's machine that knows no other and no secrets."""
    forget_secrets(monkeypatch)
    use_hub(monkeypatch, shared_hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    shared_hub.faults.clear()
    yield shared_hub
    shared_hub.faults.clear()
    api = connect().api
    for kind, found in (("model", api.list_models()), ("dataset", api.list_datasets())):
        for info in found:
            api.delete_repo(info.id, repo_type=kind)

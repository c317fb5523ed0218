"""A hub in a folder of the test, and the real clients to talk to it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# hf_xet reads it when it first uploads; a developer's own cache is none of a test's business.
os.environ.setdefault("HF_XET_CACHE", tempfile.mkdtemp(prefix="hf-rlhf-test-xet-"))

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars

from hf_rlhf_local_hub import RunningHub, serve

disable_progress_bars()


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    with serve(tmp_path / "hub", user="demo", orgs=["team"], read_only_token="looker") as running:
        yield running


@pytest.fixture
def api(hub: RunningHub) -> HfApi:
    return HfApi(endpoint=hub.url, token="writer")


@pytest.fixture(params=["xet", "lfs"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which large files travel; the clients have no argument for it."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", request.param == "lfs")
    return str(request.param)

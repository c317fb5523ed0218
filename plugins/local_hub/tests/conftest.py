"""A hub in a folder of the test, and the real clients to talk to it."""

from collections.abc import Iterator

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars

from hf_rlhf_local_hub import RunningHub, serve

disable_progress_bars()


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    folder = tmp_path_factory.mktemp("server") / "hub"
    with serve(folder, user="demo", orgs=["team"], read_only_token="looker") as running:
        yield running


@pytest.fixture
def hub(_server: RunningHub) -> Iterator[RunningHub]:
    """A hub without repositories; its contents may be there from the test before."""
    yield _server
    _server.faults.clear()
    api = HfApi(endpoint=_server.url, token="writer")
    for kind, found in (("model", api.list_models()), ("dataset", api.list_datasets())):
        for info in list(found):
            api.delete_repo(info.id, repo_type=kind)
    _server.faults.clear()


@pytest.fixture
def api(hub: RunningHub) -> HfApi:
    return HfApi(endpoint=hub.url, token="writer")


@pytest.fixture(params=["xet", "lfs"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which large files travel; the clients have no argument for it."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", request.param == "lfs")
    return str(request.param)

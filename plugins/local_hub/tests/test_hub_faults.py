"""Scripted faults do to real clients what they say."""

import httpx
import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from hf_rlhf_local_hub import Fault, RunningHub

COMMIT = "POST .*/commit/"


def push(api: HfApi) -> None:
    api.upload_file(repo_id="demo/m", path_in_repo="a.txt", path_or_fileobj=b"a")


def commits(api: HfApi) -> int:
    return len(api.list_repo_commits("demo/m")) - 1


def test_another_answer_for_a_while(hub: RunningHub, api: HfApi) -> None:
    api.create_repo("demo/m")
    hub.faults.add(Fault(COMMIT, status=500, times=2))
    for _ in range(2):
        with pytest.raises(HfHubHTTPError) as error:
            push(api)
        assert error.value.response.status_code == 500
    assert commits(api) == 0
    push(api)
    assert commits(api) == 1
    assert len(hub.faults.requests(COMMIT)) == 3


def test_it_lands_and_the_answer_is_lost(hub: RunningHub, api: HfApi) -> None:
    api.create_repo("demo/m")
    hub.faults.add(Fault(COMMIT, status=504, after=True))
    with pytest.raises(HfHubHTTPError) as error:
        push(api)
    assert error.value.response.status_code == 504
    assert commits(api) == 1


@pytest.mark.parametrize("after", [False, True])
def test_a_dropped_connection(hub: RunningHub, api: HfApi, after: bool) -> None:
    api.create_repo("demo/m")
    hub.faults.add(Fault("branch/b", drop=True, after=after))
    with pytest.raises(httpx.RemoteProtocolError, match="disconnected"):
        httpx.post(
            f"{hub.url}/api/models/demo/m/branch/b",
            json={},
            headers={"Authorization": "Bearer t"},
        )
    names = [branch.name for branch in api.list_repo_refs("demo/m").branches]
    assert ("b" in names) == after

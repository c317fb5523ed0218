"""What was committed stays; what was not is not seen. Whatever is pulled out, whenever."""

import os
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from hf_rlhf.errors import RunFolderError
from hf_rlhf_local_hub import serve


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    big = os.urandom(300_000)
    with serve(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token="t")
        api.create_repo("demo/m", private=True)
        api.upload_file(repo_id="demo/m", path_in_repo="w.bin", path_or_fileobj=big)
        api.create_tag("demo/m", tag="v1")
        before = api.model_info("demo/m", files_metadata=True)
    with serve(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.url, token="t")
        assert api.model_info("demo/m", files_metadata=True) == before
        path = api.hf_hub_download("demo/m", "w.bin", revision="v1", cache_dir=tmp_path / "c")
        assert Path(path).read_bytes() == big


def test_one_server_at_a_time(tmp_path: Path) -> None:
    with (
        serve(tmp_path / "hub"),
        pytest.raises(RunFolderError, match="already served"),
        serve(tmp_path / "hub"),
    ):
        pass


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not a local hub"), serve(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "lock") == ["thesis.txt"]

"""`push`: what it looks at before anything is sent, how far it is, and a Hub that is not there."""

import shutil
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_rlhf.errors import PublishError
from hf_rlhf.testing.hubs import use_hub
from hf_rlhf_traces.command import command
from hf_rlhf_traces.push_command import _check_rows

ROWS = 200
SECRET = "sk-" + "a1B2" * 8


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """Return two files; the last row of the second holds a secret."""
    files = {}
    for name in ("a/train.parquet", "b/train.parquet"):
        texts = ["harmless"] * ROWS
        texts[-1] = SECRET if name[0] == "b" else "harmless"
        files[name] = tmp_path / name
        files[name].parent.mkdir()
        table = pa.table({"id": [f"{name[0]}{at}" for at in range(ROWS)], "prompt": texts})
        pq.write_table(table, files[name])
    return files


def test_a_secret_in_any_row_is_found(tables: dict[str, Path]) -> None:
    with pytest.raises(PublishError, match=r"1 samples hold.*\n.*b/train.parquet: b199: "):
        _check_rows(tables, {})


def test_a_hub_that_is_not_there_is_told_with_the_command_that_finishes(
    in_one_shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(in_one_shard, tmp_path / "store")
    with socket.socket() as nobody:  # bound, and not listening: refused
        nobody.bind(("127.0.0.1", 0))
        use_hub(monkeypatch, url := f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setenv("HF_RLHF_PATIENCE", "0")
        with pytest.raises(PublishError) as error:
            command(["push", str(store), "--repo_id", "me/data", "--endpoint", url])
    assert f"me/data is incomplete on {url}: [Errno" in str(error.value)
    assert f"\n  hf-rlhf traces push {store} --repo_id me/data" in str(error.value)

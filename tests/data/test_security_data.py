"""Data files that would execute code if they were unpickled or imported: none is."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from hf_rlhf.data.sources import read_rows
from hf_rlhf.errors import DataError


class Payload:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "executed"
    yield path
    assert not path.exists(), "a payload was run"


@pytest.mark.parametrize("name", ["rows.pkl", "rows.jsonl", "rows.parquet", "script.py"])
def test_a_pickle_under_the_name_of_data_is_refused(tmp_path, marker, name):
    (tmp_path / name).write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(DataError):
        list(read_rows(tmp_path / name).split("train"))


def test_a_pickled_arrow_type_is_not_unpickled(tmp_path, marker):
    table = pa.table({"a": pa.array([1])})
    metadata = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Payload(marker)),
    }
    field = table.schema.field(0).with_metadata(metadata)
    pyarrow.parquet.write_table(table.cast(pa.schema([field])), tmp_path / "ext.parquet")
    assert list(read_rows(tmp_path / "ext.parquet").split("train"))


def test_a_loading_script_is_not_run(tmp_path, marker):
    (tmp_path / "folder.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    (tmp_path / "state.json").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(DataError):
        read_rows(tmp_path)

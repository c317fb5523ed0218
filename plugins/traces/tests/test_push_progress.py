"""`push` looks at every row before anything is sent, and shows how far it is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_rlhf.errors import PublishError
from hf_rlhf_traces.push_command import _check_rows, _redacted

ROWS = 200
SECRET = "sk-" + "a1B2" * 8


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return two files; the last row of the second holds a secret."""
    found = {}
    for name in ("a/train.parquet", "b/train.parquet"):
        texts = ["harmless"] * ROWS
        texts[-1] = SECRET if name[0] == "b" else "harmless"
        found[name] = tmp_path / name
        found[name].parent.mkdir()
        table = pa.table({"id": [f"{name[0]}{at}" for at in range(ROWS)], "prompt": texts})
        pq.write_table(table, found[name])
    return found


def test_how_many_rows_were_looked_at_is_shown(
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(PublishError, match=r"1 samples hold.*\n.*b/train.parquet: b199: "):
        _check_rows(files, {})
    said = capsys.readouterr().err
    assert "looking for secrets" in said
    assert "100%" in said
    clean = _redacted(files, tmp_path / "clean")
    assert "taking secrets out" in capsys.readouterr().err
    _check_rows(clean, {})
    assert [pq.read_table(file).num_rows for file in clean.values()] == [ROWS, ROWS]


def test_nothing_is_shown_where_there_is_no_terminal(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    del files["b/train.parquet"]
    _check_rows(files, {})
    assert capsys.readouterr().err == ""

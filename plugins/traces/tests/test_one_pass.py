"""read and steps in one pass: what the two verbs make, whatever stands in the files."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_traces import one_pass
from hf_rlhf_traces.command import command
from hf_rlhf_traces.engine import blocks

LAX = ("--max_rejected_share", "0.5")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "__defaults__", (20_000,))


def at_once(files: list[Path], out: Path, *more: str) -> None:
    assert command(["pipeline", *map(str, files), "--out", str(out), *LAX, *more]) == 0


def rows_of(store: Path, split: str) -> list[dict[str, Any]]:
    folder = store / "datasets" / "steps"
    rows: list[dict[str, Any]] = pq.read_table(folder / f"{split}.parquet").to_pylist()
    if (folder / f"{split}.jsonl").exists():
        assert [json.loads(line) for line in (folder / f"{split}.jsonl").open()] == rows
    return sorted(rows, key=lambda row: str(row["id"]))


def check_same(out: Path, verbs: Path) -> None:
    for name in ("traces.jsonl", "rejects.jsonl"):
        assert (out / name).read_bytes() == (verbs / name).read_bytes(), name
    for split in ("train", "validation"):
        assert rows_of(out, split) == rows_of(verbs, split)
    one, two = (json.loads((home / "traces.json").read_text())["steps"] for home in (out, verbs))
    for step in ("read", "steps"):
        for report in (one[step]["report"], two[step]["report"]):
            report.pop("seconds", None)
            report.get("sources") and report.pop("sources")
        assert one[step]["report"] == two[step]["report"]
    assert not (out / "pipeline").exists()


@pytest.mark.usefixtures("small_blocks")
def test_one_pass_makes_what_the_verbs_make(
    files: list[Path], verbs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    built = one_pass._Begun.settled

    def watched(self: one_pass._Begun, *more: Any) -> None:
        built(self, *more)
        begun.append(sum(one.rows for one in self.writers.values()))

    out = tmp_path / "store"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(one_pass._Begun, "settled", watched)
        patched.setattr(one_pass, "NEAR", 0.05)
        patched.setattr(one_pass, "_two_passes", None)
        at_once(files, out, "--workers", "1")
    assert len(begun) > 3, "there is more than one block"
    samples = len(rows_of(out, "train")) + len(rows_of(out, "validation"))
    assert begun[-1] > samples / 2, "most rows were built while the files were read"
    assert begun[-1] < samples, "some had to wait for the cut"
    check_same(out, verbs)
    capsys.readouterr()
    at_once(files, out, "--workers", "1")
    assert "done already" in capsys.readouterr().out


@pytest.mark.usefixtures("small_blocks")
def test_a_cut_that_is_not_near_to_the_ratio_is_found_out(
    files: list[Path], verbs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_pass, "NEAR", 1e-9)
    at_once(files, tmp_path / "store", "--workers", "1")
    check_same(tmp_path / "store", verbs)


def test_files_without_blocks_are_built_in_a_second_pass(
    files: list[Path], verbs: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "one.jsonl.gz"
    packed.write_bytes(gzip.compress(files[0].read_bytes()))
    at_once([packed, files[1]], tmp_path / "store", "--workers", "1", "--only_parquet")
    for split in ("train", "validation"):
        assert rows_of(tmp_path / "store", split) == rows_of(verbs, split)


@pytest.mark.usefixtures("small_blocks")
def test_a_failure_leaves_nothing_behind(files: list[Path], tmp_path: Path) -> None:
    out, bad = tmp_path / "store", tmp_path / "bad.jsonl"
    bad.write_bytes(files[0].read_bytes() + b"{}\n" * 400)
    with pytest.raises(DataError, match=r"4\d\d of 520 rows are no traces"):
        at_once([bad], out, "--workers", "1")
    assert {path.name for path in out.iterdir()} <= {
        "traces.json",
        "rejects.refused.jsonl",
        ".lock",
    }


@pytest.mark.slow
def test_a_second_process_is_refused_and_the_first_one_goes_on(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled, refused = one_pass._Begun.settled, []

    def disturbed(self: one_pass._Begun, *more: Any) -> None:
        second = subprocess.run(
            [sys.executable, "-m", "hf_rlhf.cli", "traces", "pipeline", *map(str, files)]
            + ["--out", str(tmp_path / "store"), *LAX],
            capture_output=True,
            text=True,
        )
        refused.append(second.stderr)
        settled(self, *more)

    monkeypatch.setattr(one_pass._Begun, "settled", disturbed)
    monkeypatch.setattr(one_pass, "NEAR", 0.05)
    at_once(files, tmp_path / "store", "--workers", "1")
    assert refused
    assert all("is in use by process" in said for said in refused)
    assert rows_of(tmp_path / "store", "train")


@pytest.mark.usefixtures("small_blocks")
def test_parquet_without_compression_has_the_same_rows(
    files: list[Path], verbs: Path, tmp_path: Path
) -> None:
    at_once(files, tmp_path / "store", "--workers", "1", "--compression", "none")
    assert rows_of(tmp_path / "store", "train") == rows_of(verbs, "train")
    columns = pq.ParquetFile(tmp_path / "store/datasets/steps/train.parquet").metadata.row_group(0)
    for at in range(columns.num_columns):
        assert columns.column(at).compression == "UNCOMPRESSED"
    prompt = columns.column(6)
    assert prompt.path_in_schema == "prompt"
    assert "DELTA_BYTE_ARRAY" in prompt.encodings


def test_one_pass_needs_no_datatrove(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['datatrove'] = None\n"
        "from hf_rlhf_traces.command import command\n"
        "from hf_rlhf.errors import PluginError\n"
        f"raw, out = {str(tmp_path / 'raw.jsonl')!r}, {str(tmp_path / 'store')!r}\n"
        "command(['generate', '--out', raw, '--traces', '20'])\n"
        "assert command(['pipeline', raw, '--out', out, '--workers', '2']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)
    assert rows_of(tmp_path / "store", "train")

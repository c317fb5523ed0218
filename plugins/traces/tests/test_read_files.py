"""`hf-rlhf traces build`: files of every kind and state, into a folder that other verbs use."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf_traces.command import command
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.pipeline import Build, row_builders, run_build
from hf_rlhf_traces.read_files import Reading
from hf_rlhf_traces.reading import Options
from hf_rlhf_traces.shards import SPLITS, dataset_rows
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.store import Store


def row(number: int, **fields: Any) -> dict[str, Any]:
    documents = [{"title": f"Title {number}", "content": "Some text."}]
    trace = [
        {"type": "search", "query": "a"},
        {"type": "search_result", "documents": documents},
        {"type": "CorrectAnswer", "content": str(number)},
    ]
    return {"id": f"t{number}", "question": f"Question {number}?", "trace": trace, **fields}


def lines(*numbers: int) -> bytes:
    return b"".join(json.dumps(row(number)).encode() + b"\n" for number in numbers)


def done(file: Path, out: Path, share: float = 1.0, **options: Any) -> dict[str, Any]:
    reading = Reading.of([str(file)], out, Options(**options), max_rejected_share=share)
    drop = {"seed": 42, "think_drop_prob": 0.0}
    run_build(Build(reading, Format(), row_builders(["multiturn"], Format(), drop)), workers=1)
    return dict(Store.open(out).report("build"))


def rejects(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rejects.jsonl").read_text().splitlines()]


def samples(out: Path) -> list[dict[str, Any]]:
    """Return the conversations of all splits, sorted by trace."""
    folder = out / "datasets" / "multiturn"
    rows = [row for split in SPLITS for row in dataset_rows(folder, split)]
    return sorted(rows, key=lambda row: str(row["id"]))


def ids(out: Path) -> list[str]:
    return sorted({row["trace"] for row in samples(out)})


def test_corrupt_and_truncated_lines_are_rejected_by_number_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(
        b"\xef\xbb\xbf" + lines(1) + b"{broken\n\n" + lines(2) + b"\xff\n \r\n" + lines(3)[:-20]
    )
    report = done(file, tmp_path / "out")
    assert (report["rows"], report["traces"]) == (5, 2)
    assert report["rejected"] == {"not_json": 2, "not_utf8": 1}
    assert report["noted"] == {"blank_lines": 2}
    found = rejects(tmp_path / "out")
    assert [one["where"] for one in found] == [f"{file}:{number}" for number in (2, 5, 7)]
    assert found[0]["row"] == "{broken"
    assert "The line has no end" in found[2]["detail"]
    assert ids(tmp_path / "out") == ["t1", "t2"]


def test_gzip_json_parquet_and_csv_are_read_alike(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [row(number) for number in range(4)]
    folder = tmp_path / "in" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines(0)))
    (folder / "b.json").write_text(json.dumps(rows[1:2]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows[2:3]), folder / "c.parquet")
    with (folder / "d.csv").open("w", newline="") as file:
        import csv

        writer = csv.DictWriter(file, rows[3])
        writer.writeheader()
        writer.writerow({**rows[3], "trace": json.dumps(rows[3]["trace"])})
    (folder / "e.json").write_bytes(lines(4))
    (folder / "notes.md").write_text("not data")
    report = done(tmp_path / "in", tmp_path / "out", 0)
    assert report["traces"] == 5
    assert ids(tmp_path / "out") == ["t0", "t1", "t2", "t3", "t4"]
    ends = [row for row in samples(tmp_path / "out") if row["step"] == 1]
    for number, end in enumerate(ends):
        assert f"Doc 1 (Title: Title {number})\nSome text." in end["messages"][-2]["content"]
        assert end["messages"][-1]["content"] == f"<answer>{number}</answer>"


def test_a_file_may_be_one_trace_over_many_lines(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.json").write_text(json.dumps(row(number), indent=2))
    (folder / "3.json.gz").write_bytes(gzip.compress(json.dumps(row(3), indent=1).encode()))
    (folder / "4.json").write_text(json.dumps(row(4), indent=2)[:-9])
    report = done(folder, tmp_path / "out")
    assert ids(tmp_path / "out") == ["t0", "t1", "t2", "t3"]
    assert report["rejected"] == {"file_damaged": 1}
    assert [one["where"] for one in rejects(tmp_path / "out")] == [f"{folder}/4.json, row 1"]


def test_what_is_left_of_a_damaged_file_is_one_rejection(tmp_path: Path) -> None:
    import random

    noise = "".join(random.Random(0).choices("abcdefgh", k=60_000))
    whole = gzip.compress(lines(1) + json.dumps(row(2, noise=noise)).encode() + b"\n")
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:-2_000])
    (tmp_path / "b.json").write_text(json.dumps([row(3), row(4)])[:-30])
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and nothing")
    (tmp_path / "d.jsonl").write_bytes(lines(5))
    report = done(tmp_path, tmp_path.parent / "damaged")
    assert report["traces"] == 2
    assert report["rejected"] == {"file_damaged": 3}
    refused = rejects(tmp_path.parent / "damaged")
    assert "is not readable Parquet: " in refused[2]["detail"]
    places = [one["where"] for one in refused]
    assert places == [
        f"{tmp_path}/a.jsonl.gz:2",
        f"{tmp_path}/b.json, row 1",
        f"{tmp_path}/c.parquet, row 1",
    ]


def test_a_row_that_is_too_large_is_rejected_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(lines(1) + b'{"question": "' + b"x" * 5_000_000 + b'"}\n' + lines(2))
    report = done(file, tmp_path / "out", max_row_mb=4)
    assert report["rejected"] == {"too_large": 1}
    assert ids(tmp_path / "out") == ["t1", "t2"]
    (found,) = rejects(tmp_path / "out")
    assert found["where"] == f"{file}:2"
    assert found["detail"] == "5.0 MB, more than --max_row_mb 4"
    assert found["cut"]
    assert len(found["row"]) == 2_000


def test_too_many_rejected_rows_stop_the_reading_and_leave_the_rejects(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(lines(*range(9)) + b"x\n")
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"1 of 10 rows(?s:.*)t\.jsonl:10: Expecting value"):
        done(file, out, 0.05)
    assert len((out / "rejects.refused.jsonl").read_text().splitlines()) == 1
    assert {path.name for path in out.iterdir()} <= {
        *("traces.json", "rejects.refused.jsonl", ".lock")
    }
    assert Store.open(out).state("build") == "to do"
    assert done(file, out, 0.1)["traces"] == 9
    assert len(rejects(out)) == 1
    assert not (out / "rejects.refused.jsonl").exists()
    file.write_bytes(lines(*range(9)) + b"x\n" * 5)
    with pytest.raises(DataError, match="5 of 14 rows"):
        done(file, out, 0.1)
    assert len(rejects(out)) == 1, "what belongs to the datasets stands"


def test_the_same_files_are_not_built_again_and_a_changed_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "t.jsonl", tmp_path / "out"
    file.write_bytes(lines(1, 2))
    words = ["build", str(file), "--out", str(out), "--workers", "1"]
    for done_before in (False, True):
        assert command(words) == 0
        assert ("done already" in capsys.readouterr().out) == done_before
    with pytest.raises(RunFolderError, match="max_row_mb: 64 -> 3"):
        command([*words, "--max_row_mb", "3"])
    file.write_bytes(lines(1, 2, 3))
    assert command(words) == 0
    assert ids(out) == ["t1", "t2", "t3"]


def test_what_cannot_be_read_is_said_before_anything_is_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "t.txt").write_text("x")
    (tmp_path / "t.jsonl").write_bytes(lines(1))
    (tmp_path / "empty").mkdir()
    for sources, said in [
        (["missing.jsonl"], "no such file"),
        ([str(tmp_path / "t.txt")], r"\.txt is not a format that is read"),
        ([str(tmp_path / "empty")], "holds no data files"),
        ([str(tmp_path)], "lies in it"),
    ]:
        with pytest.raises(DataError, match=said):
            Reading.of(sources, out, Options())
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no row"),
        (b"\n\n", r"there is no row in .*t\.jsonl"),
        (b"\xff\xfe{\x00", r"t\.jsonl:1: is UTF-16"),
        (b'[\n{"question": "q"}\n]', r"3 of 3 rows are no traces"),
    ],
)
def test_a_file_without_lines_of_rows_is_an_error(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=said):
        done(file, tmp_path / "out")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    file, out = tmp_path / "t.jsonl", tmp_path / "out"
    file.write_bytes(lines(1))
    out.mkdir()
    (out / "mine.txt").write_text("x")
    with pytest.raises(RunFolderError, match=r"holds other files and no traces\.json"):
        done(file, out)
    with pytest.raises(RunFolderError, match=r"is a file\. Choose another --out"):
        Store.make(file)
    (out / "mine.txt").unlink()
    (out / ".lock").touch()  # of a process that was killed at once
    assert done(file, out)["traces"] == 1


def test_the_verb_ends_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "t.jsonl"
    odd = row(20)
    odd["trace"].append({"type": "[red]thougt", "content": "x"})
    file.write_bytes(lines(*range(20)) + b"x\n" + json.dumps(odd).encode())
    asked = ["build", str(file), "--out", str(tmp_path / "out"), "--seed", "3"]
    assert command(asked) == 0
    assert command(asked) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rejected: not_json │ 1 │" in said
    assert "of 19 training and 2 validation questions" in said
    assert "unknown: [red]thougt │ 1 │ steps of a type that is not read" in said
    assert "(did you mean 'thought'?)" in said
    assert "done already" in said


@pytest.mark.parametrize(("questions", "validation"), [(0, 0), (1, 0), (2, 1), (3, 1), (15, 2)])
def test_each_side_has_a_question_where_there_are_two(questions: int, validation: int) -> None:
    keys = [f"{number:016x}" for number in range(questions)]
    split = Split.choose([rank(key, 1) for key in keys], 0.1, 1)
    assert [split.of(key) for key in keys].count("validation") == validation
    split = Split.choose([rank(key, 1) for key in keys], 0.999, 1)
    assert [split.of(key) for key in keys].count("train") == min(questions, 1)

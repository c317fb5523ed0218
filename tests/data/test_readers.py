"""Readers: every format gives the same rows, and every fault names its file and line."""

import csv
import gzip
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hf_rlhf.data.sources import Row, read_rows, require
from hf_rlhf.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"question": "Who?", "note": 'a "quoted",\nbroken line'},
    {"question": "Où? 日本 🙂", "note": ""},
    {"question": "Why?", "note": "x" * 200_000},
]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS[:2]).encode()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_format(folder: Path, name: str) -> Path:
    path = folder / name
    if "parquet" in name:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif name.startswith(("csv", "tsv")):
        with path.open("w", newline="", encoding="utf-8") as file:
            delimiter = "\t" if name.startswith("tsv") else ","
            writer = csv.DictWriter(file, ["question", "note"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(ROWS)
    elif name == "array.json":
        path.write_text(json.dumps(ROWS, indent=2), encoding="utf-8")
    else:
        write(path, "".join(json.dumps(row) + "\n" for row in ROWS).encode())
    return path


def read(path: Path) -> list[Row]:
    return list(read_rows(path).split("train"))


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.jsonl.gz", "lines.json", "array.json", "parquet.parquet", "csv.csv", "tsv.tsv"],
)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    source = read_rows(write_format(tmp_path, name))
    rows = source.split("train")
    assert [row.values for row in rows] == ROWS
    assert [row.values for row in rows] == ROWS, "rows can be read twice"
    assert name in next(iter(rows)).where


def test_rows_of_an_array_are_checked_for_halves_of_emojis_once(tmp_path: Path) -> None:
    # Each row searched the whole text: a file of 8 MB took minutes.
    path = tmp_path / "array.json"
    path.write_text(json.dumps([{"a": "x" * 1000}] * 16_000))
    started = time.process_time()
    assert len(read(path)) == 16_000
    assert time.process_time() - started < 5


def test_the_first_of_json_lines_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text("".join(json.dumps({"a": n * "x"}) + "\n" for n in (1_200_000, 2)))
    assert [row.values["a"][:2] for row in read(path)] == ["xx", "xx"]


def test_a_byte_order_mark_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf\n{"a": 1}\n\n  \n{"a": 2}')
    assert [(row.values, row.where) for row in read(path)] == [
        ({"a": 1}, f"{path}:2"),
        ({"a": 2}, f"{path}:5"),
    ]


FAULTS = {
    "list.jsonl": (b'{"a": 1}\n[1, 2]\n', ":2", "is list"),
    "garbage.jsonl": (b'{"a": 1}\n\n{"a" 2}\n', ":3", "not valid JSON"),
    "two.jsonl": (b'{"a": 1}{"a": 2}\n', ":1", "Extra data"),
    "latin.jsonl": (b'{"a": 1}\n{"a": "\xe9t\xe9"}\n', ":2", "byte 0xe9 at byte 8"),
    "utf16.jsonl": ('{"a": 1}\n'.encode("utf-16"), ":1", "UTF-16"),
    "twice.jsonl": (b'{"a": 1}\n{"b": [{"c": 1, "d": 2, "c": 3}]}\n', ":2", "'c' occurs twice"),
    "emoji.jsonl": (b'{"a": 1}\n{"a": "\\ud83d"}\n', ":2", "surrogate"),
    "deep.jsonl": (b"[" * 200_000 + b"\n", ":1", "recursion"),
    "empty.jsonl": (b"", "", "empty (0 bytes)"),
    "array.jsonl": (b'[{"a": 1}]', ":1", "An array of objects is read from a .json file"),
    "mac.csv": (b"a,b\r1,2\r", ":1", "is not valid CSV"),
    "short.csv": (b'a,b\n1,"two\nlines"\n3\n', ":4", "fewer or more fields than the header"),
    "long.csv": (b"a,b\n1,2,3\n", ":2", "fewer or more fields than the header"),
    "twice.csv": (b"a,b,a\n1,2,3\n", ":1", "the header names a twice"),
    "open.csv": (b'a,b\n1,2\n3,"four\n', ":3", "is not valid CSV"),
    "cut.json": (b'[\n{"a": 1},\n{"a" 2}]', ":3", "is not valid JSON"),
    "comma.json": (b'[{"a": 1},\n {"a": 2}\n {"a": 3}]', ":3", "Expecting ',' delimiter"),
    "latin.json": (b'[{"a": "\xff"}]', ":1", "is not UTF-8: byte 0xff at byte 9"),
    "twice.json": (b'[{"a": 0},\n{"a": 7, "a": 8}]', ":1", "'a' occurs twice in one object, and"),
    "number.json": (b'[{"a": 1}, 2]', ", row 2", "is int"),
    "emoji.json": (b'[{"a": "\\ud83d"}]', ", row 1", "holds half of a surrogate pair"),
    "text.json": (b'"abc"', ":1", "is str, expected a JSON object"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_file_and_line_or_row(tmp_path: Path, name: str) -> None:
    data, place, said = FAULTS[name]
    path = write(tmp_path / name, data)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{place}: ")
    assert said in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(JSONL)))
@example(cut=0)
@example(cut=JSONL.index(b"\n"))
@example(cut=JSONL.index(b"\n") + 1)
@example(cut=JSONL.index("ù".encode()) + 1)
def test_json_lines_cut_at_any_byte_give_whole_rows_or_the_right_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = write(tmp_path_factory.mktemp("cut") / "rows.jsonl", JSONL[:cut])
    rows, error = read_until_error(path)
    assert [row.values for row in rows] == ROWS[: len(rows)]
    if error is None:
        # Only a cut between rows can go unseen.
        assert JSONL[:cut].endswith(b"\n") or JSONL[cut : cut + 1] == b"\n"
    else:
        assert error.startswith(f"{path}:{len(rows) + 1}: " if cut else f"{path}: is empty")


def read_until_error(path: Path) -> tuple[list[Row], str | None]:
    rows: list[Row] = []
    try:
        for row in read_rows(path).split("train"):
            rows.append(row)
    except DataError as error:
        return rows, str(error)
    return rows, None


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_gzip_that_was_cut_is_an_error(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(JSONL)[:cut])
    with pytest.raises(DataError, match="rows.jsonl.gz"):
        read(path)


def test_damaged_parquet_is_a_data_error(tmp_path: Path) -> None:
    good = write_format(tmp_path, "x.parquet").read_bytes()
    cut = write(tmp_path / "cut.parquet", good[: len(good) // 2])
    with pytest.raises(
        DataError, match=r"cut\.parquet, row 1 or after it: is not readable Parquet"
    ):
        read(cut)


FAULTY_LINES = [b'{"a": bad}', b'{"a": 1, "a": 2}', b'{"a": "\\ud83d"}', b"[1]", b'{"a": "\xff"}']
FAULTY_ITEMS = [b'{"a": "\\ud83d"}', b"5"]
FAULTY_ROWS = {
    "rows.jsonl": (b"\n".join([b'{"a": 0}', *FAULTY_LINES, b'{"a": 9}']), len(FAULTY_LINES)),
    "rows.json": (b"[%b]" % b",".join([b'{"a": 0}', *FAULTY_ITEMS, b'{"a": 9}']), 2),
    "rows.csv": (b"a,b\n0,1\n1\n1,2,3\n9,9\n", 2),
}


@pytest.mark.parametrize("name", FAULTY_ROWS)
def test_a_row_that_cannot_be_read_leaves_the_others(tmp_path: Path, name: str) -> None:
    data, faults = FAULTY_ROWS[name]
    rows = list(read_rows(write(tmp_path / name, data)).split("train").with_faults())
    assert [str(row.values.get("a")) for row in (rows[0], rows[-1])] == ["0", "9"]
    assert [row.fault is None for row in rows] == [True, *[False] * faults, True]
    with pytest.raises(DataError) as caught:
        list(read_rows(tmp_path / name).split("train"))
    assert str(caught.value) == str(rows[1].fault)
    folder = tmp_path / "several"
    folder.mkdir()
    for number in (0, 1):
        write(folder / f"train-{number}-{name}", data)
    several = list(read_rows(folder).split("train").with_faults())
    assert sum(row.fault is not None for row in several) == 2 * faults


def test_a_source_without_rows_is_an_error_when_read(tmp_path: Path) -> None:
    for name, data in [("a.jsonl", b"\n\n"), ("b.json", b"[]"), ("c.csv", b"a,b\n")]:
        with pytest.raises(DataError, match="holds no rows"):
            list(read_rows(write(tmp_path / name, data)).split("train"))


def test_a_folder_is_read_by_split(tmp_path: Path) -> None:
    for name in ["data/train-00000.jsonl", "data/train-00001.jsonl", "dev/a.jsonl", "x_test.jsonl"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, json.dumps({"name": name}).encode())
    write(tmp_path / "README.md", b"not data")
    (tmp_path / ".cache").mkdir()
    write(tmp_path / ".cache" / "train.jsonl", b"hidden")
    source = read_rows(tmp_path)
    names = {split: [row.values["name"] for row in rows] for split, rows in source.splits.items()}
    assert names == {
        "train": ["data/train-00000.jsonl", "data/train-00001.jsonl"],
        "validation": ["dev/a.jsonl"],
        "test": ["x_test.jsonl"],
    }
    with pytest.raises(DataError, match="did you mean 'train'"):
        source.split("trian")


def test_columns_are_renamed_also_from_inside_an_object(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"q": "Who?", "gt": {"good": [1], "bad": []}, "k": 0}\n')
    mapping = {"question": "q", "positive_rubrics": "gt.good"}
    row = next(iter(read_rows(path, columns=mapping).split("train")))
    assert row.values == {
        "question": "Who?",
        "positive_rubrics": [1],
        "gt": {"good": [1], "bad": []},
        "k": 0,
    }
    swapped = next(iter(read_rows(path, columns={"q": "k", "k": "q"}).split("train"))).values
    assert (swapped["q"], swapped["k"]) == (0, "Who?")
    with pytest.raises(DataError, match=r"a\.jsonl:1: .*no 'goof' \(did you mean 'good'\?\)"):
        list(read_rows(path, columns={"x": "gt.goof"}).split("train"))


def test_missing_columns_are_named_with_near_ones() -> None:
    with pytest.raises(DataError) as caught:
        require(Row({"querstion": 1, "rubric": 2}, "rows.jsonl:7"), ["question", "rubric", "zzz"])
    said = str(caught.value)
    assert said.startswith("rows.jsonl:7: lacks 'question' (did you mean 'querstion'?), 'zzz'.")
    assert "`columns`" in said


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", b"{}")
    with pytest.raises(DataError, match=r"no such file or folder \(did you mean 'rows\.jsonl'"):
        read_rows(tmp_path / "row.jsonl")
    with pytest.raises(DataError, match="`revision` is for Hub datasets"):
        read_rows(tmp_path / "rows.jsonl", revision="main")
    with pytest.raises(DataError, match="not a format that is read"):
        list(read_rows(write(tmp_path / "rows.xlsx", b"x")).split("train"))
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="no data files"):
        read_rows(tmp_path / "bare")


def test_a_hub_dataset_is_pinned_to_the_commit_it_was_read_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets
    import huggingface_hub

    asked: dict[str, Any] = {}

    def load_dataset(name: str, subset: str | None, *, revision: str | None) -> Any:
        asked.update(name=name, subset=subset, revision=revision)
        return datasets.DatasetDict({"train": datasets.Dataset.from_list([{"a": 1}])})

    class Info:
        sha = "abc123"

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: Info)
    source = read_rows("someone/rows", revision="main", subset="small")
    assert asked == {"name": "someone/rows", "subset": "small", "revision": "abc123"}
    assert source.commit == "abc123"
    assert next(iter(source.split("train"))) == Row({"a": 1}, "someone/rows (train), row 1")


def test_an_unreachable_hub_dataset_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub

    def fail(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setattr("hf_rlhf.models.locate._ask_hub", lambda *_, **__: None)
    monkeypatch.setattr(datasets, "load_dataset", fail)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    with pytest.raises(DataError, match=r"someone/rows: no local file .*v1.*no route"):
        read_rows("someone/rows", revision="v1")


def test_memory_stays_flat_on_a_long_file(tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 10_000}).encode() + b"\n"
    path = write(tmp_path / "long.jsonl", line * 2_000)  # 20 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path).split("train")) == 2_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_several_paths_and_patterns_are_read_as_one(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "part-test.jsonl"):
        write(tmp_path / name, json.dumps({"from": name}).encode() + b"\n")
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "c.jsonl", b'{"from": "c"}\n{"from" 1}\n')
    source = read_rows(str(tmp_path / "*.jsonl"), columns={"file": "from"})
    assert [row.values["file"] for row in source.splits["train"]] == ["a.jsonl", "b.jsonl"]
    assert [row.values["file"] for row in source.splits["test"]] == ["part-test.jsonl"]
    paths = [str(tmp_path / "b.jsonl"), str(tmp_path / "more"), str(tmp_path / "a*")]
    rows = list(read_rows(paths).splits["train"].with_faults())
    assert [row.values.get("from") for row in rows] == ["b.jsonl", "c", None, "a.jsonl"]
    assert str(rows[2].fault).startswith(f"{tmp_path}/more/c.jsonl:2: ")


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        ([], "the list of paths is empty"),
        ("{}/x*.jsonl", "x[*].jsonl: no such file or folder"),
        (["{}/a.jsonl", "{}/*.jsonl"], "a.jsonl: is named twice"),
        (["{}/a.jsonl", "{}/b.jsonl"], "b.jsonl: no such file or folder .did you mean 'a.jsonl'"),
        (["{}/b.jsonl"], "^/.*/b.jsonl: no such file or folder .did you mean 'a.jsonl'"),
        (["{}/a.jsonl", "you/data"], "you/data: no such file or folder.* sources of a `mixture`"),
    ],
)
def test_paths_that_cannot_be_read_are_named(tmp_path: Path, paths: Any, problem: str) -> None:
    write(tmp_path / "a.jsonl", JSONL)
    many = isinstance(paths, list)
    wanted = [each.format(tmp_path) for each in paths] if many else paths.format(tmp_path)
    with pytest.raises(DataError, match=problem):
        read_rows(wanted)

"""What `datasets` keeps as JSON in Arrow is read as it was given."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Value, concatenate_datasets

from hf_rlhf.data.arrow_rows import arrow_rows, rows_digest
from hf_rlhf.data.sources import read_rows


def test_columns_of_json_are_parsed_at_any_depth_and_texts_are_not(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"steps": ['{"a": 1}', "[2]"], "run": {"output": ["{}"], "name": "{}"}, "text": "[1]"},
        {"steps": [None, "no json"], "run": {"output": None, "name": None}, "text": None},
        {"steps": None, "run": None, "text": ""},
    ]
    texts, typed = (
        pa.schema(
            {
                "steps": pa.list_(kind),
                "run": pa.struct({"output": pa.large_list(kind), "name": pa.string()}),
                "text": pa.string(),
            }
        )
        for kind in (pa.string(), pa.json_())
    )
    table = pa.Table.from_pylist(rows, texts).cast(typed)
    expected: list[dict[str, Any]] = [
        {"steps": [{"a": 1}, [2]], "run": {"output": [{}], "name": "{}"}, "text": "[1]"},
        {"steps": [None, "no json"], "run": {"output": None, "name": None}, "text": None},
        {"steps": None, "run": None, "text": ""},
    ]
    assert list(arrow_rows(table)) == expected
    pq.write_table(table, tmp_path / "t.parquet")
    found = read_rows(str(tmp_path / "t.parquet")).splits["train"]
    assert [row.values for row in found] == expected


def test_a_saved_dataset_of_unlike_steps_is_read_as_it_was_given(tmp_path: Path) -> None:
    from datasets import Dataset, Features, Json, List

    steps = [{"type": "search", "query": "a"}, {"type": "result", "documents": [{"title": "b"}]}]
    features = Features({"trace": List(Json())})
    Dataset.from_dict({"trace": [steps]}, features=features).save_to_disk(str(tmp_path / "d"))
    found = read_rows(str(tmp_path / "d")).splits["train"]
    assert [row.values for row in found] == [{"trace": steps}]


ROWS = [
    {"text": "ab", "n": 1, "x": 0.5, "on": True, "tags": ["a", "bc"], "in": {"k": "v", "l": [1]}},
    {"text": "", "n": None, "x": 1.5, "on": None, "tags": [], "in": {"k": None, "l": None}},
    {"text": None, "n": 3, "x": None, "on": False, "tags": None, "in": None},
    {"text": "d\x00é", "n": 4, "x": -2.0, "on": True, "tags": [None], "in": {"k": "", "l": []}},
]


def test_equal_rows_have_one_digest_however_arrow_holds_them(tmp_path: Path) -> None:
    """In pieces, shuffled and put back, from a file, from another process, of wider types."""
    rows = [{**row, "at": number} for number, row in enumerate(ROWS * 300)]
    whole = Dataset.from_list(rows)
    expected = rows_digest(whole)
    pieces = [whole.select(range(at, at + 75)).flatten_indices() for at in range(0, 1200, 75)]
    assert rows_digest(concatenate_datasets(pieces)) == expected
    assert rows_digest(whole.shuffle(seed=1).sort("at")) == expected
    twice = concatenate_datasets([whole, whole])
    assert rows_digest(twice.select(range(1200, 2400))) == expected
    assert rows_digest(twice.select(range(5, 1205)).sort("at")) == expected
    whole.to_parquet(tmp_path / "rows.parquet")
    read = f"""
from datasets import load_dataset
from hf_rlhf.data.arrow_rows import rows_digest
rows = load_dataset("parquet", data_files={str(tmp_path / "rows.parquet")!r}, split="train",
                    cache_dir={str(tmp_path / "cache")!r})
print(rows_digest(rows))
"""
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == expected
    wider = whole.cast_column("text", Value("large_string")).cast_column("n", Value("int32"))
    assert rows_digest(wider) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[:-1],
        lambda rows: [{**row, "text": row["text"] or ""} for row in rows],
        lambda rows: [{**row, "tags": row["tags"] or []} for row in rows],
        lambda rows: [{**row, "tags": ["ab", "c"] if row["tags"] else row["tags"]} for row in rows],
        lambda rows: [rows[0] | {"tags": ["a"]}, rows[1] | {"tags": ["bc"]}, *rows[2:]],
        lambda rows: [{**row, "on": not row["on"]} for row in rows],
        lambda rows: [{**row, "x": -0.5 if row["x"] == 0.5 else row["x"]} for row in rows],
        lambda rows: [{**row, "in": row["in"] and {**row["in"], "l": None}} for row in rows],
        lambda rows: [{**row, "in": row["in"] or {"k": None, "l": None}} for row in rows],
        lambda rows: [{("t" if k == "text" else k): v for k, v in row.items()} for row in rows],
        lambda rows: [rows[0] | {"text": "a"}, rows[1] | {"text": "b"}, *rows[2:]],
    ],
)
def test_other_rows_have_another_digest(change: Any) -> None:
    kept, other = Dataset.from_list(ROWS), Dataset.from_list(change(ROWS))
    if other.features != kept.features and set(other.column_names) == set(kept.column_names):
        other = other.cast(kept.features)
    assert rows_digest(other) != rows_digest(kept)


def test_two_columns_that_changed_places_in_every_row_are_other_rows() -> None:
    rows = [{"chosen": str(n), "rejected": str(-n - 1)} for n in range(9)]
    swapped = [{"chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    one, other = Dataset.from_list(rows), Dataset.from_list(swapped)
    assert rows_digest(one) != rows_digest(other)
    # The order of columns is none of the rows'.
    assert rows_digest(one.select_columns(["rejected", "chosen"])) == rows_digest(one)

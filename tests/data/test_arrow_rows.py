"""What `datasets` keeps as JSON in Arrow is read as it was given."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Json, List, Value, concatenate_datasets

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
        *rows[1:],
    ]
    assert list(arrow_rows(table)) == expected
    pq.write_table(table, tmp_path / "t.parquet")
    found = read_rows(str(tmp_path / "t.parquet")).splits["train"]
    assert [row.values for row in found] == expected


def test_a_saved_dataset_of_unlike_steps_is_read_as_it_was_given(tmp_path: Path) -> None:
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
    """In pieces, shuffled and put back, of wider types, with columns in another order."""
    whole = Dataset.from_list([{**row, "at": number} for number, row in enumerate(ROWS * 30)])
    expected = rows_digest(whole)
    pieces = [whole.select(range(at, at + 15)).flatten_indices() for at in range(0, 120, 15)]
    assert rows_digest(concatenate_datasets(pieces)) == expected
    assert rows_digest(whole.shuffle(seed=1).sort("at")) == expected
    wider = whole.cast_column("text", Value("large_string")).cast_column("n", Value("int32"))
    assert rows_digest(wider.select_columns(whole.column_names[::-1])) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[:-1],
        lambda rows: [{**row, "text": row["text"] or ""} for row in rows],
        lambda rows: [rows[0] | {"tags": ["a"]}, rows[1] | {"tags": ["bc"]}, *rows[2:]],
        lambda rows: [{**row, "in": row["in"] or {"k": None, "l": None}} for row in rows],
        lambda rows: [{("t" if k == "text" else k): v for k, v in row.items()} for row in rows],
    ],
)
def test_other_rows_have_another_digest(change: Any) -> None:
    kept, other = Dataset.from_list(ROWS), Dataset.from_list(change(ROWS))
    if other.features != kept.features and set(other.column_names) == set(kept.column_names):
        other = other.cast(kept.features)
    assert rows_digest(other) != rows_digest(kept)

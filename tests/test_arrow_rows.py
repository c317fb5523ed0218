"""What `datasets` keeps as JSON in Arrow is read as it was given."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_rlhf.arrow_rows import arrow_rows
from hf_rlhf.readers import read_rows


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

"""Rows with grades: what cannot be graded is refused with row, field and reason."""

import json

import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_lab.graded import graded

TURN = {"role": "assistant", "content": "c"}


def load(tmp_path, *rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return graded(str(path)).dataset["train"]


@pytest.mark.parametrize("field", ["prompt", "completion"])
@pytest.mark.parametrize("value", [None, [], [{"content": "c"}]])
def test_a_text_that_is_none_is_refused(tmp_path, field, value):
    row = {"prompt": "p", "completion": "c", "grade": 1}
    with pytest.raises(DataError, match=rf"rows.jsonl:2: field '{field}' is .*; expected a text"):
        load(tmp_path, row, {**row, field: value})


@pytest.mark.parametrize(
    ("grade", "shown"),
    [
        (float("nan"), "nan"),
        (True, "True"),
        ([1, None], "null"),
        (10**400, "a number of more than 64 bits"),
    ],
)
def test_a_grade_that_is_no_number_of_32_bits_is_refused(tmp_path, grade, shown):
    row = {"prompt": "p", "completion": "c", "grade": 1}
    with pytest.raises(DataError, match=rf"rows.jsonl:2: field 'grade' is or holds {shown};"):
        load(tmp_path, row, {**row, "grade": grade})


def test_values_of_two_types_are_refused_with_the_field(tmp_path):
    row = {"prompt": "p", "completion": "c", "grade": 1}
    for first, second in (({"note": "a"}, {"note": 7}), ({}, {"note": 10**40})):
        with pytest.raises(DataError, match=r"rows.jsonl:3: field 'note' does not fit"):
            load(tmp_path, row, {**row, **first}, {**row, **second})


def test_texts_messages_and_columns_of_later_rows_are_read(tmp_path):
    texts = load(
        tmp_path,
        {"prompt": "p", "completion": "", "grade": 10**30},
        {"prompt": "", "completion": "c", "grade": [1, 2], "note": "n"},
    )
    assert texts["grade"] == [[1e30], [1.0, 2.0]]
    assert texts["note"] == [None, "n"]
    messages = load(tmp_path, {"prompt": [TURN], "completion": [TURN], "grade": 1})
    assert messages["completion"] == [[TURN]]

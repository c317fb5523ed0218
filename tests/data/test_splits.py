"""Duplicates, overlap, held-out rows: each counted, and left out only as asked."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_rlhf.data.splits import Split, held_out_mask, text_hash
from hf_rlhf.errors import DataError
from hf_rlhf.testing.rows import TemplateOnly, write_rows
from tests.data.chat_adapters import sft

pytestmark = pytest.mark.usefixtures("cache")


def load(path: str, **arguments: Any) -> Any:
    return sft(path, **{"tokenizer": TemplateOnly(), "test_rows": 0, **arguments})


U, A = ({"role": role, "content": role} for role in ("user", "assistant"))


def test_duplicates_are_counted_and_left_out_if_asked(tmp_path: Path) -> None:
    rows = [{"prompt": "Why?", "response": "So."}] * 2
    rows += [{"prompt": "why? ", "response": "SO."}, {"prompt": "Why?", "response": "No."}]
    path = write_rows(tmp_path, rows)
    loaded = load(path)
    assert loaded.report["duplicates"] == {"exact": 1, "normalised": 2}
    assert loaded.report["kept"] == 4
    assert load(path, drop_duplicates="exact").report["dropped"] == {"duplicate": 1}
    assert load(path, drop_duplicates="normalised").report["kept"] == 2


def test_held_out_prompts_are_not_trained_on(tmp_path: Path) -> None:
    train = [{"prompt": f"q{n}", "response": "a"} for n in range(10)]
    test = [{"prompt": f" Q{n}", "response": "b"} for n in range(8, 12)]
    write_rows(tmp_path, train, "data/train.jsonl")
    write_rows(tmp_path, test, "data/test.jsonl")
    path = str(tmp_path / "data")
    loaded = load(path, test_rows=None)
    assert loaded.report["splits"] == {"train": 8, "test": 4}
    assert loaded.report["dropped"] == {"prompt_is_held_out": 2}
    assert loaded.report["train_rows_whose_prompt_is_held_out"] == 2
    assert loaded.report["held_out"].endswith("data (test)")
    kept = load(path, test_rows=None, drop_overlap=False)
    assert kept.report["splits"] == {"train": 10, "test": 4}
    assert kept.report["train_rows_whose_prompt_is_held_out"] == 2


def test_a_share_is_held_out_by_prompt_whatever_else_is_there(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n % 50}", "response": f"a{n}"} for n in range(200)]
    asked = load(write_rows(tmp_path, rows), test_rows=None, test_share=0.2)
    splits = {
        name: {row["prompt"][0]["content"] for row in part} for name, part in asked.dataset.items()
    }
    assert asked.report["splits"] == {"train": 160, "test": 40}
    assert not splits["train"] & splits["test"]
    again = load(write_rows(tmp_path, rows[::-1]), test_rows=None, test_share=0.2)
    assert {row["prompt"][0]["content"] for row in again.dataset["test"]} == splits["test"]
    other = load(write_rows(tmp_path, rows), test_rows=None, test_share=0.2, seed=7)
    assert {row["prompt"][0]["content"] for row in other.dataset["test"]} != splits["test"]
    default = load(write_rows(tmp_path, rows), test_rows=None)
    assert default.report["splits"] == {"train": 180, "test": 20}


def test_a_prompt_with_most_of_the_rows_is_trained_on(tmp_path: Path) -> None:
    rows = [{"prompt": "often", "response": f"a{n}"} for n in range(30)]
    rows += [{"prompt": f"q{n}", "response": "a"} for n in range(10)]
    for seed in range(5):
        loaded = load(write_rows(tmp_path, rows), test_rows=None, seed=seed)
        assert loaded.report["splits"] == {"train": 36, "test": 4}
    # The larger of two that are both too large is not the one to hold out.
    uneven = [{"prompt": f"q{n > 6}", "response": f"a{n}"} for n in range(30)]
    loaded = load(write_rows(tmp_path, uneven), test_rows=3)
    assert loaded.report["splits"] == {"train": 23, "test": 7}


def test_which_rows_are_held_out_never_changes() -> None:
    """By another hash, a resumed run and its published results would have other held-out rows."""
    prompts = np.array([text_hash(f"question {n}") for n in range(40)], np.uint64)
    held_out = held_out_mask(prompts, np.ones(40, bool), Split(test_rows=5, seed=42))
    assert list(np.flatnonzero(held_out)) == [3, 25, 26, 37, 39]


def test_no_more_rows_than_asked_for(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "response": "a"} for n in range(100)]
    path = write_rows(tmp_path, rows)
    asked = {"test_rows": 20, "max_train_rows": 30, "max_test_rows": 5}
    loaded = load(path, **asked)
    assert loaded.report["splits"] == {"train": 30, "test": 5}
    assert loaded.report["dropped"] == {"over_max_train_rows": 50, "over_max_test_rows": 15}
    numbers = [int(row["prompt"][0]["content"][1:]) for row in loaded.dataset["train"]]
    assert numbers == sorted(numbers), "in the order of the source"
    assert numbers != [row for row in range(100) if row in numbers][:30] or numbers[-1] > 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"test_rows": 5, "test_share": 0.5}, "are both given"),
        ({"test_rows": None, "test_share": 1.0}, "`test_share` is 1.0"),
        ({"test_rows": -1}, "`test_rows` is -1"),
        ({"test_rows": 3}, "3 of 3 usable rows (3 different prompts) cannot be held out"),
        ({"seed": -1}, "`seed` is -1"),
        ({"max_train_rows": 0}, "`max_train_rows` is 0"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"max_rejected_share": 2.0}, "`max_rejected_share` is 2.0"),
        ({"split": "trian"}, "no split 'trian' (did you mean 'train'?)"),
        ({"revision": "main"}, "`revision` is for Hub datasets"),
    ],
)
def test_arguments_that_cannot_be_meant(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    rows = [{"prompt": f"q{n}", "response": "a"} for n in range(3)]
    with pytest.raises(DataError, match=re.escape(said)):
        load(write_rows(tmp_path, rows), **arguments)


def test_if_all_rows_overlap_nothing_is_left(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_rows(tmp_path, [{"prompt": "q", "response": "a"}], f"data/{name}.jsonl")
    with pytest.raises(DataError, match="no row is left to train on"):
        load(str(tmp_path / "data"), test_rows=None)
    judged = [{"messages": [U, A], "label": False}]
    with pytest.raises(DataError, match="all 1 rows are left out .label_false: 1."):
        load(write_rows(tmp_path, judged))

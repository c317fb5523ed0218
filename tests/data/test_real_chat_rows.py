"""Real data: every row of the files that fit, and what is said of those that do not."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import DataError
from tests.data.chat_adapters import preference, prompts, sft

DATA = Path(
    os.environ.get("HF_RLHF_DATA") or Path(__file__).resolve().parents[2] / "../shared/data"
)
pytestmark = [
    pytest.mark.usefixtures("cache"),
    pytest.mark.skipif(
        not DATA.is_dir(), reason=f"the real data is not at {DATA} (set HF_RLHF_DATA)"
    ),
]
HH = DATA / "hh_rlhf" / "harmless-base-test.jsonl.gz"


class Tokenizer:
    """As far as an adapter looks that measures nothing."""

    chat_template = None


def load(adapter: Any, name: str | Path, **arguments: Any) -> Any:
    return adapter(str(DATA / name), **{"tokenizer": Tokenizer(), **arguments})


def test_every_transcript_is_given_back_to_the_letter_or_listed(tmp_path: Path) -> None:
    rejected = tmp_path / "rejected_rows.jsonl"
    loaded = load(preference, HH, rejected_rows=rejected, test_rows=0)
    with gzip.open(HH, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    lines = [json.loads(line) for line in rejected.read_text().splitlines()]
    bad = {line["row"] - 1: line["reason"] for line in lines}
    reasons = list(bad.values())
    assert {reason: reasons.count(reason) for reason in set(reasons)} == {
        "different_prompts": 5,
        "empty_response": 4,
        "role_order": 4,
    }
    found = loaded.dataset["train"].to_list()
    good = [row for place, row in enumerate(rows) if place not in bad]
    assert len(found) + len(bad) == len(rows) == 2312
    for one, row in zip(found, good, strict=True):
        for name in ("chosen", "rejected"):
            assert one["prompt"] + one[name] == row[name]
            assert "\n\nHuman:" not in one[name]
            assert "\n\nAssistant:" not in one[name]


@pytest.mark.slow
def test_gsm8k_and_its_overlap_is_found() -> None:
    loaded = load(sft, "gsm8k/train.jsonl")
    assert (loaded.report["schema"], loaded.report["kept"]) == ("question_answer", 7473)
    whole = load(prompts, "gsm8k")
    assert whole.report["splits"] == {"train": 7473, "test": 1319}
    # example_model_solutions.jsonl, which counts as training rows, holds the test questions.
    assert whole.report["dropped"] == {"prompt_is_held_out": 1319}
    assert {"answer", "ground_truth"} <= set(whole.dataset["train"].column_names)


@pytest.mark.slow
def test_every_conversation_with_tools_is_read() -> None:
    chat = type("Chat", (), {"chat_template": "x"})()
    path = "preference_demos/glaive_toolcall_en_demo.json"
    loaded = load(sft, path, tokenizer=chat, target="every", test_rows=0)
    assert (loaded.report["kept"], loaded.report["dropped"]) == (300, {})
    assert loaded.report["tool_calls"] == {"read": 211, "learned": 211}
    with open(DATA / path, encoding="utf-8") as file:
        rows = json.load(file)
    for row, source in zip(loaded.dataset["train"], rows, strict=True):
        for turn, given in zip(row["messages"], source["conversations"], strict=True):
            if turn.get("tool_calls"):
                (call,) = turn["tool_calls"]
                assert call["function"] == json.loads(given["value"])
            else:
                assert turn["content"] == given["value"]
    with pytest.raises(DataError, match=r"153 of 300 rows \(51.0%\) .*needs_messages: 153"):
        load(sft, path)

"""The adapters of chat rows pass every argument on, and keep the contract of datasets."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.data import ChatRowArguments
from hf_rlhf.testing import check_dataset
from hf_rlhf.testing.rows import WordTokenizer, write_rows
from hf_rlhf_classic.data.preference import preference
from hf_rlhf_classic.data.prompts import prompts
from hf_rlhf_classic.data.sft import sft

pytestmark = pytest.mark.usefixtures("cache")


def test_an_adapter_takes_the_shared_arguments_beside_its_own() -> None:
    parameters = inspect.signature(sft).parameters
    assert list(parameters)[:2] == ["path", "target"]
    assert parameters.keys() - {"target"} == {item.name for item in fields(ChatRowArguments)}
    assert parameters["tokenizer"].default is inspect.Parameter.empty
    assert parameters["max_rejected_share"].default == 0.05
    with pytest.raises(TypeError, match="unexpected keyword argument 'label'"):
        sft("rows.jsonl", tokenizer=None, label="safer")


def test_the_label_and_margin_of_preferences(tmp_path: Path) -> None:
    row = {"prompt": "q", "response_0": "a", "response_1": "b", "safer_response_id": 1}
    path = write_rows(tmp_path, [{**row, "score_chosen": 2, "score_rejected": 1}])
    loaded = preference(path, tokenizer=None, test_rows=0, label="safer", margin="scores")
    assert loaded.dataset["train"][0]["chosen"] == " b"
    assert loaded.dataset["train"][0]["margin"] == 1


@pytest.mark.parametrize("adapter", [sft, preference, prompts])
@pytest.mark.parametrize("format", ["conversational", "text"])
def test_conforms(tmp_path: Path, adapter: Any, format: str) -> None:
    rows = [
        {"prompt": f"q{n}?", "response": "a", "chosen": "a", "rejected": "b", "score": n}
        for n in range(20)
    ]
    broken = write_rows(tmp_path, [{**rows[0], "prompt": None}, *rows], "broken.jsonl")
    schema = {"sft": "prompt_response"}.get(adapter.__name__)
    check_dataset(
        adapter,
        {
            "path": write_rows(tmp_path, rows),
            "format": format,
            "schema": schema,
            "max_rejected_share": 0.0,
            **({"max_tokens": 50} if adapter is not prompts else {"max_prompt_tokens": 50}),
        },
        columns=["score"],
        bad=[({"path": broken}, "broken.jsonl:1")],
        tokenizer=WordTokenizer(chat=True),
    )

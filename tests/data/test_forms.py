"""The kind of a row is that of the schemas which the adapters read."""

import json
from typing import Any

import pytest

from hf_rlhf.data import row_kind
from hf_rlhf.data.forms import chat_schemas

TURNS = [{"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": "Yes."}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"prompt": "a", "response": "b", "label": True}, "sft"),
        ({"messages": TURNS}, "sft"),
        ({"messages": json.dumps(TURNS)}, "sft"),
        ({"messages": TURNS[:1]}, "prompts"),
        ({"messages": [TURNS]}, "unknown"),
        ({"conversations": [{"from": "human"}, {"from": "gpt"}]}, "sft"),
        ({"prompt": "a", "response": None}, "prompts"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference"),
        ({"text": "a"}, "unknown"),
    ],
)
def test_kinds_of_rows(row: dict[str, Any], kind: str) -> None:
    assert row_kind(row) == kind
    assert kind in (*chat_schemas(), "unknown")

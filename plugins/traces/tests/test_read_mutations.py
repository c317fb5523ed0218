"""Rows of every form with anything put anywhere: read, and read back the same, or rejected."""

import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf_rollouts import rollout_forms
from hf_rlhf_traces.outcomes import REJECTED
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row

FORMS = list(rollout_forms())
DOCS = Path(__file__).resolve().parents[3] / "docs/reference/traces-formats.md"
SECTIONS = re.findall(r"### `(\w+)`(.*?)(?=\n##)", DOCS.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLES = [
    (form, json.loads(example))
    for form, section in SECTIONS
    for example in re.findall(r"```json\n(.*?)\n```", section, re.DOTALL)
]
ODD: list[Any] = [
    *(None, True, 1.5, -1, 1 << 70, float("nan"), "", "x", "\x00", "\ud800", "{}", "[1", "type"),
    *("<think>", "<search>a", "</answer>", "<information>x</information>", "reasoning"),
    *([], [1], ["x"], [None], [[]], [{"type": "search"}], [{"type": "image_url"}]),
    *({}, {"a": 1}, {"content": "c"}, {"type": "text", "text": "t"}, {"name": "f"}),
    *({"role": "user", "content": "Why?"}, {"role": "critic", "content": "No."}),
    *({"type": "tool_use", "id": "1", "name": "f"}, {"type": "tool_result", "content": [{}]}),
    *({"type": "thinking"}, {"from": "human", "value": "Why?"}, "function_call", "tool_result"),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    keys = list(value) if isinstance(value, dict) else []
    for key in range(len(value)) if isinstance(value, list) else keys:
        yield from places(value[key], (*path, key))


def mutated(row: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    row = copy.deepcopy(row)
    for _ in range(chance.choice([1, 1, 2, 3])):
        if not (known := list(places(row))):
            break
        *path, last = chance.choice(known)
        holder: Any = row
        for key in path:
            holder = holder[key]
        what = chance.random()
        if what < 0.2:
            del holder[last]
        elif what < 0.4 and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(chance.choice(holder)))
        else:
            holder[last] = copy.deepcopy(chance.choice(ODD))
    return row


@pytest.mark.parametrize(("form", "example"), EXAMPLES)
def test_whatever_stands_in_a_row_it_is_read_or_rejected(
    form: str, example: dict[str, Any], as_row: Any
) -> None:
    chance = random.Random(form)
    kept = 0
    for number in range(150):
        row = mutated(example, chance)
        options = Options(form=chance.choice([None, None, form, *FORMS]))
        if number % 3:
            found = read_row(json.dumps(row).encode(), "t.jsonl:1", options)
        else:
            found = read_row(row, "t.jsonl:1", options)
        if isinstance(found, Rejected):
            assert found.reason in REJECTED
            continue
        kept += 1
        trace = found.trace
        again = read_row(as_row(trace), "t.jsonl:1", Options())
        assert isinstance(again, Read), again
        assert again.trace == trace
    assert 6 < kept < 140

"""Rollouts in the OpenAI Responses form, read by `hf_rlhf.data.rollouts` as the refiner does."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.data import Row, parse_rollout
from hf_rlhf_traces.readers.messages import has_items, second_question
from hf_rlhf_traces.readers.rollout_steps import steps_of
from hf_rlhf_traces.readers.rough import Noted, Rough, own_id, rest

_USED = ("responses_create_params", "response", "input", "output", "id")
_LISTS = ("messages", "input", "items", "conversation")
"""Where a row may have question and items in one list, as the agents SDK's `to_input_list` has."""


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has the items of a response."""
    response = values.get("response")
    if isinstance(response, Mapping) and isinstance(response.get("output"), list):
        return True
    if isinstance(values.get("output"), list) and values.get("input") is not None:
        return True
    return bool(_single_list(values))


def _single_list(values: Mapping[str, Any]) -> str:
    return next((key for key in _LISTS if has_items(values.get(key))), "")


def _parted(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of one list of items with that as its output, in which the question is found."""
    held = _single_list(values)
    if not held or "response" in values or "output" in values:
        return values
    others = {key: value for key, value in values.items() if key != held}
    return {**others, "input": [], "output": values[held]}


def read(values: Mapping[str, Any], where: str, noted: Noted) -> Rough:
    """Return question and steps. Raises DataError, naming the item, for what is none."""
    values = _parted(values)
    rollout = parse_rollout(Row(dict(values), where))
    if (again := rollout.second_question) is not None:
        raise second_question("input or output", again.text)
    fields = rest(values, _USED)
    response = values.get("response")
    name = own_id(values)
    if isinstance(response, Mapping):
        name = name or own_id(response)
        if isinstance(response.get("model"), str):
            fields.setdefault("model", response["model"])
    input_messages = [{"role": message.role, "content": message.text} for message in rollout.input]
    if [message["content"] for message in input_messages] != [rollout.question]:
        fields.setdefault("input", input_messages)
    noted["earlier_turns"] += len(rollout.earlier_turns)
    noted["later_turns"] += len(rollout.later_turns)
    return Rough(rollout.question, steps_of(rollout, noted), fields, name)

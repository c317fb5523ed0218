"""Rollouts in the OpenAI Responses form, read by `hf_rlhf.rollouts` as the refiner does."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.readers import Row
from hf_rlhf.rollouts import parse_rollout
from hf_rlhf_traces.readers.rollout_steps import steps_of
from hf_rlhf_traces.readers.rough import Noted, Rough, own_id, rest

_USED = ("responses_create_params", "response", "input", "output", "id")


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has the items of a response."""
    response = values.get("response")
    if isinstance(response, Mapping) and isinstance(response.get("output"), list):
        return True
    return isinstance(values.get("output"), list) and values.get("input") is not None


def read(values: Mapping[str, Any], where: str, noted: Noted) -> Rough:
    """Return question and steps. Raises DataError, naming the item, for what is none."""
    rollout = parse_rollout(Row(dict(values), where))
    fields = rest(values, _USED)
    response = values.get("response")
    name = own_id(values)
    if isinstance(response, Mapping):
        name = name or own_id(response)
        if isinstance(response.get("model"), str):
            fields.setdefault("model", response["model"])
    asked = [{"role": one.role, "content": one.text} for one in rollout.input]
    if [one["content"] for one in asked] != [rollout.question]:
        fields.setdefault("input", asked)
    noted["earlier_turns"] += sum(one["role"] in ("user", "assistant") for one in asked[:-1])
    return Rough(rollout.question, steps_of(rollout, noted), fields, name)

"""Identify a reward by its code, its arguments and the content of the files they refer to.

Rewards with equal digests score alike, apart from the answers of an API. Labels, paths, and a
model's location do not count; its weights do. The code is the reward's file and the modules that it
imports; data files count if `reads` lists them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import Judge
from hf_rlhf.models import content_of
from hf_rlhf.rewards import TOTAL, ComposedReward, Part
from hf_rlhf.steps import digest
from hf_rlhf.storage import as_json

_CODE = ("package", "version", "target", "code")


def identified_parts(
    reward: ComposedReward | None,
    components: Sequence[Mapping[str, Any]],
    judges: Mapping[str, Judge],
) -> dict[str, dict[str, Any]]:
    """Return the identity of each reward and gate, by label, as plain JSON."""
    if reward is None:
        return {}
    by_label = {each["label"]: each for each in components if each["kind"] in ("rewards", "judges")}
    identified = {}
    for part in (*reward.rewards, *reward.gates):
        judge = next(
            (
                {**identified_component(by_label[label]), "describes": as_json(judge.describe())}
                for label, judge in judges.items()
                if judge is getattr(part.reward, "judge", None)
            ),
            None,
        )
        options = {"judge": judge} if judge else {}
        component = {**identified_component(by_label[part.label]), **options}
        identified[part.label] = {"component": component, **_options(part, reward)}
    return identified


def identified_component(component: Mapping[str, Any]) -> dict[str, Any]:
    """Return what determines a component's scores: its code and its arguments."""
    # An installed package has no `code`; its version is enough.
    code: dict[str, Any] = {key: component[key] for key in _CODE if component.get(key)}
    paths = [Path(each).expanduser().absolute() for each in component.get("files") or ()]
    files = {f"{at} {path.name}": content_of(str(path)) for at, path in enumerate(paths)}
    code |= {"files": files} if files else {}
    return {**code, "arguments": _content(as_json(component.get("arguments") or {}))}


def reward_identity(parts: Mapping[str, Mapping[str, Any]], label: str = TOTAL) -> dict[str, Any]:
    """Return `label`, `digest` and the content of the digest, for a part or for the total.

    The total of a single reward, up to a positive weight, is identified as that reward. Rewards of
    weight 0 do not count.
    """
    if label == TOTAL:
        parts = {name: part for name, part in parts.items() if part.get("weight") != 0}
    if label == TOTAL and not _is_alone(parts):
        what: Mapping[str, Any] = dict(sorted(parts.items()))
    else:
        label = next(iter(parts)) if label == TOTAL else label
        what = parts[label]["component"]
    return {"label": label, "digest": digest(what), "identity": what}


def _is_alone(parts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the total is a single reward up to a positive factor."""
    part = next(iter(parts.values())) if len(parts) == 1 else {}
    as_it_is = part.keys() <= {"component", "weight", "on_none"}
    return bool(part) and as_it_is and part.get("weight", 1.0) > 0


def _options(part: Part, reward: ComposedReward) -> dict[str, Any]:
    """Return the composition's options for a score if they change it."""
    if part in reward.gates:
        return {"gate": part.threshold}
    rest = [item for item in fields(part) if item.name not in ("label", "reward", "source")]
    return {
        item.name: as_json(value)
        for item in rest
        if (value := getattr(part, item.name)) != item.default
    }


def _content(value: Any) -> Any:
    """Return arguments with file and folder paths replaced by digests of their content."""
    if isinstance(value, Mapping):
        return {key: _content(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_content(each) for each in value]
    return value if not isinstance(value, str) else content_of(value) or value

"""What a step is trained on: the kind of its rows, and fingerprints that tell roles' data apart."""

import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.data import Row, raw_turns, read_rows, row_kind, turn_role
from hf_rlhf.errors import DataError
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_roles.role import Role, Stage

_PREFERENCE = (
    ("chosen", "rejected"),
    ("response_chosen", "response_rejected"),
    ("response_0", "response_1"),
)
_TARGETS = ("response", "completion", "output", "answer")
_PROMPTS = ("prompt", "question", "instruction", "input")
_TALKS = ("messages", "conversations")
_SPEAKERS = {"user": "prompt", "assistant": "target"}
_TRANSCRIPT = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
"""What begins a turn where a conversation is one text, as in hh-rlhf."""
_TEXT = 8
"""Words from which a text is known again wherever it stands; fewer may be a category."""
_UNTOLD = ("system", "id", "source")
"""Columns that do not make a row another one."""
EXPECTED = {
    "sft": "rows with `prompt` and `response`, or `messages` that end with the assistant's",
    "preference": "rows with `prompt`, `chosen` and `rejected`",
    "prompts": "rows with `prompt` alone",
}


@dataclass(frozen=True)
class Inspected:
    """What was read of one step's data."""

    name: str
    rows: int
    kinds: Mapping[str, int]
    digest: str
    """sha256 over every row, in order."""
    marks: "array[int]"
    """64 bits of a hash of each row, each prompt and each target, without repetition, sorted."""

    first: Mapping[str, str] = field(default_factory=dict)
    """Kind -> where the first row of it stands, and what it is."""

    pins: Mapping[str, str] = field(default_factory=dict)
    """`revision` and `subset` of a Hub dataset, where they are given."""
    systems: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """System prompt that rows have of their own -> how many, and where the first of them stands."""

    def shares(self, other: "array[int]") -> int:
        """Return how many of these marks stand in `other`, too."""
        return len(set(self.marks) & set(other))


def inspect_data(
    path: str, pins: Mapping[str, str] | None = None, *, system_column: str = "system"
) -> Inspected:
    """Read every row of a file, folder or Hub dataset once. Raises DataError, naming the row.

    `pins` may have `revision` and `subset` of a Hub dataset.
    """
    digest = hashlib.sha256()
    marks: set[int] = set()
    kinds: Counter[str] = Counter()
    first: dict[str, str] = {}
    systems: dict[str, tuple[int, str]] = {}
    count = 0
    for row in _rows(path, pins):
        count += 1
        if own := _system(row.values, system_column):
            before, where = systems.get(own, (0, row.where))
            systems[own] = (before + 1, where)
        kind = row_kind(row.values)
        kinds[kind] += 1
        first.setdefault(kind, f"{row.where}: {_shape(row.values)}")
        digest.update(_canonical(row.values))
        marks.update(_marks(row.values))
    found = array("Q", sorted(marks))
    told = (path, count, dict(kinds), digest.hexdigest(), found, first, dict(pins or {}))
    return Inspected(*told, systems)


def first_shared(data: Inspected, marks: "array[int]") -> str | None:
    """Return where the first row stands of which a mark is among `marks`."""
    known = set(marks)
    rows = (row for row in _rows(data.name, data.pins) if not known.isdisjoint(_marks(row.values)))
    found = next(rows, None)
    return found.where if found else None


def pins_of(dataset: Mapping[str, Any]) -> dict[str, str]:
    """Return which version of a Hub dataset the arguments of a dataset adapter name."""
    return {key: dataset[key] for key in ("revision", "subset") if dataset.get(key)}


def _rows(path: str, pins: Mapping[str, str] | None) -> Iterator[Row]:
    pins = pins or {}
    found = read_rows(path, revision=pins.get("revision"), subset=pins.get("subset"))
    fault, readable = None, False
    for split in found.splits.values():
        for row in split.with_faults():
            # The dataset adapter counts a row that cannot be read, or stops at it.
            if row.fault is None:
                readable = True
                yield row
            fault = fault or row.fault
    if fault is not None and not readable:
        raise fault


def _shape(values: Mapping[str, Any]) -> str:
    """Say what a row's conversation is, by which its kind was found; "" for a row without one."""
    name = next((name for name in _TALKS if values.get(name) is not None), None)
    if name is None:
        return f"columns {', '.join(values) or 'none'}"
    if not (talk := raw_turns(values[name])):
        return f"`{name}` is no list of turns"
    return f"the last turn of `{name}` is {turn_role(talk[-1])}'s"


def _ends_with_assistant(talk: list[Any]) -> bool:
    return bool(talk) and _SPEAKERS.get(turn_role(talk[-1])) == "target"


def check_kind(found: Inspected, role: Role, name: str, stage: Stage) -> None:
    """Raise DataError if the data is not of the kind that the stage takes."""
    others = {kind: count for kind, count in found.kinds.items() if kind != stage.data}
    if not others:
        return
    said = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(others.items()))
    kind = max(others, key=lambda one: others[one])
    fits = [other for other, one in role.stages.items() if one.data == kind]
    # A few odd rows are faults of the file; a file of another kind is for another stage.
    other = len(others) == 1 and others[kind] == found.rows
    hint = f" Data of kind {kind} is for --stage {' or '.join(fits)}." if fits and other else ""
    if kind in found.first:
        hint = f" The first of kind {kind}: {found.first[kind]}.{hint}"
    raise DataError(
        f"{found.name}: stage {name!r} of role {role.name!r} takes data of kind {stage.data} "
        f"({EXPECTED[stage.data]}), but of {found.rows} rows {said}.{hint}"
    )


def check_system(found: Inspected, role: Role) -> None:
    """Raise DataError for rows with another system prompt than the role is served with."""
    others = {text: one for text, one in found.systems.items() if text != role.system.strip()}
    if not others:
        return
    text, (_, where) = next(iter(others.items()))
    raise DataError(
        f"{found.name}: {sum(count for count, _ in others.values())} of {found.rows} rows have a "
        f"system prompt of their own ({_short(text)} at {where}), and role {role.name!r} is served "
        f"with its own ({_short(role.system)}): they would train it under another prompt. Take it "
        "out of the rows, or write it as the role's `system`."
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _system(values: Mapping[str, Any], column: str) -> str:
    """Return the system prompt of a row: its column, or the first turn of a conversation."""
    found = [values.get(column)]
    for value in values.values():
        turn: Mapping[str, Any] = next(iter(raw_turns(value)), {})
        if turn_role(turn) == "system":
            said = turn.get("content") or turn.get("value")
            parts = said if isinstance(said, list) else [said]
            texts = (one.get("text") if isinstance(one, dict) else one for one in parts)
            found.append("".join(str(text or "") for text in texts))
    return next((one.strip() for one in found if isinstance(one, str) and one.strip()), "")


def _marks(values: Mapping[str, Any]) -> Iterator[int]:
    told = {key: value for key, value in values.items() if key not in _UNTOLD}
    yield _mark("row", told)
    prompt = {key: told[key] for key in _PROMPTS if told.get(key)}
    target = [told[key] for key in told if key in _TARGETS or _is_choice(key)]
    for name in _TALKS:
        if talk := raw_turns(told.get(name)):
            end = len(talk) - _ends_with_assistant(talk)
            prompt, target = {"prompt": talk[:end]}, talk[end:]
    if prompt:
        yield _mark("prompt", sorted(map(_text, prompt.values())))
    for text in filter(None, map(_text, target)):
        yield _mark("target", text)
    # A long text is known again alone: beside another instruction, in a longer conversation.
    for key, value in told.items():
        for what, text in _said(key, value):
            if len(text.split()) >= _TEXT:
                yield _mark(what, text if what == "target" else [text])


def _said(column: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each text in a column, as a prompt or as a target."""
    value = raw_turns(value) or value
    if isinstance(value, list):
        for turn in value:
            if isinstance(turn, dict) and (what := _SPEAKERS.get(turn_role(turn))):
                yield what, _text(turn)
        return
    if not isinstance(value, str):
        return
    if turns := _TRANSCRIPT.split(value)[1:]:
        for speaker, text in zip(turns[::2], turns[1::2], strict=True):
            yield _SPEAKERS[turn_role({"role": speaker})], _text(text)
    if column not in _TARGETS and not _is_choice(column):
        yield "prompt", _text(value)
    # A text in a column of another name is one or the other, by `columns` in the run file.
    if column not in _PROMPTS:
        yield "target", _text(value)


def _is_choice(column: str) -> bool:
    return any(column in pair for pair in _PREFERENCE)


def _text(value: Any) -> str:
    """Return the words of a text or of messages, whatever the blanks and the case.

    Without system turns: another role has another.
    """
    if isinstance(value, list):
        said = (turn for turn in value if not isinstance(turn, dict) or turn_role(turn) != "system")
        return " ".join(_text(turn) for turn in said)
    if isinstance(value, dict):
        return _text(value.get("content") or value.get("value") or value.get("text") or "")
    return " ".join(str(value).casefold().split())


def _mark(what: str, value: Any) -> int:
    digest = hashlib.sha256(what.encode() + b"\0" + _canonical(value)).digest()
    return int.from_bytes(digest[:8], "little")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode(
        "utf-8", "surrogatepass"
    )


def write_marks(marks: "array[int]", path: Path) -> None:
    """Keep a step's marks beside the ledger."""
    atomic_write_bytes(path, marks.tobytes())


def read_marks(path: Path) -> "array[int]":
    """Read what `write_marks` wrote."""
    result = array("Q")
    result.frombytes(path.read_bytes())
    return result

"""What a step is trained on: the kind of its rows, and fingerprints that tell roles' data apart."""

import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.data import Row, raw_turns, read_rows, row_kind, turn_role
from hf_rlhf.errors import DataError
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
_IGNORED = ("system", "id", "source")
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
    fingerprints = array("Q", sorted(marks))
    fields = (path, count, dict(kinds), digest.hexdigest(), fingerprints, first, dict(pins or {}))
    return Inspected(*fields, systems)


def first_shared(data: Inspected, marks: "array[int]") -> str | None:
    """Return where the first row stands of which a mark is among `marks`."""
    known = set(marks)
    rows = (row for row in _rows(data.name, data.pins) if not known.isdisjoint(_marks(row.values)))
    first = next(rows, None)
    return first.where if first else None


def pins_of(dataset: Mapping[str, Any]) -> dict[str, str]:
    """Return which version of a Hub dataset the arguments of a dataset adapter name."""
    return {key: dataset[key] for key in ("revision", "subset") if dataset.get(key)}


def _rows(path: str, pins: Mapping[str, str] | None) -> Iterator[Row]:
    pins = pins or {}
    source = read_rows(path, revision=pins.get("revision"), subset=pins.get("subset"))
    fault, readable = None, False
    for split in source.splits.values():
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


def check_kind(data: Inspected, role: Role, name: str, stage: Stage) -> None:
    """Raise DataError if the data is not of the kind that the stage takes."""
    others = {kind: count for kind, count in data.kinds.items() if kind != stage.data}
    if not others:
        return
    counts = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(others.items()))
    kind = max(others, key=lambda other: others[other])
    fits = [stage for stage, spec in role.stages.items() if spec.data == kind]
    # A few odd rows are faults of the file; a file of another kind is for another stage.
    other = len(others) == 1 and others[kind] == data.rows
    hint = f" Data of kind {kind} is for --stage {' or '.join(fits)}." if fits and other else ""
    if kind in data.first:
        hint = f" The first of kind {kind}: {data.first[kind]}.{hint}"
    raise DataError(
        f"{data.name}: stage {name!r} of role {role.name!r} takes data of kind {stage.data} "
        f"({EXPECTED[stage.data]}), but of {data.rows} rows {counts}.{hint}"
    )


def check_system(data: Inspected, role: Role) -> None:
    """Raise DataError for rows with another system prompt than the role is served with."""
    others = {
        text: counted for text, counted in data.systems.items() if text != role.system.strip()
    }
    if not others:
        return
    text, (_, where) = next(iter(others.items()))
    raise DataError(
        f"{data.name}: {sum(count for count, _ in others.values())} of {data.rows} rows have a "
        f"system prompt of their own ({_short(text)} at {where}), and role {role.name!r} is served "
        f"with its own ({_short(role.system)}): they would train it under another prompt. Take it "
        "out of the rows, or write it as the role's `system`."
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _system(values: Mapping[str, Any], column: str) -> str:
    """Return the system prompt of a row: its column, or the first turn of a conversation."""
    systems = [values.get(column)]
    for value in values.values():
        turn: Mapping[str, Any] = next(iter(raw_turns(value)), {})
        if turn_role(turn) == "system":
            content = turn.get("content") or turn.get("value")
            parts = content if isinstance(content, list) else [content]
            texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
            systems.append("".join(str(text or "") for text in texts))
    return next((text.strip() for text in systems if isinstance(text, str) and text.strip()), "")


def _marks(values: Mapping[str, Any]) -> Iterator[int]:
    fields = {key: value for key, value in values.items() if key not in _IGNORED}
    yield _mark("row", fields)
    prompt = {key: fields[key] for key in _PROMPTS if fields.get(key)}
    target = [fields[key] for key in fields if key in _TARGETS or _is_choice(key)]
    for name in _TALKS:
        if talk := raw_turns(fields.get(name)):
            end = len(talk) - _ends_with_assistant(talk)
            prompt, target = {"prompt": talk[:end]}, talk[end:]
    if prompt:
        yield _mark("prompt", sorted(map(_text, prompt.values())))
    for text in filter(None, map(_text, target)):
        yield _mark("target", text)
    # A long text is known again alone: beside another instruction, in a longer conversation.
    for key, value in fields.items():
        for what, text in _texts(key, value):
            if len(text.split()) >= _TEXT:
                yield _mark(what, text if what == "target" else [text])


def _texts(column: str, value: Any) -> Iterator[tuple[str, str]]:
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
        turns = (
            turn for turn in value if not isinstance(turn, dict) or turn_role(turn) != "system"
        )
        return " ".join(_text(turn) for turn in turns)
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

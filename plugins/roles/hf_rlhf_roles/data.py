"""The data of a step: the kind of its rows, and fingerprints that show rows shared by roles."""

import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.data import Row, conversation_turns, read_rows, row_kind
from hf_rlhf.errors import DataError
from hf_rlhf_roles.role import Role, Stage

_TARGETS = (
    *("response", "completion", "output", "answer"),
    *("chosen", "rejected", "response_chosen", "response_rejected", "response_0", "response_1"),
)
_PROMPTS = ("prompt", "question", "instruction", "input")
_CONVERSATIONS = ("messages", "conversations")
_SIDES = {"user": "prompt", "assistant": "target", "Human": "prompt", "Assistant": "target"}
"""Whose turn -> the side of a row that it belongs to."""
_TRANSCRIPT = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")
"""The beginning of a turn where a conversation is one text, as in hh-rlhf."""
_MIN_WORDS = 8
"""A text of so many words is recognised in any column; a shorter one may be a category."""
_IGNORED = ("system", "id", "source")
"""Columns in which two equal rows may differ."""
EXPECTED = {
    "sft": "rows with `prompt` and `response`, or `messages` that end with the assistant's",
    "preference": "rows with `prompt`, `chosen` and `rejected`",
    "prompts": "rows with `prompt` alone",
}


@dataclass(frozen=True)
class Inspected:
    """The data of a step after a single pass over its rows."""

    name: str
    rows: int
    kinds: Mapping[str, int]
    digest: str
    """sha256 over every row, in order."""
    marks: "array[int]"
    """64 bits of a hash of each row, prompt and target; unique and sorted."""
    first: Mapping[str, str]
    """Kind -> place of its first row."""
    pins: Mapping[str, str]
    """`revision` and `subset` of a Hub dataset, where they are set."""
    systems: Mapping[str, tuple[int, str]]
    """System prompt in the rows -> number of rows, and the place of the first."""

    def shares(self, other: "array[int]") -> int:
        """Return how many of these marks are also in `other`."""
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
    for row in _rows(path, pins):
        if system := _system(row.values, system_column):
            count, where = systems.get(system, (0, row.where))
            systems[system] = (count + 1, where)
        kind = row_kind(row.values)
        kinds[kind] += 1
        first.setdefault(kind, row.where)
        digest.update(_canonical(row.values))
        marks.update(_marks(row.values))
    return Inspected(
        name=path,
        rows=kinds.total(),
        kinds=dict(kinds),
        digest=digest.hexdigest(),
        marks=array("Q", sorted(marks)),
        first=first,
        pins=dict(pins or {}),
        systems=systems,
    )


def first_shared(data: Inspected, marks: "array[int]") -> str | None:
    """Return the location of the first row with any of `marks`."""
    wanted = set(marks)
    rows = _rows(data.name, data.pins)
    return next((row.where for row in rows if not wanted.isdisjoint(_marks(row.values))), None)


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


def check_kind(data: Inspected, role: Role, name: str, stage: Stage) -> None:
    """Raise DataError if the data is not of the kind that the stage takes."""
    others = {kind: count for kind, count in data.kinds.items() if kind != stage.data}
    if not others:
        return
    counts = ", ".join(f"{count} of kind {kind}" for kind, count in sorted(others.items()))
    raise DataError(
        f"{data.name}: stage {name!r} of role {role.name!r} takes data of kind {stage.data} "
        f"({EXPECTED[stage.data]}), but of {data.rows} rows {counts}. The first: "
        f"{data.first[next(iter(others))]}."
    )


def check_system(data: Inspected, role: Role) -> None:
    """Raise DataError for rows with another system prompt than the role is served with."""
    others = {text: rows for text, rows in data.systems.items() if text != role.system}
    if not others:
        return
    text, (_, where) = next(iter(others.items()))
    raise DataError(
        f"{data.name}: {sum(count for count, _ in others.values())} of {data.rows} rows have a "
        f"system prompt of their own ({text[:60]!r} at {where}), but role {role.name!r} is served "
        "with another. Remove it from the rows, or write it as the role's `system`."
    )


def _system(values: Mapping[str, Any], column: str) -> str:
    """Return the system prompt of a row: its column, or the first turn of a conversation."""
    systems = [values.get(column)]
    for value in values.values():
        turn: Mapping[str, Any] = next(iter(conversation_turns(value)), {})
        if turn.get("role") == "system":
            content = turn["content"]
            parts = content if isinstance(content, list) else [content]
            texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
            systems.append("".join(str(text or "") for text in texts))
    return next((text.strip() for text in systems if isinstance(text, str) and text.strip()), "")


def _marks(values: Mapping[str, Any]) -> Iterator[int]:
    fields = {key: value for key, value in values.items() if key not in _IGNORED}
    yield _mark("row", fields)
    prompt = {key: fields[key] for key in _PROMPTS if fields.get(key)}
    targets = [fields[key] for key in fields if key in _TARGETS]
    for name in _CONVERSATIONS:
        if turns := conversation_turns(fields.get(name)):
            end = len(turns) - (turns[-1]["role"] == "assistant")
            prompt, targets = {"prompt": turns[:end]}, turns[end:]
    if prompt:
        yield _mark("prompt", sorted(map(_text, prompt.values())))
    for text in filter(None, map(_text, targets)):
        yield _mark("target", text)
    # A long text is also recognised alone: after another instruction, in a longer conversation.
    for key, value in fields.items():
        for side, text in _texts(key, value):
            if len(text.split()) >= _MIN_WORDS:
                yield _mark(side, text if side == "target" else [text])


def _texts(column: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each text in a column with its side, `prompt` or `target`."""
    value = conversation_turns(value) or value
    if isinstance(value, list):
        for turn in value:
            if isinstance(turn, dict) and (side := _SIDES.get(turn.get("role", ""))):
                yield side, _text(turn)
        return
    if not isinstance(value, str):
        return
    turns = _TRANSCRIPT.split(value)[1:]
    for speaker, text in zip(turns[::2], turns[1::2], strict=True):
        yield _SIDES[speaker], _text(text)
    # In a column of another name a text may be either, by `columns` in the run file.
    if column not in _TARGETS:
        yield "prompt", _text(value)
    if column not in _PROMPTS:
        yield "target", _text(value)


def _text(value: Any) -> str:
    """Return a text or messages without case, extra blanks, and system turns."""
    if isinstance(value, list):
        turns = conversation_turns(value) or value
        return " ".join(
            _text(turn)
            for turn in turns
            if not isinstance(turn, dict) or turn.get("role") != "system"
        )
    if isinstance(value, dict):
        return _text(value.get("content") or value.get("value") or value.get("text") or "")
    return " ".join(str(value).casefold().split())


def _mark(side: str, value: Any) -> int:
    digest = hashlib.sha256(side.encode() + b"\0" + _canonical(value)).digest()
    return int.from_bytes(digest[:8], "little")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode(
        "utf-8", "surrogatepass"
    )

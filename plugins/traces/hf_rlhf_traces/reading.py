"""Convert a row to a trace, or to the reason for rejecting it, without state, for workers.

`hf_rlhf_traces.tally.Tally.add` resolves repeated rows and ids, in the order of the input.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from hf_rlhf.data import BadRow, describe_value, repeated_key
from hf_rlhf_rollouts import (
    COLUMNS,
    Answer,
    Noted,
    Reasoning,
    Rollout,
    Search,
    SearchResult,
    Unknown,
    clean,
    read_rollout,
)
from hf_rlhf_traces.answers import note_verdicts, without_wrong_answer
from hf_rlhf_traces.normalize import normalize_steps
from hf_rlhf_traces.trace import content_of, question_key

MAX_ROW_TEXT = 2_000
"""Maximum characters of a rejected row in the list."""
_KINDS = {
    **{Reasoning: "reasoning", Search: "searches", SearchResult: "results"},
    **{Answer: "answers", Unknown: "unknown"},
}


@dataclass(frozen=True, slots=True)
class Options:
    """Settings for reading rows."""

    form: str | None = None
    """The form of every row; None detects it per row."""
    max_document_chars: int = 100_000
    max_row_mb: float = 64.0
    subset: str | None = None
    revision: str | None = None
    """For Hub datasets: the configuration; a branch, tag or commit."""


class Rejected(Struct, frozen=True, tag=True):
    """A row that is no trace, with the reason."""

    where: str
    reason: str
    """A key of `hf_rlhf_traces.outcomes.REJECTED`."""
    detail: str
    row: str = ""
    """The row as text, cut to `MAX_ROW_TEXT` characters."""
    cut: bool = False


class Read(Struct, gc=False, tag=True):
    """A trace with its counts."""

    id: str
    """The row's own id, or its digest."""
    where: str
    form: str
    key: str
    """The question's key."""
    digest: str
    """Digest of question, steps and fields: 32 hex digits that depend only on the row's content."""
    steps: dict[str, int]
    """Steps by kind: `reasoning`, `searches`, `results`, `answers`, `unknown`."""
    types: list[tuple[str, str]]
    """Kind and type of each answer and each unknown step."""
    noted: dict[str, int]
    trace: Rollout | None = None
    """None in a worker's result."""


RawRow = bytes | Mapping[str, Any] | Rejected
"""A line of JSON Lines (b"" if blank), a parsed row of another file, or why there is none."""


def read_row(raw: RawRow, where: str, options: Options) -> Read | Rejected | None:
    """Return the trace in a row or the reason for rejecting it; None for a blank line."""
    if isinstance(raw, Rejected):
        return raw
    if raw == b"":
        return None
    noted: Noted = Counter()
    try:
        values = _parse(raw, noted) if isinstance(raw, bytes) else clean(dict(raw), noted)
        return _read(values, where, options, noted)
    except BadRow as error:
        return rejected(where, error.reason, str(error), raw)
    except RecursionError:
        return rejected(where, "malformed", "it is nested too deep", raw)


def rejected(
    where: str, reason: str, detail: str, raw: bytes | Mapping[str, Any] = b""
) -> Rejected:
    """Return a rejection with the beginning of the row, and with the place once."""
    if not isinstance(raw, bytes):
        try:
            raw = json.dumps(raw, default=str, ensure_ascii=False).encode("utf-8", "replace")
        except (RecursionError, ValueError):
            raw = b""
    text = raw[: MAX_ROW_TEXT * 4].decode("utf-8", "replace").rstrip("\r\n")
    cut = len(text) > MAX_ROW_TEXT or len(raw) > MAX_ROW_TEXT * 4
    return Rejected(where, reason, detail.removeprefix(f"{where}: "), text[:MAX_ROW_TEXT], cut)


def _parse(raw: bytes, noted: Noted) -> dict[str, Any]:
    """Return the object in a line, without characters that no text should contain."""
    try:
        values: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        # Text that orjson refuses may still be halves of emojis, NaN, or a tab within a text.
        values = _parse_leniently(raw)
    if not isinstance(values, dict):
        raise BadRow("not_object", f"the row is {describe_value(values)}, expected an object")
    _refuse_repeated(values, raw)
    return dict(clean(values, noted))


def _parse_leniently(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), strict=False)
    except UnicodeDecodeError as error:
        problem = f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line"
        raise BadRow("not_utf8", problem) from error
    except json.JSONDecodeError as error:
        cut = "" if raw.endswith(b"\n") else ". The line has no end: was the file cut off?"
        problem = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}{cut}"
        raise BadRow("not_json", problem) from error
    except (ValueError, RecursionError) as error:
        raise BadRow("not_json", str(error)) from error


def _refuse_repeated(values: Mapping[str, Any], raw: bytes) -> None:
    """Refuse a row that repeats a column in use, because orjson takes the last value.

    The whole row is searched only if the name occurs twice in its text, which is rare.
    """
    columns = [key for key in COLUMNS if key in values]
    if any(raw.count(b'"%b"' % key.encode()) > 1 for key in columns):
        try:
            key = repeated_key(raw.decode("utf-8"))
        except (ValueError, RecursionError):  # it was parsed leniently
            return
        if key is not None:
            raise BadRow("malformed", f"the key {key!r} occurs twice in one object")


def _read(values: Mapping[str, Any], where: str, options: Options, noted: Noted) -> Read:
    raw = read_rollout(values, where, noted, options.form)
    steps = normalize_steps(raw.steps, noted, max_document_chars=options.max_document_chars)
    steps = without_wrong_answer(steps, noted)
    note_verdicts(raw.fields, noted)
    trace = Rollout(raw.id, raw.question, steps, _as_json(raw.fields), where)
    try:
        digest = xxh3_128_hexdigest(content_of(trace))
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise BadRow("malformed", f"cannot be written as JSON: {error}") from error
    types = [
        ("answers" if isinstance(step, Answer) else "unknown", step.kind)
        for step in steps
        if isinstance(step, (Answer, Unknown))
    ]
    counts = Counter(map(type, steps))
    kinds = {name: counts[kind] for kind, name in _KINDS.items() if kind in counts}
    trace = replace(trace, id=raw.id or digest)
    key = question_key(trace.question)
    return Read(trace.id, where, raw.form, key, digest, kinds, types, +noted, trace)


def _as_json(fields: Mapping[str, Any]) -> Any:
    try:
        return orjson.loads(orjson.dumps(fields, default=str)) if fields else {}
    except orjson.JSONEncodeError as error:
        raise BadRow("malformed", f"cannot be written as JSON: {error}") from error

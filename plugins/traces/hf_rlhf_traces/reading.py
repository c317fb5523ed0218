"""One row to a trace, or to the reason why it is none. Without state, so that workers can do it.

    read_line(raw, where, options) -> Read | Rejected      a line of JSON Lines, as bytes
    read_values(values, where, options) -> Read | Rejected a row already parsed

A `Read` holds the trace as it is written to traces.jsonl. Repeated rows and ids are resolved by
`hf_rlhf_traces.tally.Tally.add`, in the order of the input.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from hf_rlhf.data import repeated_key
from hf_rlhf.errors import DataError
from hf_rlhf_traces.decontamination import evaluation_set
from hf_rlhf_traces.normalize import normalize_steps
from hf_rlhf_traces.readers import FORMS, form_of, without_question
from hf_rlhf_traces.readers.clean import clean, json_in
from hf_rlhf_traces.readers.messages import MESSAGES
from hf_rlhf_traces.readers.rough import QUESTION_KEYS, BadRow, Noted, kind_of
from hf_rlhf_traces.readers.search import TRACE_KEYS
from hf_rlhf_traces.selection import EXPECTED, Answers, condition, selected
from hf_rlhf_traces.trace import (
    Answer,
    Reasoning,
    Search,
    SearchResult,
    Trace,
    Unknown,
    body_of,
)

SHOWN = 2_000
"""Characters of a rejected row that are kept."""
_KINDS = {
    **{Reasoning: "reasoning", Search: "searches", SearchResult: "results"},
    **{Answer: "answers", Unknown: "unknown"},
}
PACKED = (
    *("trace", "steps", "trajectory", "messages", "conversation", "input", "output", "response"),
    *("responses_create_params", "full_traces", "fields", "conversations"),
)
"""Columns that may hold JSON as text."""
_COLUMNS = {*QUESTION_KEYS, *TRACE_KEYS, *MESSAGES, EXPECTED, "response", "responses_create_params"}
"""Columns that the forms read."""


@dataclass(frozen=True, slots=True)
class Options:
    """How rows are read."""

    form: str | None = None
    """The form of every row; None finds it for each."""
    unknown: Literal["keep", "drop_row", "refuse"] = "keep"
    """What becomes of steps of unknown type; `refuse` is `Tally`'s to do."""
    max_document_chars: int = 100_000
    max_row_mb: float = 64.0
    decontaminate: str | None = None
    """An evaluation file, of which no question may be read."""
    subset: str | None = None
    revision: str | None = None
    """Of datasets on the Hub: the configuration; a branch, tag or commit."""
    where: tuple[str, ...] = ()
    """Comparisons of fields, `reward>=1`, all of which must hold for a row to be read."""
    answers: Answers = "not_wrong"
    """Which answers are learned from."""


class Rejected(Struct, frozen=True, tag=True):
    """A row that is no trace, and why."""

    where: str
    reason: str
    """A key of `hf_rlhf_traces.outcomes.REJECTED`."""
    detail: str
    row: str = ""
    """The row as text, cut to `SHOWN` characters."""
    cut: bool = False


class Read(Struct, gc=False, tag=True):
    """A row that is a trace: the trace, and what is counted of it."""

    id: str
    """The row's own, or its digest."""
    where: str
    form: str
    key: str
    """The question's key."""
    digest: str
    """Of `body`: 32 hex digits, the same for the same row wherever it stands."""
    steps: dict[str, int]
    """Steps by kind: `reasoning`, `searches`, `results`, `answers`, `unknown`."""
    types: list[tuple[str, str]]
    """Kind and type of each answer and each unknown step."""
    noted: dict[str, int]
    body: bytes = b""
    """Question, steps and fields as JSON, without braces."""
    trace: Trace | None = None
    """None in what a worker sends back."""

    @property
    def line(self) -> bytes:
        """The line of traces.jsonl."""
        name, where = orjson.dumps(self.id), orjson.dumps(self.where)
        return b'{"id":%b,%b,"where":%b}\n' % (name, self.body, where)


def read_line(raw: bytes, where: str, options: Options) -> Read | Rejected:
    """Return the trace in a line of JSON Lines."""
    noted: Noted = Counter()
    try:
        values, suspect = _parsed(raw)
        if not isinstance(values, dict):
            raise BadRow("not_object", f"the row is {kind_of(values)}, expected an object")
        _refuse_repeated(values, raw, options)
        if suspect:
            values = clean(values, noted)
        return _read(values, where, options, noted)
    except BadRow as error:
        return rejected(where, error.reason, error.detail, raw)
    except RecursionError:
        return rejected(where, "malformed", "it is nested too deep", raw)


def read_values(values: Mapping[str, Any], where: str, options: Options) -> Read | Rejected:
    """Return the trace in a row that is parsed, of whatever file."""
    noted: Noted = Counter()
    try:
        return _read(clean(dict(values), noted), where, options, noted)
    except BadRow as error:
        text = json.dumps(values, default=str, ensure_ascii=False)[: SHOWN + 1]
        return rejected(where, error.reason, error.detail, text.encode("utf-8", "replace"))
    except RecursionError:
        return rejected(where, "malformed", "it is nested too deep")


def rejected(where: str, reason: str, detail: str, raw: bytes = b"") -> Rejected:
    """Return a rejection that holds the beginning of the row, and the place once."""
    text = raw[: SHOWN * 4].decode("utf-8", "replace").rstrip("\r\n")
    cut = len(text) > SHOWN or len(raw) > SHOWN * 4
    return Rejected(where, reason, detail.removeprefix(f"{where}: "), text[:SHOWN], cut)


def _parsed(raw: bytes) -> tuple[Any, bool]:
    """Return the value, and whether it may hold what no text should."""
    try:
        return orjson.loads(raw), _suspect(raw)
    except orjson.JSONDecodeError:
        pass
    # What orjson refuses may yet be halves of emojis, NaN, or a tab within a text.
    try:
        return json.loads(raw.decode("utf-8"), strict=False), True
    except UnicodeDecodeError as error:
        at = f"byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line"
        raise BadRow("not_utf8", at) from error
    except json.JSONDecodeError as error:
        cut = "" if raw.endswith(b"\n") else ". The line has no end: was the file cut off?"
        problem = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}{cut}"
        raise BadRow("not_json", problem) from error
    except (ValueError, RecursionError) as error:
        raise BadRow("not_json", str(error)) from error


def _refuse_repeated(values: Mapping[str, Any], raw: bytes, options: Options) -> None:
    """Refuse a row in which a column that is read occurs twice: orjson keeps the last one.

    The whole row is only searched where the name occurs twice in its text, which is rare.
    """
    compared = {condition(text).field.partition(".")[0] for text in options.where}
    columns = [key for key in _COLUMNS | compared if key in values]
    if any(raw.count(b'"%b"' % key.encode()) > 1 for key in columns):
        try:
            key = repeated_key(raw.decode("utf-8"))
        except (ValueError, RecursionError):  # it was parsed leniently
            return
        if key is not None:
            raise BadRow("malformed", f"the key {key!r} occurs twice in one object")


def _suspect(raw: bytes) -> bool:
    r"""Whether JSON may hold a control character: as \b, \f or \u00, or the one that needs none.

    Backslashes are few, and to look for one byte is ten times as fast as to look for several.
    """
    at = raw.find(b"\\")
    while at >= 0:
        if raw[at + 1 : at + 2] in (b"b", b"f") or raw[at + 1 : at + 4] == b"u00":
            return True
        at = raw.find(b"\\", at + 2)
    return b"\x7f" in raw


def _read(values: Mapping[str, Any], where: str, options: Options, noted: Noted) -> Read:
    values = _unpacked(values, noted)
    name = options.form or form_of(values)
    try:
        rough = FORMS[name].read(values, where, noted)
    except BadRow:
        raise
    except DataError as error:
        raise BadRow("malformed", str(error)) from error
    if not rough.question.strip():
        raise without_question(values, name)
    steps = normalize_steps(rough, noted, max_document_chars=options.max_document_chars)
    unknown = {step.kind for step in steps if isinstance(step, Unknown)}
    if unknown and options.unknown == "drop_row":
        raise BadRow("unknown_step", ", ".join(sorted(unknown)))
    fields = _as_json(rough.fields)
    for text in options.where:
        condition(text).check(fields)
    steps = selected(steps, fields, noted, answers=options.answers, typed=name == "search")
    trace = Trace("", rough.question, steps, fields, "")
    if options.decontaminate and (why := evaluation_set(options.decontaminate).match(trace)):
        raise BadRow("contaminated", why)
    try:
        body = body_of(trace)
    except (TypeError, UnicodeEncodeError) as error:
        raise BadRow("malformed", f"cannot be written as JSON: {error}") from error
    digest = xxh3_128_hexdigest(body)
    types = [
        ("answers" if isinstance(step, Answer) else "unknown", step.kind)
        for step in steps
        if isinstance(step, (Answer, Unknown))
    ]
    counts = Counter(map(type, steps))
    kinds = {name: counts[kind] for kind, name in _KINDS.items() if kind in counts}
    trace = replace(trace, id=rough.id or digest, where=where)
    return Read(trace.id, where, name, trace.key, digest, kinds, types, +noted, body, trace)


def _as_json(fields: Mapping[str, Any]) -> Any:
    try:
        return orjson.loads(orjson.dumps(fields, default=str)) if fields else {}
    except orjson.JSONEncodeError as error:
        raise BadRow("malformed", f"cannot be written as JSON: {error}") from error


def _unpacked(values: Mapping[str, Any], noted: Noted) -> Mapping[str, Any]:
    """Parse what a table holds as text: lists and objects have no other place in a cell."""
    held = {key: values[key] for key in PACKED if isinstance(values.get(key), str)}
    packed = {key: json_in(text, noted) for key, text in held.items()}
    return {**values, **packed} if packed else values

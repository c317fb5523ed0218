"""YAML files as plain values that know their lines: ruamel.yaml's events, bounded.

Scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) to the
letter: only `true` and `false` are truth values, every spelling of a number is that number, and
everything else (`no`, `12:30`, `1_000`, `2026-01-31`) is text. ruamel.yaml's own resolver reads
the last two as a number and a date.

Nothing is ever constructed: tags that name objects are refused, and size, depth and the expansion
of aliases are bounded.
"""

import io
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import BaseResolver
from ruamel.yaml.tag import Tag

from hf_rlhf.config.values import MAX_DEPTH, KeyPath, dotted, join_surrogates
from hf_rlhf.errors import ConfigError, Problem, suggest

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    ),
    "str": re.compile(r".*", re.DOTALL),
}


@dataclass
class Document:
    """A YAML document: its value, the line (from 1) of each key path, what was wrong in it."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read(path: Path) -> str:
    """Return the text of a file. Raises ConfigError if there is none, or too much."""
    try:
        # A pipe has no size to ask for, so the bound is on what is read.
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError([_missing(path)]) from None
    except IsADirectoryError:
        raise _refused(str(path), "is a folder, not a file.", "Name a YAML file.") from None
    except (OSError, ValueError) as error:
        raise _refused(str(path), f"cannot be read: {error}.") from error
    if len(content) > MAX_BYTES:
        fix = "Name a YAML file; data belongs elsewhere."
        raise _refused(str(path), f"is larger than {MAX_BYTES:,} bytes.", fix)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8 text: byte 0x{content[error.start]:02x}."
        raise _refused(f"{path}:{line}", what, "Save it as UTF-8.") from error


def load(text: str, name: str) -> Document:
    """Parse `text`; `name` stands for it in messages.

    Returns:
        The document; what its values cannot hold (objects, duplicate keys, ...) is left out and
        listed in its `problems`.

    Raises:
        ConfigError: if `text` is not YAML, or exceeds a bound.
    """
    if len(text) > MAX_BYTES:
        raise _refused(name, f"it has {len(text):,} characters.", f"The limit is {MAX_BYTES:,}.")
    try:
        return _Parser(text, name).document()
    except MarkedYAMLError as error:
        raise _syntax_error(name, error) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML."
        raise _refused(f"{name}:{line}", what, "Remove it, or write it as an escape.") from error
    except (ValueError, OverflowError) as error:
        raise _refused(name, f"it is not YAML: {error}.", "Look for a wrong \\U escape.") from error


def scalar(text: str) -> Any:
    """Return the value of the plain scalar `text`. Raises ValueError if it has none."""
    return _value(_tag(text), text)


def dump(value: Any) -> str:
    """Return plain values as YAML that `load` reads back as the same values."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _CoreSchema, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 1_000_000  # ruamel.yaml leaves a space at the end of a line that it wraps
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


class _Parser:
    """Builds plain values from the events of one document, and counts as it goes."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.events = YAML(typ="safe", pure=True).parse(text)
        self.anchors: dict[str, Any] = {}
        self.result = Document(None)
        self.count = 0

    def document(self) -> Document:
        next(self.events)  # the start of the stream
        if not isinstance(next(self.events), events.StreamEndEvent):
            self.result.value = self._node(next(self.events), ())
            next(self.events)  # the end of the document
            if not isinstance(event := next(self.events), events.StreamEndEvent):
                what = "it holds more than one document."
                raise _refused(self._line(event), what, "Keep one document to a file.")
        return self.result

    def _node(self, event: Any, path: KeyPath) -> Any:
        self._count(event, path)
        self.result.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, events.AliasEvent):
            return self._alias(event, path)
        # Until a value is complete its anchor stands for nothing: no value contains itself.
        self.anchors.pop(event.anchor, None)
        value: Any = None
        if isinstance(event, events.MappingStartEvent):
            value = self._mapping(path)
        elif isinstance(event, events.SequenceStartEvent):
            value = self._sequence(path)
        try:
            value = _checked(event, value)
        except ValueError as error:
            self._report(event, path, str(error), "Write plain text, numbers, lists or mappings.")
            value = None
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def _sequence(self, path: KeyPath) -> list[Any]:
        result: list[Any] = []
        while not isinstance(event := next(self.events), events.SequenceEndEvent):
            result.append(self._node(event, (*path, len(result))))
        return result

    def _mapping(self, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := next(self.events), events.MappingEndEvent):
            key = self._key(event, path)
            here = (*path, "?" if key is None else key)
            repeated = key in result
            if repeated:
                what = f"`{key}` is written twice, first on line {self.result.lines[here]}."
                self._report(event, here, what, "Keep one of them.")
            elif key is not None:
                self.result.lines[here] = event.start_mark.line + 1
            value = self._node(next(self.events), here)
            if key is not None and not repeated:
                result[key] = value
        return result

    def _key(self, event: Any, path: KeyPath) -> str | None:
        """Return a key; None, reported, if it cannot be one."""
        if isinstance(event, events.AliasEvent) and isinstance(
            text := self._alias(event, path), str
        ):
            return text
        key = self._own_key(event, path)
        if event.anchor is not None and not isinstance(event, events.AliasEvent):
            self.anchors[event.anchor] = key
        return key

    def _own_key(self, event: Any, path: KeyPath) -> str | None:
        if isinstance(event, events.AliasEvent):
            self._report(event, path, f"the key `*{event.anchor}` is not text.", "Write text.")
        elif not isinstance(event, events.ScalarEvent):
            self._node(event, (*path, "?"))
            self._report(event, path, "the key `a list` is not text.", "Quote it.")
        elif _tag_of(event) != "str":
            self._report(event, path, f"the key `{event.value}` is not text.", "Quote it.")
        elif event.value == "<<" and event.implicit[0]:
            fix = "Write the keys out."
            self._report(event, path, "merge keys (`<<`) are not read.", fix)
        else:
            try:
                text: str = event.value
                return text if text.isascii() else join_surrogates(text)
            except ValueError as error:
                fix = "Write it as one character."
                self._report(event, path, f"in a key: {error}", fix)
        return None

    def _alias(self, event: Any, path: KeyPath) -> Any:
        if event.anchor not in self.anchors:
            fix = f"Write `&{event.anchor}` at an earlier value that does not contain the alias."
            raise _refused(self._line(event), f"undefined alias {event.anchor!r}.", fix)
        return self._copy(self.anchors[event.anchor], event, path)

    def _copy(self, value: Any, event: Any, path: KeyPath) -> Any:
        """Copy the value of an anchor: a small file can stand for a huge one by its aliases."""
        self._count(event, path)
        if isinstance(value, dict):
            return {key: self._copy(item, event, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy(item, event, (*path, i)) for i, item in enumerate(value)]
        return value

    def _count(self, event: Any, path: KeyPath) -> None:
        self.count += 1
        is_alias = isinstance(event, events.AliasEvent)
        fix = "Use fewer aliases (`*name`)." if is_alias else "Use fewer brackets or values."
        if len(path) >= MAX_DEPTH:
            raise _refused(self._line(event), f"values are nested more than {MAX_DEPTH} deep.", fix)
        if self.count > MAX_VALUES:
            raise _refused(self._line(event), f"it holds more than {MAX_VALUES:,} values.", fix)

    def _line(self, event: Any) -> str:
        return f"{self.name}:{event.start_mark.line + 1}"

    def _report(self, event: Any, path: KeyPath, what: str, fix: str) -> None:
        where = f"{self._line(event)} {dotted(path)}".rstrip()
        self.result.problems.append(Problem(where, what, fix))


class _CoreSchema(BaseResolver):
    """What `dump` must quote, so that it is read back as text."""

    def __init__(self, version: Any = None, loader: Any = None) -> None:
        super().__init__(loader)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode:
            quoted = not implicit[0]
            tag = "merge" if value == "<<" else _tag(value)
            return Tag(suffix=_PREFIX + ("str" if quoted else tag))
        return super().resolve(kind, value, implicit)


class _Representer(SafeRepresenter):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: Any) -> Any:
        style = None
        if not all(character.isprintable() for character in data):
            # ruamel.yaml writes some of these as they are, which no reader takes.
            style = "|" if data.replace("\n", "").isprintable() else '"'
        return self.represent_scalar(f"{_PREFIX}str", data, style=style)

    def represent_float(self, data: Any) -> Any:
        # Readers of YAML 1.1, such as PyYAML, take `1e-05` for text.
        text = repr(data)
        text = text if "." in text else text.replace("e", ".0e")
        return self.represent_scalar(f"{_PREFIX}float", text)


_Representer.add_representer(str, _Representer.represent_str)
_Representer.add_representer(float, _Representer.represent_float)


def _tag(text: str) -> str:
    return next(tag for tag, pattern in _SCALARS.items() if pattern.fullmatch(text))


def _tag_of(event: Any) -> str:
    if event.tag in (None, "!"):
        plain = event.tag is None and event.implicit[0]
        return _tag(event.value) if plain else "str"
    return str(event.tag).removeprefix(_PREFIX)


def _checked(event: Any, container: Any) -> Any:
    """Return the value of a node. Raises ValueError for a tag that its value does not have."""
    if container is None:
        return _value(_tag_of(event), event.value)
    kind = "map" if isinstance(container, dict) else "seq"
    if event.tag not in (None, "!", _PREFIX + kind):
        raise ValueError(f"the tag `{_short(event.tag)}` is not read.")
    return container


def _value(tag: str, text: str) -> Any:
    """Return what a scalar stands for. Raises ValueError."""
    if tag not in _SCALARS:
        raise ValueError(f"the tag `{_short(tag)}` is not read.")
    if not _SCALARS[tag].fullmatch(text):
        raise ValueError(f"`{text}` is not what its tag `!!{tag}` says.")
    if tag == "str":
        return text if text.isascii() else join_surrogates(text)
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        if len(text) > 100:
            raise ValueError(f"a number of {len(text)} digits is too long.")
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    # Python reads no inf and nan with a leading dot; JSON and the record have neither.
    number = float(text) if text.lstrip("+-.")[:1].isdecimal() else math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{text}` is not a finite number.")
    return number


def _short(tag: str) -> str:
    """Return a tag as it is written in a file."""
    if tag.startswith(_PREFIX):
        return tag.replace(_PREFIX, "!!")
    return tag if tag.startswith(("!", "tag:")) else f"!!{tag}"


_CURES = {
    "\\t": "Indent with spaces, not tabs.",
    "mapping values are not allowed": "Quote text that holds `: `, and check the indentation.",
    "found character": "Quote text that begins with a character that YAML reserves.",
}


def _syntax_error(name: str, error: MarkedYAMLError) -> ConfigError:
    start, mark = error.context_mark, error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    begin = f" begun on line {start.line + 1}" if start and start.line < mark.line else ""
    context = f"{error.context}{begin}: " if error.context and error.problem else ""
    reason = f"{context}{error.problem or error.context}"
    reason = re.sub(r"\('(<[^']+>)',\)", r"'\1'", reason)  # ruamel.yaml prints a tuple
    cures = (cure for part, cure in _CURES.items() if part in reason)
    fix = next(cures, "Check brackets, quotes and indentation up to here.")
    return _refused(where, f"it is not YAML: {reason}.", fix)


def _refused(where: str, what: str, fix: str = "") -> ConfigError:
    return ConfigError([Problem(where, what, fix)])


def _missing(path: Path) -> Problem:
    folder = path.parent
    if not folder.is_dir():
        return Problem(str(path), "does not exist, nor does its folder.")
    names = sorted(item.name for item in folder.glob("*.y*ml"))
    if close := suggest(path.name, names):
        return Problem(str(path), "does not exist.", f"Did you mean `{folder / close}`?")
    displayed = ", ".join(names[:10]) or "none"
    return Problem(str(path), "does not exist.", f"Run files in {folder}: {displayed}.")

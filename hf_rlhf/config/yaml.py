"""The plain subset of YAML that run files are written in: the core schema of YAML 1.2.

PyYAML on its own follows YAML 1.1, where `no` is false, `1e-5` is text, `010` is 8 and `12:30` is
750. Here only `true` and `false` are truth values, every spelling of a number is that number, and
everything else is text (https://yaml.org/spec/1.2.2/#103-core-schema).

A document is turned into plain values with the line of each, and nothing is ever constructed:
tags that name objects are refused, and size, depth and the expansion of aliases are bounded.
"""

import difflib
import enum
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from hf_rlhf.errors import ConfigError, Problem

KeyPath = tuple[str | int, ...]

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 20_000

_NULL, _BOOL, _INT, _FLOAT, _STR, _MAP, _SEQ = (
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq")
)
_SCALARS = (
    (_NULL, r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    (_BOOL, r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    (_INT, r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z", list("-+0123456789")),
    (
        _FLOAT,
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z",
        list("-+.0123456789"),
    ),
)


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML as far as nodes: it has no constructor, so it cannot make an object."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self.depth = 0
        self.count = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.count += 1
        # Keys are nodes too. The exact count, aliases expanded, is taken later.
        if self.depth > MAX_DEPTH or self.count > 2 * MAX_VALUES + 1:
            problem = _too_deep() if self.depth > MAX_DEPTH else _too_many()
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # PyYAML writes these as line breaks unless they are escaped.
        style = '"' if any(break_ in data for break_ in "\x85\u2028\u2029") else None
        return self.represent_scalar(_STR, data, style=style)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _first)
_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


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
        fix = "Name a YAML file."
        raise ConfigError([Problem(str(path), "is a folder, not a run file.", fix)]) from None
    except (OSError, ValueError) as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {error}.")]) from error
    if len(content) > MAX_BYTES:
        fix = "Name a YAML file; data belongs elsewhere."
        raise ConfigError([Problem(str(path), f"is larger than {MAX_BYTES:,} bytes.", fix)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8 text: byte 0x{content[error.start]:02x}."
        fix = "Save it as UTF-8."
        raise ConfigError([Problem(f"{path}:{line}", what, fix)]) from error


def load(text: str, name: str) -> Document:
    """Read `text`; `name` stands for it in messages. Raises ConfigError if it is not YAML."""
    if len(text) > MAX_BYTES:
        raise _refused(name, f"it has {len(text):,} characters.", f"The limit is {MAX_BYTES:,}.")
    try:
        node = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _refused(
            _at(name, error), f"it is not YAML: {_reason(error)}.", _cure(error)
        ) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML."
        raise _refused(f"{name}:{line}", what, "Remove it, or write it as an escape.") from error
    except (ValueError, OverflowError) as error:
        raise _refused(name, f"it is not YAML: {error}.", "Look for a wrong \\U escape.") from error
    reading = _Reading(name)
    value = None if node is None else reading.value_of(node, ())
    return Document(value, reading.lines, reading.problems)


def scalar(text: str) -> Any:
    """Return what the plain scalar `text` stands for. Raises ValueError if nothing sensible."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _plain(tag, text)


def dump(value: Any) -> str:
    """Return plain values as YAML that `load` reads back as the same values."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def from_python(value: Any, name: str) -> Document:
    """Take a value from Python; what YAML cannot hold becomes a problem."""
    document = Document(None)
    document.value = _from_python(value, (), name, document.problems)
    return document


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each single value within `value`, with the keys and indices that lead to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def dotted(path: Sequence[str | int]) -> str:
    """Return a key path as it is written on a command line."""
    return ".".join(map(str, path))


@dataclass
class _Reading:
    name: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    def value_of(self, node: yaml.Node, path: KeyPath) -> Any:
        self.count += 1
        # Aliases are expanded, so a small file can stand for a huge or an endless one.
        if self.count > MAX_VALUES or len(path) > MAX_DEPTH:
            what = _too_many() if len(path) <= MAX_DEPTH else _too_deep()
            raise _refused(self._place(node), f"{what}.", "Use fewer aliases (`*name`).")
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self.value_of(item, (*path, place)) for place, item in enumerate(node.value)]
        try:
            if not isinstance(node, yaml.ScalarNode):
                raise ValueError(f"the tag `{_short(node.tag)}` is not read.")
            return _plain(node.tag, node.value)
        except ValueError as error:
            self._report(node, path, str(error), "Write plain text, numbers, lists or mappings.")
            return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STR:
                shown = getattr(key_node, "value", "") if key_node.id == "scalar" else "a list"
                self._report(key_node, path, f"the key `{shown}` is not text.", "Quote it.")
                continue
            try:
                key = _whole(key_node.value)
            except ValueError as error:
                self._report(key_node, path, f"in a key: {error}", "Write it as one character.")
                continue
            here = (*path, key)
            if key == "<<":
                fix = "Write the keys out."
                self._report(key_node, path, "merge keys (`<<`) are not read.", fix)
            elif key in result:
                first = self.lines[here]
                what = f"`{key}` is written twice, first on line {first}."
                self._report(key_node, here, what, "Keep one of them.")
            else:
                self.lines[here] = _line(key_node)
                result[key] = self.value_of(value_node, here)
        return result

    def _place(self, node: yaml.Node) -> str:
        return f"{self.name}:{_line(node)}"

    def _report(self, node: yaml.Node, path: KeyPath, what: str, fix: str) -> None:
        where = f"{self._place(node)} {dotted(path)}".rstrip()
        self.problems.append(Problem(where, what, fix))


def _plain(tag: str, text: str) -> Any:
    if tag == _STR:
        return _whole(text)
    known = next((pattern for name, pattern, _ in _SCALARS if name == tag), None)
    if known is None:
        raise ValueError(f"the tag `{_short(tag)}` is not read.")
    if not re.match(known, text):
        raise ValueError(f"`{text}` is not what its tag `{_short(tag)}` says.")
    if tag == _NULL:
        return None
    if tag == _BOOL:
        return text.lower() == "true"
    if tag == _INT:
        if len(text) > 100:
            raise ValueError(f"a number of {len(text)} digits is too long.")
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    # Python reads no inf and nan with a leading dot; JSON and the record have neither.
    number = float(text) if text.lstrip("+-.")[:1].isdecimal() else math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{text}` is not a finite number.")
    return number


def _whole(text: str) -> str:
    """Join the halves in which JSON escapes write a character beyond U+FFFF."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("it holds half of a character (a lone surrogate).") from None


def _refused(where: str, what: str, fix: str) -> ConfigError:
    return ConfigError([Problem(where, what, fix)])


def _at(name: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name


def _reason(error: yaml.MarkedYAMLError) -> str:
    begun, mark = error.context_mark, error.problem_mark
    since = f" begun on line {begun.line + 1}" if begun and mark and begun.line < mark.line else ""
    context = f"{error.context}{since}: " if error.context and error.problem else ""
    return f"{context}{error.problem or error.context}"


def _cure(error: yaml.MarkedYAMLError) -> str:
    reason = _reason(error)
    if "\\t" in reason:
        return "Indent with spaces, not tabs."
    if "mapping values are not allowed" in reason:
        return "Quote text that holds `: `, and check the indentation."
    if "found character" in reason:
        return "Quote text that begins with a character that YAML reserves."
    if "single document" in reason:
        return "Keep one document to a file."
    return "Check brackets, quotes and indentation up to here."


def _too_deep() -> str:
    return f"values are nested more than {MAX_DEPTH} deep"


def _too_many() -> str:
    return f"it holds more than {MAX_VALUES:,} values"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _from_python(value: Any, path: KeyPath, name: str, problems: list[Problem]) -> Any:
    """Return `value` in the types that YAML has; what it cannot hold goes to `problems`."""
    if len(path) > MAX_DEPTH:
        problems.append(Problem(name, f"values are nested more than {MAX_DEPTH} deep."))
        return None
    if isinstance(value, Mapping):
        for key in [key for key in value if not isinstance(key, str)]:
            what = f"the key {key!r} is not text."
            problems.append(Problem(f"{name} {dotted(path)}".rstrip(), what))
        pairs = ((key, item) for key, item in value.items() if isinstance(key, str))
        return {key: _from_python(item, (*path, key), name, problems) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_from_python(item, (*path, at), name, problems) for at, item in enumerate(value)]
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Path):
        return str(value)
    finite = not isinstance(value, float) or math.isfinite(value)
    if value is None or (isinstance(value, str | bool | int | float) and finite):
        return value
    what = f"{value!r} cannot be written in a run file."
    fix = "Give text, finite numbers, true, false, null, lists or mappings."
    problems.append(Problem(f"{name} {dotted(path)}".rstrip(), what, fix))
    return None


def _missing(path: Path) -> Problem:
    folder = path.parent
    if not folder.is_dir():
        return Problem(str(path), "does not exist, nor does its folder.")
    names = sorted(item.name for item in folder.glob("*.y*ml"))
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return Problem(str(path), "does not exist.", f"Did you mean `{folder / close[0]}`?")
    shown = ", ".join(names[:10]) or "none"
    return Problem(str(path), "does not exist.", f"Run files in {folder}: {shown}.")

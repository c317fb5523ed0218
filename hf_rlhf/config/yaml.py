"""YAML files as plain values that know their lines, from ruamel.yaml's nodes.

Scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) to the
letter: only `true` and `false` are truth values, every spelling of a number is that number, and
everything else (`no`, `12:30`, `1_000`, `2026-01-31`) is text. ruamel.yaml's own resolver reads
the last two as a number and a date.

No object is ever constructed: tags that name objects are refused.
"""

import contextlib
import enum
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import BaseResolver
from ruamel.yaml.tag import Tag

from hf_rlhf.errors import ConfigError, Problem, suggest

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

MAX_BYTES = 1_000_000
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
    """A YAML document: its value, the line (from 1) of each key path, and its problems."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def dotted(path: Sequence[str | int]) -> str:
    """Return a key path as it is written on a command line."""
    return ".".join(map(str, path))


def leaves(value: Any) -> list[tuple[KeyPath, Any]]:
    """Return each single value within `value`, with the keys and indices that lead to it."""
    if isinstance(value, Mapping):
        inner: Any = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        return [((), value)]
    return [((key, *path), leaf) for key, each in inner for path, leaf in leaves(each)]


def read_text(path: Path) -> str:
    """Return the text of a file. Raises ConfigError if there is none, or too much."""
    try:
        # A pipe has no size, so the bound is on what is read.
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError([_missing(path)]) from None
    except IsADirectoryError:
        raise _refusal(str(path), "is a folder, not a file.", "Name a YAML file.") from None
    except (OSError, ValueError) as error:
        raise _refusal(str(path), f"cannot be read: {error}.") from error
    if len(content) > MAX_BYTES:
        fix = "Name a YAML file; data belongs elsewhere."
        raise _refusal(str(path), f"is larger than {MAX_BYTES:,} bytes.", fix)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"is not UTF-8 text: byte 0x{content[error.start]:02x}."
        raise _refusal(f"{path}:{line}", what, "Save it as UTF-8.") from error


def load_yaml(text: str, name: str) -> Document:
    """Parse `text`; `name` stands for it in messages.

    Returns:
        The document; what its values cannot hold (objects, duplicate keys, ...) is left out and
        listed in its `problems`.

    Raises:
        ConfigError: if `text` is not YAML, or too long.
    """
    if len(text) > MAX_BYTES:
        raise _refusal(name, f"it has {len(text):,} characters.", f"The limit is {MAX_BYTES:,}.")
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver = _CoreSchema
    reader = _Reader(name)
    try:
        return reader.document(yaml.compose(text))
    except MarkedYAMLError as error:
        raise _syntax_error(name, error) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML."
        raise _refusal(f"{name}:{line}", what, "Remove it, or write it as an escape.") from error
    except RecursionError:
        raise _refusal(name, "its values hold each other, or are nested too deep.") from None
    except (ValueError, OverflowError) as error:
        raise _refusal(name, f"it is not YAML: {error}.", "Look for a wrong \\U escape.") from error


def scalar(text: str) -> Any:
    """Return the value of the plain scalar `text`. Raises ValueError if it has none."""
    return _value(_tag(text), text)


def dump_yaml(value: Any) -> str:
    """Return plain values as YAML that `load_yaml` reads back as the same values."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Representer = _CoreSchema, _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 1_000_000  # ruamel.yaml leaves a space at the end of a line that it wraps
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


def from_python(value: Any, name: str) -> tuple[Any, list[Problem]]:
    """Convert a value from Python; what YAML cannot hold becomes a problem, with its path."""
    problems: list[Problem] = []
    return _from_python(value, (), name, problems), problems


class _Reader:
    """Builds plain values from the nodes of one document."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.result = Document(None)

    def document(self, node: Node | None) -> Document:
        if node is not None:
            self.result.value = self._node(node, ())
        return self.result

    def _node(self, node: Any, path: KeyPath) -> Any:
        self.result.lines.setdefault(path, node.start_mark.line + 1)
        tag = _tag_of(node)
        try:
            if isinstance(node, ScalarNode):
                return _value(tag, node.value)
            if tag != ("seq" if isinstance(node, SequenceNode) else "map"):
                raise ValueError(_foreign(tag))
        except ValueError as error:
            fix = "Write plain text, numbers, lists or mappings."
            self._report(node, path, str(error), fix)
            return None
        if isinstance(node, SequenceNode):
            return [self._node(each, (*path, index)) for index, each in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                self._node(value_node, (*path, "?"))
                continue
            here = (*path, key)
            if key in result:
                what = f"`{key}` is written twice, first on line {self.result.lines[here]}."
                self._report(key_node, here, what, "Keep one of them.")
                self._node(value_node, here)
                continue
            self.result.lines[here] = key_node.start_mark.line + 1
            result[key] = self._node(value_node, here)
        return result

    def _key(self, node: Any, path: KeyPath) -> str | None:
        """Return a key; None, reported, if it cannot be one."""
        tag = _tag_of(node)
        if tag == "merge":
            self._report(node, path, "merge keys (`<<`) are not read.", "Write the keys out.")
        elif not isinstance(node, ScalarNode) or tag != "str":
            is_scalar = isinstance(node, ScalarNode)
            what = f"the key `{node.value}`" if is_scalar else f"a key that is a {node.id}"
            self._report(node, path, f"{what} is not text.", "Quote it.")
        else:
            try:
                return join_surrogates(node.value)
            except ValueError as error:
                self._report(node, path, f"in a key: {error}", "Write it as one character.")
        return None

    def _report(self, node: Node, path: KeyPath, what: str, fix: str) -> None:
        where = f"{self.name}:{node.start_mark.line + 1} {dotted(path)}".rstrip()
        self.result.problems.append(Problem(where, what, fix))


class _CoreSchema(BaseResolver):
    """The tag of each plain scalar; also what `dump_yaml` must quote so that it is read as text."""

    def __init__(self, version: Any = None, loader: Any = None) -> None:
        super().__init__(loader)

    @property
    def processing_version(self) -> tuple[int, int]:
        return (1, 2)

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is ScalarNode:
            plain = "merge" if value == "<<" else _tag(value)
            return Tag(suffix=_PREFIX + (plain if implicit[0] else "str"))
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


def _tag_of(node: Node) -> str:
    return str(node.tag).removeprefix(_PREFIX)


def _foreign(tag: str) -> str:
    written = tag if tag.startswith(("!", "tag:")) else f"!!{tag}"
    return f"the tag `{written}` is not read."


def _value(tag: str, text: str) -> Any:
    """Return what a scalar stands for. Raises ValueError."""
    if tag not in _SCALARS:
        raise ValueError(_foreign(tag))
    if not _SCALARS[tag].fullmatch(text):
        raise ValueError(f"`{text}` does not match its tag `!!{tag}`.")
    if tag == "str":
        return join_surrogates(text)
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    # Python reads no inf and nan with a leading dot; JSON and the record have neither.
    number = float(text) if text.lstrip("+-.")[:1].isdecimal() else math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{text}` is not a finite number.")
    return number


def join_surrogates(text: str) -> str:
    """Join the halves in which JSON escapes write a character beyond U+FFFF."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("it contains a lone surrogate, half of a character.") from None


def _from_python(value: Any, path: KeyPath, name: str, problems: list[Problem]) -> Any:
    where = f"{name} {dotted(path)}".rstrip()
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        problems += [Problem(where, f"the key {key!r} is not text.") for key in wrong]
        items = {key: each for key, each in value.items() if isinstance(key, str)}
        return {k: _from_python(each, (*path, k), name, problems) for k, each in items.items()}
    if isinstance(value, list | tuple):
        return [_from_python(each, (*path, i), name, problems) for i, each in enumerate(value)]
    value = value.value if isinstance(value, enum.Enum) else value
    value = str(value) if isinstance(value, Path) else value
    finite = isinstance(value, float) and math.isfinite(value)
    if value is None or isinstance(value, bool | int) or finite:
        return value
    with contextlib.suppress(ValueError):
        if isinstance(value, str):
            return join_surrogates(value)
    fix = "Give text, finite numbers, true, false, null, lists or mappings."
    problems.append(Problem(where, f"{value!r} cannot be written in a run file.", fix))
    return None


_CURES = {
    "\\t": "Indent with spaces, not tabs.",
    "mapping values are not allowed": "Quote text that holds `: `, and check the indentation.",
    "found character": "Quote text that begins with a character that YAML reserves.",
    "another document": "Keep one document to a file.",
}


def _syntax_error(name: str, error: MarkedYAMLError) -> ConfigError:
    start, mark = error.context_mark, error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    begin = f" begun on line {start.line + 1}" if start and start.line < mark.line else ""
    context = f"{error.context}{begin}: " if error.context and error.problem else ""
    reason = f"{context}{error.problem or error.context}"
    cures = (cure for part, cure in _CURES.items() if part in reason)
    fix = next(cures, "Check brackets, quotes and indentation up to here.")
    return _refusal(where, f"it is not YAML: {reason}.", fix)


def _refusal(where: str, what: str, fix: str = "") -> ConfigError:
    return ConfigError([Problem(where, what, fix)])


def _missing(path: Path) -> Problem:
    folder = path.parent
    if not folder.is_dir():
        return Problem(str(path), "does not exist, nor does its folder.")
    names = sorted(item.name for item in folder.glob("*.y*ml"))
    if close := suggest(path.name, names):
        return Problem(str(path), "does not exist.", f"Did you mean `{folder / close}`?")
    listed = ", ".join(names[:10]) or "none"
    return Problem(str(path), "does not exist.", f"Run files in {folder}: {listed}.")

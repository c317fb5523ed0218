"""Load YAML files as plain values with their lines, from PyYAML's nodes.

Scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema): only
`true` and `false` are booleans, every spelling of a number is that number, and everything else
(`no`, `12:30`, `1_000`, `2026-01-31`) is text. No object is ever constructed.
"""

import contextlib
import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml import Node, ScalarNode, SequenceNode

from hf_rlhf.errors import ConfigError, Problem, suggest

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = {
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    "float": re.compile(
        r"(?:[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
    ),
}


@dataclass
class Document:
    """A YAML document: its value, the line (from 1) of each key path, and its problems."""

    name: str
    value: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, node: Any, path: KeyPath) -> Any:
        """Return a node's plain value and record its line; an unsupported node is a problem."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        tag = str(node.tag).removeprefix(_PREFIX)
        if isinstance(node, ScalarNode) and tag in {*_SCALARS, "str"}:
            with contextlib.suppress(ValueError):
                return _value(tag, node.value)
            what = "a finite number" if tag == "float" else "a value"
            self._report(node, path, f"{node.value!r} is not {what} of the tag `!!{tag}`.")
        elif tag == "seq" and isinstance(node, SequenceNode):
            return [self.add(each, (*path, index)) for index, each in enumerate(node.value)]
        elif tag == "map" and isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        else:
            what = tag if tag.startswith(("!", "tag:")) else f"!!{tag}"
            self._report(node, path, f"the tag `{what}` is not read.")
        return None

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            is_scalar = isinstance(key_node, ScalarNode)
            key = _text(key_node.value) if is_scalar else ""
            if key_node.tag != f"{_PREFIX}str" or not is_scalar:
                what = f"`{key}`" if is_scalar else f"of a {key_node.id}"
                self._report(key_node, path, f"the key {what} is not text.", "Quote it.")
            elif key == "<<" and key_node.style is None:
                what = "merge keys (`<<`) are not read."
                self._report(key_node, path, what, "Write the keys out.")
            elif key in result:
                what = f"`{key}` is written twice, first on line {self.lines[(*path, key)]}."
                self._report(key_node, (*path, key), what, "Keep one of them.")
            else:
                self.lines[(*path, key)] = key_node.start_mark.line + 1
                result[key] = self.add(value_node, (*path, key))
        return result

    def _report(self, node: Node, path: KeyPath, what: str, fix: str = "") -> None:
        where = f"{self.name}:{node.start_mark.line + 1} {dotted(path)}".rstrip()
        fix = fix or "Write plain text, numbers, lists or mappings."
        self.problems.append(Problem(where, what, fix))


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {  # noqa: RUF012 - declared so by PyYAML
        None: [(f"{_PREFIX}{tag}", pattern) for tag, pattern in _SCALARS.items()]
    }


class _Dumper(yaml.SafeDumper):
    """Quotes text that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> ScalarNode:
        style = None
        if not data.isprintable():
            style = "|" if data.replace("\n", "").isprintable() else '"'
        return self.represent_scalar(f"{_PREFIX}str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
for _tag, _pattern in _SCALARS.items():
    _Dumper.add_implicit_resolver(f"{_PREFIX}{_tag}", _pattern, None)


def dotted(path: Sequence[str | int]) -> str:
    """Return a key path in command-line syntax."""
    return ".".join(map(str, path))


def leaves(value: Any) -> list[tuple[KeyPath, Any]]:
    """Return each scalar within `value`, with its path of keys and indices."""
    if isinstance(value, Mapping):
        inner: Any = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        return [((), value)]
    return [((key, *path), leaf) for key, each in inner for path, leaf in leaves(each)]


def read_text(path: Path) -> str:
    """Return the text of a file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([_missing(path)]) from None
    except (OSError, ValueError) as error:
        raise refusal(
            str(path), f"cannot be read: {error}.", "Name a YAML file in UTF-8."
        ) from error


def load_yaml(text: str, name: str) -> Document:
    """Parse `text`, which messages call `name`.

    Unsupported content (objects, duplicate keys, ...) is dropped and listed in `problems`. Raises
    ConfigError if `text` is not YAML.
    """
    document = Document(name)
    try:
        if (node := yaml.compose(text, Loader=_Loader)) is not None:
            document.value = document.add(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        reason = ": ".join(filter(None, (error.context, error.problem)))
        fix = "Check quotes, brackets and indentation (spaces, not tabs) up to here."
        raise refusal(where, f"it is not YAML: {reason}.", fix) from error
    except RecursionError:
        raise refusal(name, "its values hold each other, or are nested too deep.") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise refusal(name, f"it is not YAML: {error}.") from error
    return document


def scalar(text: str) -> Any:
    """Return the value of the plain scalar `text`. Raises ValueError for an unsupported scalar."""
    return _value(next((t for t, pattern in _SCALARS.items() if pattern.match(text)), "str"), text)


def dump_yaml(value: Any) -> str:
    """Return plain values as YAML that `load_yaml` reads back unchanged."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": math.inf}
    return str(yaml.dump(value, Dumper=_Dumper, **options))


def from_python(value: Any, name: str) -> tuple[Any, list[Problem]]:
    """Convert a value from Python; content that YAML cannot hold becomes problems with paths."""
    problems: list[Problem] = []
    return _from_python(value, (), name, problems), problems


def _value(tag: str, text: str) -> Any:
    """Return the value of a scalar node. Raises ValueError."""
    if tag == "str":
        return _text(text)
    if not _SCALARS[tag].match(text):
        raise ValueError(f"`{text}` does not match its tag.")
    if tag in ("null", "bool"):
        return None if tag == "null" else text.lower() == "true"
    if tag == "int":
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    # Python does not parse `.inf` and `.nan`; JSON and the record have neither.
    number = float(text) if text.lstrip("+-.")[:1].isdecimal() else math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{text}` is not a finite number.")
    return number


def _text(text: str) -> str:
    """Join surrogate pairs from JSON escapes of characters beyond U+FFFF."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


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
    if isinstance(value, str | Path):
        with contextlib.suppress(ValueError):
            return _text(str(value))
    if value is None or isinstance(value, int) or (type(value) is float and math.isfinite(value)):
        return value
    fix = "Give text, finite numbers, true, false, null, lists or mappings."
    problems.append(Problem(where, f"{value!r} cannot be written in a run file.", fix))
    return None


def refusal(where: str, what: str, fix: str = "") -> ConfigError:
    """Return the error of a single problem."""
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

"""Options of the command line, applied to the values of a run file.

Keys are dotted and exact: `--rewards.0.weight 0.3`, or by label, `--rewards.refiner.weight 0.3`.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.config.values import MAX_DEPTH, KeyPath, dotted
from hf_rlhf.errors import ConfigError, Problem, suggest
from hf_rlhf.storage.secrets import REDACTED, redact_secrets

_INDEX = re.compile(r"[0-9]{1,6}")


@dataclass
class Overridden:
    """Values with options applied, and which line or option each came from."""

    values: dict[str, Any]
    lines: dict[KeyPath, int]
    origins: dict[KeyPath, str]
    problems: list[Problem] = field(default_factory=list)


def apply(
    argv: Sequence[str],
    values: Mapping[str, Any],
    lines: Mapping[KeyPath, int],
    origins: Mapping[KeyPath, str],
) -> Overridden:
    """Return copies of the arguments with the options in `argv` applied, the last one winning."""
    result = Overridden(dict(values), dict(lines), dict(origins))
    for option, text in _options(argv, result.problems):
        try:
            value = True if text is None else value_of(text)
            changed = copy.deepcopy(result.values)  # which a path that leads nowhere leaves alone
            containers, path = _assign(changed, option.removeprefix("--").split("."), value)
        except ValueError as error:
            result.problems.append(Problem(f"{option} (command line)", str(error)))
            continue
        result.values = changed
        _forget(result.lines, path)
        _forget(result.origins, path)
        result.origins |= dict.fromkeys((*containers, path), option)
    return result


def value_of(text: str) -> Any:
    """Return what an option's text stands for. Raises ValueError.

    Text that begins with a bracket, a brace or a quote is YAML; any other is one plain scalar, so
    that `a: b # c` needs no quotes. Empty text is empty text, not null.
    """
    if not text:
        return ""
    if text[0] not in "[{\"'":
        return plain_yaml.scalar(text)
    try:
        document = plain_yaml.load(text, "value")
    except ConfigError as error:
        problem = error.problems[0]
        fix = "Text that begins with a bracket or quote needs quotes of its own: '\"[draft] x\"'."
        raise ValueError(f"{problem.what} {fix}") from error
    if document.problems:
        raise ValueError(str(document.problems[0]))
    return document.value


def without_secrets(argv: Sequence[str]) -> list[str]:
    """Return a command line without the secrets that `redact_secrets` finds in its YAML."""
    clean: list[str] = []
    for word in argv:
        option, equals, text = word.partition("=") if word.startswith("--") else ("", "", word)
        if text[:1] in ("[", "{"):
            try:
                value = value_of(text)
                text = text if redact_secrets(value) == value else json.dumps(redact_secrets(value))
            except ValueError:
                text = REDACTED  # what cannot be read cannot be cleaned
        clean.append(f"{option}{equals}{text}")
    return clean


def _options(argv: Sequence[str], problems: list[Problem]) -> Iterator[tuple[str, str | None]]:
    index = 0
    while index < len(argv):
        token = argv[index]
        index += 1
        option, equals, text = token.partition("=")
        if not option.startswith("--") or option == "--":
            fix = "Options are written `--key value`."
            problems.append(Problem(f"{token} (command line)", "is not an option.", fix))
        elif equals:
            yield option, text
        elif index < len(argv) and not argv[index].startswith("--"):
            yield option, argv[index]
            index += 1
        else:
            yield option, None


def _assign(
    root: dict[str, Any], segments: Sequence[str], value: Any
) -> tuple[list[KeyPath], KeyPath]:
    """Set one key in place. Return the paths of new containers, and the key's path."""
    if not all(segments):
        raise ValueError("has an empty part between its dots.")
    if len(segments) > MAX_DEPTH:
        raise ValueError(f"has more than {MAX_DEPTH} parts.")
    containers: list[KeyPath] = []
    node: Any = root
    path: KeyPath = ()
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if not isinstance(node, dict | list):
            raise ValueError(f"`{dotted(path)}` is a single value: it has no `{segment}`.")
        key: Any = segment if isinstance(node, dict) else _index(node, segment, path)
        path = (*path, key)
        exists = key in node if isinstance(node, dict) else key < len(node)
        inner = node[key] if exists else None
        if following is None:
            inner = value
        elif inner is None:
            inner = [] if _INDEX.fullmatch(following) else {}
            containers.append(path)
        if exists or isinstance(node, dict):
            node[key] = inner
        else:
            node.append(inner)
        node = inner
    return containers, path


def _index(items: list[Any], segment: str, path: KeyPath) -> int:
    """Return the place in a list that an index, or the label of an item, names."""
    if _INDEX.fullmatch(segment):
        if int(segment) <= len(items):
            return int(segment)
        raise ValueError(f"`{dotted(path)}` has {len(items)} items; {len(items)} would add one.")
    labels = [
        str(item.get("label") or item.get("name")) if isinstance(item, dict) else ""
        for item in items
    ]
    if segment in labels:
        return labels.index(segment)
    guess = suggest(segment, labels)
    fix = f"Did you mean `{guess}`?" if guess else f"Labels: {', '.join(labels) or 'none'}."
    raise ValueError(f"`{dotted(path)}` has no item labelled `{segment}`. {fix}")


def _forget(known: dict[KeyPath, Any], path: KeyPath) -> None:
    for key in [key for key in known if key[: len(path)] == path]:
        del known[key]


def merged(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's values with top-level settings from Python put in.

    A section is merged key by key, unless it names another component, whose arguments differ; a
    list is replaced.
    """
    result = {**values, **settings}
    for key, value in settings.items():
        old = values.get(key)
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            continue
        if value.get("name", old.get("name")) == old.get("name"):
            result[key] = {**old, **value}
    return result

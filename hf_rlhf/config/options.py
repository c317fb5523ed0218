"""Options `--key value` and settings from Python that replace values of a run file."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf.config import yaml
from hf_rlhf.config.components import label_of
from hf_rlhf.config.yaml import KeyPath, dotted
from hf_rlhf.errors import ConfigError, suggest
from hf_rlhf.storage.secrets import REDACTED, redact_secrets

_INDEX = re.compile(r"[0-9]{1,6}")


def value_of(text: str) -> Any:
    """Parse the text of an option's value. Raises ValueError.

    Text that begins with a bracket, a brace or a quote is YAML; any other text is a plain scalar,
    so that `a: b # c` needs no quotes. Empty text stays empty text, not null.
    """
    if not text:
        return ""
    if text[0] not in "[{\"'":
        return yaml.scalar(text)
    try:
        document = yaml.load_yaml(text, "value")
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
                text = REDACTED  # text that cannot be parsed cannot be redacted
        clean.append(f"{option}{equals}{text}")
    return clean


def merged(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge top-level settings from Python into a run file's values.

    A section is merged key by key, or replaced if it names another component. A list is replaced.
    """
    result = {**values, **settings}
    for key, value in settings.items():
        old = values.get(key)
        if not isinstance(old, Mapping) or not isinstance(value, Mapping):
            continue
        if value.get("name", old.get("name")) == old.get("name"):
            result[key] = {**old, **value}
    return result


def read_options(argv: Sequence[str]) -> Iterator[tuple[str, str, str | None]]:
    """Yield each option as the word, its key and its text (None without a value)."""
    words = list(argv)
    while words:
        word = words.pop(0)
        option, equals, text = word.partition("=")
        follows = option.startswith("--") and words and not words[0].startswith("--")
        if equals or not follows or option == "--":
            yield word, option, text if equals else None
        else:
            yield word, option, words.pop(0)


def assign(
    root: dict[str, Any], segments: Sequence[str], value: Any
) -> tuple[list[KeyPath], KeyPath]:
    """Set a key in place. Return the paths of new containers, and the key's path."""
    if not all(segments):
        raise ValueError("has an empty part between its dots.")
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
    """Return the position in a list that an index, or the label of an item, names."""
    if _INDEX.fullmatch(segment):
        if int(segment) <= len(items):
            return int(segment)
        raise ValueError(f"`{dotted(path)}` has {len(items)} items; {len(items)} would add one.")
    labels = [
        str(each.get("label") or each.get("name")) if isinstance(each, dict) else str(each)
        for each in items
    ]
    for names in (labels, [label_of(label) for label in labels]):
        if segment in names:
            return names.index(segment)
    guess = suggest(segment, labels)
    fix = f"Did you mean `{guess}`?" if guess else f"Labels: {', '.join(labels) or 'none'}."
    raise ValueError(f"`{dotted(path)}` has no item labelled `{segment}`. {fix}")

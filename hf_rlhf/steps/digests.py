"""Digests of values and files, and differences between a step's old and new inputs."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.storage.pure_json import as_json

_DIGEST = re.compile(r"([0-9a-f]{16}){1,4}")
_LONGEST_VALUE = 200
_MISSING = object()


def plain(value: Any) -> Any:
    """Return `value` after a round trip through JSON."""
    return json.loads(json.dumps(as_json(value)))


def digest(value: Any) -> str:
    """Return 16 hex digits of the sha256 of a value as sorted JSON."""
    text = json.dumps(as_json(value), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def file_digests(
    folder: Path,
    patterns: Sequence[str] = ("**/*",),
    digest: Callable[[Path], str] | None = None,
) -> dict[str, str]:
    """Return relative path -> sha256 for files in `folder` that match a pattern.

    Hidden files are skipped: unfinished writes have hidden names. A missing folder has no files.
    """
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {
        name: (digest or file_digest)(names[name])
        for name in sorted(names)
        if not any(folder.startswith(".") for folder in name.split("/"))
    }


def file_digest(path: Path) -> str:
    """Return the sha256 of a file, in 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that differs: `train.seed: 1 -> 2`, `data changed`.

    Mappings and lists of equal length are compared recursively. For digests only the name is
    printed.
    """
    return list(_differences(plain(before), plain(now), ""))


def _differences(before: Any, now: Any, name: str) -> Iterator[str]:
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = dict(enumerate(before)), dict(enumerate(now))
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in {**before, **now}:
            inner = f"{name}.{key}".lstrip(".")
            yield from _differences(before.get(key, _MISSING), now.get(key, _MISSING), inner)
    elif before is _MISSING:
        yield f"{name} was added{_in_brackets(now)}"
    elif now is _MISSING:
        yield f"{name} was removed{_in_brackets(before)}"
    elif before != now or isinstance(before, bool) != isinstance(now, bool):  # 1 == True
        both_digests = _is_digest(before) and _is_digest(now)
        yield f"{name} changed" if both_digests else f"{name}: {_short(before)} -> {_short(now)}"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _in_brackets(value: Any) -> str:
    return "" if _is_digest(value) else f" ({_short(value)})"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]} ..."

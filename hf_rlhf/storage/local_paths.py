"""Replace local paths, which a run folder keeps, by file names in published texts."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_NAMES = r"(?:/[^\s/\"'`,;:()\[\]{}<>|\\]+)"
_PATH = rf"(?:file://)?(?:~(?:[a-z_][\w.-]*)?{_NAMES}+|\.\.{_NAMES}+|{_NAMES}{{2,}})/?"
_HOME = rf"(?:/home|/Users|/root|~){_NAMES}+"
"""The only paths replaced in code, where `/usr/bin/env` and `"/a/b"` have other meanings."""
_NO_WORD_BEFORE = r"(?<![\w.~:/<>@-])"
_WHOLE = re.compile(r"(?:file://)?(?:~|/|\.\./)[^\n]*")
_STRUCTURED = ("config", "command", "defaults", "files")
"""Sections of a record in which a text that begins like a path is a path, including spaces."""
_TEXTS = ("samples", "generation", "author")
"""Sections with row texts and the author's texts, in which only paths of `files` are replaced."""


def local_files(value: Any) -> dict[str, str]:
    """Return path -> SHA-256 for each file path in nested `value`."""
    paths = {text for text in _texts(value) if _WHOLE.fullmatch(text) or Path(text).suffix}
    # Unlike Path's methods, these accept any text.
    found = {text: os.path.expanduser(text) for text in sorted(paths)}
    return {text: _digest(path) for text, path in found.items() if os.path.isfile(path)}


class LocalPaths:
    """The paths in a record, and their public form: a file's name and SHA-256.

    Args:
        record: as JSON, with digests in `files`.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._digests = dict(record.get("files") or {})
        data, model = record.get("data") or {}, record.get("model") or {}
        structured = [record.get(key) for key in _STRUCTURED]
        structured += [data.get("arguments"), model.get("base")]
        texts = {*_texts(structured)}
        texts |= {text.partition("=")[2] for text in texts if text.startswith("--")}
        known = {text.rstrip("/") for text in texts if _WHOLE.fullmatch(text)} - {"", "~", "file:"}
        known |= self._digests.keys()
        longest_first = sorted(known, key=len, reverse=True)
        literals = "|".join(rf"{re.escape(text)}(?!\w)/?" for text in longest_first) or r"(?!)"
        self._known = re.compile(f"{_NO_WORD_BEFORE}(?:{literals})")
        self._in_code = re.compile(f"{_NO_WORD_BEFORE}(?:{literals}|{_HOME})")
        self._any = re.compile(f"{_NO_WORD_BEFORE}(?:{literals}|{_PATH})")

    def hide(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return a JSON record with each of these paths replaced by its file name.

        A value that is only a path is followed by its SHA-256.
        """
        return {
            key: self._hide(value, self._known if key in _TEXTS else self._any, key != "command")
            for key, value in record.items()
        }

    def hide_in_text(self, text: str, *, known_only: bool = False) -> str:
        """Return a text without any paths, or without the record's paths."""

        def name(match: re.Match[str]) -> str:
            return _file_name(match) + self._digest_of(match[0])

        return (self._known if known_only else self._any).sub(name, text)

    def _digest_of(self, path: str) -> str:
        digest = self._digests.get(path)
        return f" (SHA-256 {digest})" if digest else ""

    def _hide(self, value: Any, pattern: re.Pattern[str], digests: bool) -> Any:
        if isinstance(value, Mapping):
            is_code = isinstance(value.get("source"), str) and "sha256" in value
            return {
                pattern.sub(_file_name, key): self._hide(
                    each, self._in_code if is_code and key == "source" else pattern, digests
                )
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self._hide(each, pattern, digests) for each in value]
        if not isinstance(value, str):
            return value
        return pattern.sub(_file_name, value) + (self._digest_of(value) if digests else "")


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_name(match: re.Match[str]) -> str:
    return match[0].rstrip("/").rpartition("/")[2]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (text for pair in value.items() for each in pair for text in _texts(each))
    elif isinstance(value, list | tuple):
        yield from (text for each in value for text in _texts(each))
    elif isinstance(value, str):
        yield value

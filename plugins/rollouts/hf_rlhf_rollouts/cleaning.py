"""Clean text for any file and tokenizer: no control characters, no lone surrogates."""

import json
import re
from collections import Counter
from math import isfinite
from typing import Any

Noted = Counter[str]
"""Changes and omissions while reading a row -> count; the keys are in
docs/reference/traces-formats.md."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HALF = re.compile("[\ud800-\udfff]")
_LARGEST = 1 << 63


def clean(value: Any, noted: Noted) -> Any:
    """Return a JSON value without control characters, lone surrogates, and NaN.

    Tabs and line breaks stay, and so do direction marks, which are text. Changes are counted.
    """
    if isinstance(value, str):
        return _clean_text(value, noted)
    if isinstance(value, dict):
        return {_clean_text(str(key), noted): clean(inner, noted) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(inner, noted) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        noted["not_a_number"] += 1
        return None
    if isinstance(value, int) and abs(value) >= _LARGEST:
        noted["numbers_as_text"] += 1
        return str(value)
    # Of a table: a date, a decimal, bytes.
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _clean_text(text: str, noted: Noted) -> str:
    if _CONTROL.search(text):
        text, count = _CONTROL.subn("", text)
        noted["control_characters"] += count
    if _HALF.search(text):
        text, count = _HALF.subn("\ufffd", text)
        noted["half_characters"] += count
    return text


def json_in(text: str, noted: Noted) -> Any:
    """Return the object or list in a JSON text, or the text if it is not JSON.

    Its own escapes are cleaned too, even if the text was already clean.
    """
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return text
    return clean(value, noted) if "\\" in text or "N" in text or "I" in text else value

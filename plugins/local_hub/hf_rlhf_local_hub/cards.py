"""Metadata of a repository's README: its tags and errors."""

from collections.abc import Mapping
from typing import Any

from huggingface_hub.repocard import REGEX_YAML_BLOCK

from hf_rlhf.cards import hub_licenses, is_language, listed
from hf_rlhf.config import load_yaml
from hf_rlhf.errors import ConfigError
from hf_rlhf.models import is_hub_id
from hf_rlhf_local_hub.refusals import Refused


def read_metadata(text: str) -> dict[str, Any] | None:
    """Return the YAML head of a README, or None without a head; raise ValueError if invalid."""
    if (match := REGEX_YAML_BLOCK.match(text)) is None:
        return None
    try:
        document = load_yaml(match.group(2), "README.md")
    except ConfigError as error:
        raise ValueError(f"YAML metadata error: {error.problems[0]}") from error
    if document.problems:
        raise ValueError(f"YAML metadata error: {document.problems[0]}")
    if not isinstance(data := document.value, dict | None):
        raise ValueError(f"YAML metadata must be keys and values, not {type(data).__name__}.")
    return data or {}


def validate(text: str) -> list[str]:
    """Return the Hub's errors for a README."""
    try:
        return _errors(read_metadata(text) or {})
    except ValueError as error:
        return [str(error)]


def refuse_bad_metadata(content: bytes) -> None:
    """Raise Refused (400) for a README that the Hub would refuse in a commit."""
    if errors := validate(content.decode("utf-8", "replace")):
        raise Refused(400, "Invalid metadata in README.md.\n" + "\n".join(f"- {e}" for e in errors))


def _errors(data: Mapping[str, Any]) -> list[str]:
    errors = []
    for name in listed(data.get("license")):
        if name not in [*hub_licenses()]:
            errors.append(f'"license" must be one of the identifiers the Hub knows, not {name!r}')
    for key, page in (("base_model", "models"), ("datasets", "datasets")):
        errors += [
            f'"{key}" with value {entry!r} is not valid. Use an id from https://hf.co/{page}.'
            for entry in listed(data.get(key))
            if not is_hub_id(entry)
        ]
    for code in listed(data.get("language")):
        if not is_language(code):
            errors.append(f'"language" must be an ISO 639 code, not {code!r}')
    if not all(isinstance(tag, str) for tag in listed(data.get("tags"))):
        errors.append('"tags" must be texts')
    return errors

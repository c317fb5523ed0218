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


def validate(text: str) -> tuple[list[str], list[str]]:
    """Return the Hub's errors and warnings for a README."""
    try:
        data = read_metadata(text)
    except ValueError as error:
        return [str(error)], []
    if not data:
        return [], ["empty or missing yaml metadata in repo card"]
    return _errors(data), []


def refuse_bad_metadata(content: bytes) -> None:
    """Raise Refused (400) for a README that the Hub would refuse in a commit."""
    if errors := validate(content.decode("utf-8", "replace"))[0]:
        raise Refused(400, "Invalid metadata in README.md.\n" + "\n".join(f"- {e}" for e in errors))


def derived_tags(kind: str, data: Mapping[str, Any]) -> list[str]:
    """Return the tags that the Hub derives from metadata, for its filters."""
    prefixes = {"license": "license", "base_model": "base_model", "datasets": "dataset"}
    if kind == "datasets":
        prefixes |= {"task_categories": "task_categories", "language": "language"}
    tags = [data.get("library_name"), data.get("pipeline_tag"), *listed(data.get("tags"))]
    if kind != "datasets":
        tags += listed(data.get("language"))
    for key, prefix in prefixes.items():
        tags += [f"{prefix}:{value}" for value in listed(data.get(key))]
    return list(dict.fromkeys(tag for tag in tags if isinstance(tag, str)))


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

"""The YAML head of a model card, and the Hub's rules for it, checked without the Hub."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hf_rlhf.config.yaml import load_yaml
from hf_rlhf.errors import ConfigError
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.secrets import redact_secrets

TAG = "hf-rlhf"
"""The tag of every card that this package writes."""
BASE, COLLECTION = "base-model", "collection"
OF_NO_RUN = frozenset({BASE, COLLECTION})
"""Tags of the cards that describe no run, so that no record lies beside them."""
HUB = "https://huggingface.co"
_LANGUAGE = re.compile(r"(?!q[a-t])[a-z]{3}|code|multilingual")  # qaa to qtz are no languages
_LICENSE_NAME = re.compile(r"[a-z0-9.-]+")
_LICENSE_LINK = re.compile(r"LICENSE|LICENSE\.md|https?://\S+")
_LOCAL_PATH = re.compile(r"(/|~|\.{1,2}(/|$)|[A-Za-z]:[\\/]|file:|package:)")
_TASK_OF_CLASS = {
    "ForCausalLM": "text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
}


def card_folder() -> Path:
    """Return the folder of templates: inside the wheel, or `model_cards/` of a checkout."""
    shipped = Path(__file__).parents[1] / "_model_cards"
    return shipped if shipped.exists() else Path(__file__).parents[2] / "model_cards"


@cache
def hub_rules(key: str) -> frozenset[str]:
    """Return what the Hub accepts: `licenses`, `pipeline_tags` or `languages`."""
    rules = yaml.safe_load((card_folder() / "hub_rules.yaml").read_text(encoding="utf-8"))
    return frozenset(rules[key])


def metadata(record: RunRecord, *, adapter: bool, hub: str = HUB) -> dict[str, Any]:
    """Return the card's metadata: only keys with a value, only values that the record supports.

    Args:
        record: the run's record.
        adapter: whether the repository holds an adapter rather than full weights.
        hub: the address of the Hub.
    """
    hub = hub.rstrip("/")
    model, author = record.model, record.author
    base = hub_base(record)
    by_class = (
        task for end, task in _TASK_OF_CLASS.items() if (model.class_name or "").endswith(end)
    )
    task = model.task or next(by_class, None)
    data = {
        **license_of(record, hub=hub),
        "language": author.language,
        "base_model": base,
        "base_model_relation": ("adapter" if adapter else "finetune") if base else None,
        "pipeline_tag": task,
        "library_name": "peft" if adapter else "transformers",
        "datasets": hub_datasets(record),
        "tags": _tags(record),
    }
    return {key: value for key, value in data.items() if value}


def hub_base(record: RunRecord) -> str | None:
    """Return the base's Hub id, or None when the base is not on the Hub."""
    model = record.model
    return model.base if model.base_is_hub_id and is_hub_id(model.base) else None


def hub_datasets(record: RunRecord) -> list[str]:
    """Return the Hub ids of the data: an adapter that read from the Hub reports the `commit`."""
    report = record.data.report
    return [report["source"]] if report.get("commit") and is_hub_id(report.get("source")) else []


def license_of(record: RunRecord, *, hub: str = HUB) -> dict[str, str]:
    """Return `license`, and for `other` its name and link: the author's, else the base's.

    Empty when neither is known: the Hub then shows none, which is the truth.
    """
    author, model = record.author, record.model
    source = author if author.license else model
    license_id = source.license
    if not license_id:
        return {}
    is_other = license_id.lower() == "other"
    if license_id.lower() in hub_rules("licenses") and not is_other:
        return {"license": license_id.lower()}
    name = source.license_name or ("same-as-base-model" if is_other else license_id)
    link = source.license_link
    base = hub_base(record)
    if link is None and source is model and base:
        link = f"{hub}/{base}"
    slug = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-")
    custom = {"license": "other", "license_name": slug, "license_link": link}
    return {key: value for key, value in custom.items() if value}


def _tags(record: RunRecord) -> list[str]:
    tags = [
        TAG,
        record.plugin.name,
        *record.method.tags,
        "lora" if record.model.adapter else None,
        *record.author.tags,
    ]
    return list(dict.fromkeys(tag for tag in tags if tag))


def is_hub_id(text: Any) -> bool:
    """Return whether `text` has the form of a repository id (`name` or `namespace/name`)."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return isinstance(text, str)


def validate_card(text: str) -> list[str]:
    """Return the problems of a card, by the Hub's rules and our stricter ones, as `key: problem`.

    The same checks as the Hub's `/api/validate-yaml`, without the network, and stricter: no null,
    no path of this machine, no secret anywhere in the text.
    """
    if (head := _front_matter(text)) is None:
        return ["metadata: the card does not begin with a YAML block between lines of ---."]
    try:
        data = yaml.safe_load(head)
    except yaml.YAMLError as error:
        return [f"metadata: not YAML: {error}"]
    if not isinstance(data, dict):
        return [f"metadata: expected keys and values, not {type(data).__name__}."]
    problems = [*_bad_values(data), *_bad_license(data)]
    for key in ("base_model", "datasets"):
        problems += [
            f"{key}: {value!r} is not the id of a Hub repository."
            for value in _listed(data.get(key))
            if not is_hub_id(value)
        ]
    problems += [
        f"language: {value!r} is not an ISO 639 code such as en, nor code or multilingual."
        for value in _listed(data.get("language"))
        if not is_language(value)
    ]
    task = data.get("pipeline_tag")
    if task is not None and not (isinstance(task, str) and task in hub_rules("pipeline_tags")):
        problems.append(f"pipeline_tag: {task!r} is not a task of the Hub.")
    if not all(isinstance(tag, str) for tag in _listed(data.get("tags"))):
        problems.append("tags: expected texts; quote those that YAML reads as something else.")
    if redact_secrets(text) != text:
        problems.append("text: it holds a secret.")
    return problems


def is_language(value: Any) -> bool:
    """Say whether the Hub knows a language; of three letters only the form is known here."""
    return isinstance(value, str) and bool(
        value in hub_rules("languages") or _LANGUAGE.fullmatch(value)
    )


def _front_matter(text: str) -> str | None:
    from huggingface_hub.repocard import REGEX_YAML_BLOCK  # the Hub's own

    match = REGEX_YAML_BLOCK.match(text)
    return match.group(2) if match else None


def card_tags(text: str) -> frozenset[str]:
    """Return the tags in the front matter of a card; none if it cannot be parsed."""
    head = _front_matter(text)
    try:
        data = load_yaml(head, "README.md").value if head else None
    except ConfigError:
        data = None
    tags = data.get("tags") if isinstance(data, dict) else None
    return frozenset(tag for tag in _listed(tags) if isinstance(tag, str))


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _bad_values(data: Mapping[str, Any]) -> list[str]:
    problems = []
    for key, value in data.items():
        for entry in _listed(value) or [None]:
            if entry in (None, "", "None"):
                problems.append(f"{key}: it has no value; leave the key out.")
            elif isinstance(entry, str) and _LOCAL_PATH.match(entry):
                problems.append(f"{key}: {entry!r} is a path of this machine.")
    return problems


def _bad_license(data: Mapping[str, Any]) -> list[str]:
    license_id, name, link = (data.get(f"license{end}") for end in ("", "_name", "_link"))
    if license_id is None:
        return []
    if not (isinstance(license_id, str) and license_id in hub_rules("licenses")):
        return [
            f"license: {license_id!r} is not one of the Hub's identifiers. Use `license: other` "
            "with a `license_name`."
        ]
    problems = []
    if license_id == "other" and not (isinstance(name, str) and _LICENSE_NAME.fullmatch(name)):
        problems.append("license_name: `license: other` needs one, of a-z, 0-9, dots and hyphens.")
    if link is not None and not _LICENSE_LINK.fullmatch(str(link)):
        problems.append("license_link: expected LICENSE, LICENSE.md or an http(s) address.")
    return problems

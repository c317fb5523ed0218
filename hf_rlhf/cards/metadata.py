"""The YAML metadata of a model card, with the author's facts checked before training.

The Hub checks the whole head before each commit.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hf_rlhf.models.locate import is_hub_id
from hf_rlhf.storage.record import RunRecord

TAG = "hf-rlhf"
"""The tag of every card from this package."""
COLLECTION = "collection"
"""The tag of cards without a run, and so without a record beside them."""
HUB = "https://huggingface.co"
_LICENSE_NAME = re.compile(r"[a-z0-9.-]+")
_LICENSE_LINK = re.compile(r"LICENSE|LICENSE\.md|https?://\S+")


def card_folder() -> Path:
    """Return the folder of templates: inside the wheel, or `model_cards/` of a checkout."""
    shipped = Path(__file__).parents[1] / "_model_cards"
    return shipped if shipped.exists() else Path(__file__).parents[2] / "model_cards"


@cache
def hub_licenses() -> frozenset[str]:
    """Return the Hub's licence identifiers, half of which are not in SPDX."""
    return frozenset((card_folder() / "hub_licenses.txt").read_text(encoding="utf-8").split())


def metadata(record: RunRecord, *, adapter: bool, hub: str = HUB) -> dict[str, Any]:
    """Return the card's metadata: only values that the record supports.

    Args:
        record: the run's record.
        adapter: whether the repository holds an adapter rather than full weights.
        hub: the address of the Hub.
    """
    hub = hub.rstrip("/")
    model, author = record.model, record.author
    base = hub_base(record)
    data = {
        **license_of(record, hub=hub),
        "language": author.language,
        "base_model": base,
        "base_model_relation": ("adapter" if adapter else "finetune") if base else None,
        "pipeline_tag": model.task,
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
    """Return the Hub ids of the data: an adapter reports the `commit` of Hub data."""
    report = record.data.report
    return [report["source"]] if report.get("commit") and is_hub_id(report.get("source")) else []


def license_of(record: RunRecord, *, hub: str = HUB) -> dict[str, str]:
    """Return `license`, and for `other` its name and link: the author's, else the base's.

    Empty if neither is known; the Hub then correctly displays no licence.
    """
    author, model = record.author, record.model
    source = author if author.license else model
    license_id = source.license
    if not license_id:
        return {}
    is_other = license_id.lower() == "other"
    if license_id.lower() in hub_licenses() and not is_other:
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


def metadata_problems(head: Mapping[str, Any]) -> list[str]:
    """Return the problems of a card's licence and languages, as `key: problem`."""
    problems = [
        f"language: {value!r} is not an ISO 639 code such as en, nor code or multilingual."
        for value in listed(head.get("language"))
        if not is_language(value)
    ]
    license_id, name, link = (head.get(f"license{end}") for end in ("", "_name", "_link"))
    if license_id is not None and license_id not in hub_licenses():
        problems.append(
            f"license: {license_id!r} is not one of the Hub's identifiers. Use `license: other` "
            "with a `license_name`."
        )
    if license_id == "other" and not (isinstance(name, str) and _LICENSE_NAME.fullmatch(name)):
        problems.append("license_name: `license: other` needs one, of a-z, 0-9, dots and hyphens.")
    if link is not None and not _LICENSE_LINK.fullmatch(str(link)):
        problems.append("license_link: expected LICENSE, LICENSE.md or an http(s) address.")
    return problems


def is_language(value: Any) -> bool:
    """Return whether the Hub knows a language."""
    import pycountry

    if not isinstance(value, str) or value != value.lower():
        return False
    known = {f"alpha_{len(value)}": value}
    return value in ("code", "multilingual") or bool(pycountry.languages.get(**known))


def listed(value: Any) -> list[Any]:
    """Return a metadata value as a list: it may be a single value, a list, or missing."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]

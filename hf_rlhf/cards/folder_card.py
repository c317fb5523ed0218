"""The card in a run's own folder, which tells how to load what lies there."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from hf_rlhf.cards.metadata import is_hub_id
from hf_rlhf.cards.render import render_card
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf.storage.record import RunRecord, load_record, write_record


def weights_in(folder: Path) -> list[str]:
    """Return which of `adapter` and `merged` a run folder holds weights in."""
    return [name for name in ("adapter", "merged") if any((folder / name).glob("*.safetensors"))]


def write_card(record: RunRecord, folder: Path) -> None:
    """Write the card of a run into its folder; of one that is published, the card on the Hub."""
    how: dict[str, Any] = {"endpoint": constants.ENDPOINT}
    published = record.published()
    if published.get("commit"):
        known = {item.name for item in fields(PublishSpec)}
        spec = PublishSpec(**{key: value for key, value in published.items() if key in known})
        if "adapter" in {*weights_in(folder), *(record.model.saved or ())}:
            how |= {"adapter_repo": adapter_repo(spec)}
            how |= {} if spec.merged else {"kind": "adapter"}
        record = on_hub(record, spec)
    atomic_write_text(folder / "README.md", render_card(record, **how))


FOR_THE_CARD = ("base_was", "steps")
"""What the card of a published run shows of where it was published, beside the repository."""


def adapter_repo(spec: PublishSpec) -> str | None:
    """Return the repository that has the adapter in its root, if one has."""
    assert spec.repo_id is not None
    if not spec.merged:
        return spec.repo_id
    return f"{spec.repo_id}-adapter" if spec.layout == "separate" else None


def on_hub(record: RunRecord, spec: PublishSpec) -> RunRecord:
    """Return the record as it is published and its card shows it: the base by its Hub name."""
    public = record.model_copy(deep=True)
    model, base = public.model, spec.base_model
    if base is not None and model.base != base:
        model.lineage = [base if ancestor == model.base else ancestor for ancestor in model.lineage]
        model.base, model.base_is_hub_id, model.revision = base, True, None
    # Folders of this machine say nothing to others.
    model.lineage = [name for name in model.lineage if is_hub_id(name) or "://" in name]
    # What is pushed is what the card tells of, whatever is in the folder.
    model.saved = None
    # Without commit and address: a card that named its own commit could never be pushed twice.
    steps = sorted(int(step) for step in record.published().get("steps") or {})
    publish: dict[str, Any] = {"repo_id": spec.repo_id, "layout": spec.layout}
    if (was := record.model.base) != model.base:
        publish["base_was"] = was
    if steps:
        publish["steps"] = steps
    public.publish = publish
    return public


def tell_weights(folder: Path) -> None:
    """Write record and card of a run anew, after weights were taken out of its folder.

    Raises RunFolderError when it holds no record.
    """
    record = load_record(folder)
    record.model.saved = weights_in(folder)
    write_record(record, folder)
    write_card(record, folder)

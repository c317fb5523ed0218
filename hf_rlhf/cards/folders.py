"""The card in a run's own folder, with code to load the local weights."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from hf_rlhf.cards.render import has_samples, render_card
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.models.locate import is_hub_id
from hf_rlhf.storage.files import atomic_write_bytes, atomic_write_text
from hf_rlhf.storage.local_paths import LocalPaths
from hf_rlhf.storage.record import RunRecord, load_record, write_record

CARD_DIGEST = ".card.sha256"
"""File in a run folder with the digest of the last written card."""
EDITED_CARD = "README.edited"
COMPARISON_PICTURE = "comparison.png"
ROWS_SHOWN = (
    "prompts of a few rows with completions (`evaluation.samples: 0` in the run file leaves out "
    "all rows)"
)
PUBLISH_FIELDS_ON_CARD = ("base_was", "steps")
"""Fields of the record's `publish` on a published run's card, beside the repository."""


def saved_weights(folder: Path) -> list[str]:
    """Return which of `adapter` and `merged` in a run folder hold weights."""
    return [name for name in ("adapter", "merged") if any((folder / name).glob("*.safetensors"))]


def write_card(record: RunRecord, folder: Path) -> None:
    """Write the card of a run into its folder; for a published run, the card on the Hub."""
    options: dict[str, Any] = {"endpoint": constants.ENDPOINT}
    published = record.published()
    if published.get("commit"):
        keys = {field.name for field in fields(PublishSpec)}
        spec = PublishSpec(**{key: value for key, value in published.items() if key in keys})
        if "adapter" in {*saved_weights(folder), *(record.model.saved or ())} and not spec.merged:
            options["kind"] = "adapter"
        record = public_record(record, spec)
    place_card(folder, render_card(record, **options))


def place_card(folder: Path, card: str) -> None:
    """Write a card into a run folder, after its digest; move an edited card beside it."""
    path, content = folder / "README.md", card.encode("utf-8")
    if path.exists() and path.read_bytes() == content:
        return
    if card_is_edited(folder):
        names = (f"{EDITED_CARD}{n}.md" for n in ("", *(f"-{i}" for i in range(2, 1000))))
        kept = next(folder / name for name in names if not (folder / name).exists())
        path.rename(kept)
        print(f"note: {path} was edited; it is kept as {kept.name}", file=sys.stderr)
    atomic_write_text(folder / CARD_DIGEST, hashlib.sha256(content).hexdigest() + "\n")
    atomic_write_bytes(path, content)


def card_is_edited(folder: Path) -> bool:
    """Return whether a run folder has a card with other content than was written."""
    path, digest = folder / "README.md", folder / CARD_DIGEST
    if not path.exists():
        return False
    known = digest.read_text(encoding="utf-8").strip() if digest.exists() else ""
    return hashlib.sha256(path.read_bytes()).hexdigest() != known


def refresh_card(folder: Path) -> None:
    """Rewrite record and card of a run after weights in its folder were deleted.

    Raises RunFolderError if it has no record.
    """
    record = load_record(folder)
    record.model.saved = saved_weights(folder)
    write_record(record, folder)
    write_card(record, folder)


def record_comparison(
    folder: Path, comparison: Mapping[str, Any], picture: tuple[Path, str] | None = None
) -> None:
    """Write a comparison with other models into the record and card of a run.

    An earlier comparison is replaced.

    Args:
        folder: the run's folder; the caller holds its lock.
        comparison: `name` of the run's model in the `table` (rows by heading), `notes`, and any
            other values for the record.
        picture: a PNG file and its alternative text.
    """
    record = load_record(folder)
    record.comparison = dict(comparison)
    (folder / COMPARISON_PICTURE).unlink(missing_ok=True)
    if picture:
        path, alt = picture
        atomic_write_bytes(folder / COMPARISON_PICTURE, path.read_bytes())
        record.comparison["picture"] = {"file": COMPARISON_PICTURE, "alt": alt}
    write_record(record, folder)
    write_card(record, folder)


def public_record(record: RunRecord, spec: PublishSpec) -> RunRecord:
    """Return the record for publication and its card, with the base's Hub name."""
    public = record.model_copy(deep=True)
    model, base = public.model, spec.base_model
    if base is not None and model.base != base:
        model.lineage = [base if ancestor == model.base else ancestor for ancestor in model.lineage]
        model.base, model.base_is_hub_id, model.revision = base, True, None
    # Local folders are meaningless elsewhere.
    model.lineage = [name for name in model.lineage if is_hub_id(name) or "://" in name]
    # The card describes the repository, not the folder.
    model.saved = None
    # Without commit and URL: a card with its own commit would change on every push.
    public.publish = {"repo_id": spec.repo_id}
    renamed = record.model.base != model.base
    if base_was := record.model.base if renamed else record.published().get("base_was"):
        public.publish["base_was"] = base_was
    if steps := sorted(int(step) for step in record.published().get("steps") or {}):
        public.publish["steps"] = steps
    return shareable(public, record)


def shareable(public: RunRecord, record: RunRecord) -> RunRecord:
    """Return `public` with file names instead of the paths in `record`.

    If the run file sets no samples, all rows of the data are removed, because samples of training
    are always recorded.
    """
    if hides_rows(record):
        public.samples, public.generation = [], None
        report = public.training.report.items()
        public.training.report = {title: each for title, each in report if not has_samples(each)}
    return RunRecord.from_json(LocalPaths(record.to_json()).hide(public.to_json()))


def hides_rows(record: RunRecord) -> bool:
    """Return whether the run file excludes rows of the data from publication."""
    return (record.config.get("evaluation") or {}).get("samples") == 0

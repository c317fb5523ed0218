"""The card of a base model without a card that is pushed for the models trained on it."""

import json
import math
from pathlib import Path

from hf_rlhf.cards.folders import shareable
from hf_rlhf.cards.metadata import BASE, TAG, license_of, metadata
from hf_rlhf.cards.render import auto_class, render_card, render_template
from hf_rlhf.config.packages import package_and_path
from hf_rlhf.models.safetensors import read_header
from hf_rlhf.storage.record import RunRecord, load_record, run_of_merged
from hf_rlhf.storage.record_schema import ModelSection


def base_card(folder: Path, model: ModelSection, repo_id: str, *, endpoint: str) -> str:
    """Return the README for a base without one.

    The merged weights of a run get that run's card; little is known of any other base.

    Args:
        folder: the base's folder with safetensors.
        model: the model section of a record with this base.
        repo_id: the target repository.
        endpoint: the Hub's address.
    """
    if (run := run_of_merged(folder)) is not None:
        # Only the merged weights are pushed: no adapter, and no pictures.
        record = load_record(run)
        record.model.saved = ["merged"]
        record.publish, record.pictures, record.comparison = None, [], None
        for report in record.reward_validation.reports if record.reward_validation else ():
            report.picture = None
        return render_card(shareable(record, record), repo_id=repo_id, endpoint=endpoint)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = next(iter(config.get("architectures") or ()), None)
    headers = [read_header(path) for path in folder.glob("*.safetensors")]
    name = str(model.base)
    fields = {"class_name": architecture, "adapter": None, "task": None, "base_is_hub_id": False}
    record = RunRecord(model=model.model_copy(update=fields))
    view = {
        "r": record,
        "title": repo_id.rpartition("/")[2],
        "repo_id": repo_id,
        "source": name if package_and_path(name) else None,
        "architecture": architecture,
        "parameters": sum(math.prod(t.shape) for header in headers for t in header.values()),
        "license": license_of(record, hub=endpoint),
        "auto_class": auto_class(record),
    }
    head = {**metadata(record, adapter=False, hub=endpoint), "tags": [TAG, BASE]}
    return render_template("base", head, view, endpoint)

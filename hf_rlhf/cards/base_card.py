"""The card of a base model that is pushed beside what was trained on it, where it has none."""

import json
import math
from pathlib import Path

from hf_rlhf.cards.render import PACKAGE_SCHEME, render_base, render_card
from hf_rlhf.models.safetensors import read_header
from hf_rlhf.storage.record import load_record, run_of_merged
from hf_rlhf.storage.record_schema import ModelSection


def base_card(folder: Path, model: ModelSection, repo_id: str, *, endpoint: str) -> str:
    """Return the README of a base that has none.

    The merged weights of a run get the card of that run; of any other base little is known.

    Args:
        folder: the base's own, with its weights as safetensors.
        model: the section of a record that names it as its base.
        repo_id: where it will stand.
        endpoint: the address of the Hub.
    """
    if (run := run_of_merged(folder)) is not None:
        # Only the merged weights go along: no adapter, and no pictures.
        record = load_record(run)
        record.model.saved = ["merged"]
        record.publish, record.pictures, record.comparison = None, [], None
        return render_card(record, repo_id=repo_id, endpoint=endpoint)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    headers = [read_header(path) for path in folder.glob("*.safetensors")]
    tensors = [tensor for header in headers for tensor in header.values()]
    name = str(model.base)
    return render_base(
        repo_id,
        source=name if name.startswith(PACKAGE_SCHEME) else None,
        architecture=next(iter(config.get("architectures") or ()), None),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        model=model,
        endpoint=endpoint,
    )

"""Whether the gold data holds rows that a learned reward was trained on."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hf_rlhf.data import TrainedRows, row_digest
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.evaluation import Scoring
from hf_rlhf.models import commit_of, download, resolve_model_path
from hf_rlhf.rewards import TOTAL
from hf_rlhf.storage import RECORD_NAME
from hf_rlhf_lab.validation.checks import Check, not_measurable
from hf_rlhf_lab.validation.gold import Gold

_CONFIGS = ("config.json", "adapter_config.json", RECORD_NAME)
_WRITERS = ("CausalLM", "LMHeadModel", "ConditionalGeneration")
"""Ends of the names of models that write text."""


def overlap(scoring: Scoring, label: str, data: Sequence[Gold]) -> Check | None:
    """Check that no reward model was trained on a prompt of the gold data, or on a response.

    A prompt that was seen with other responses counts too: the model has seen what is good there.
    Only a prompt that all training rows share tells nothing. None where no reward names a model.
    """
    name, models = "overlap", trained_models(scoring, label)
    if not models:
        return None
    known = [rows for rows in models.values() if rows is not None]
    trained = set().union(*(rows.prompts | rows.responses for rows in known))
    texts: list[str] = []
    details: dict[str, dict[str, float]] = {}
    for gold in data:
        prompts = set(map(row_digest, gold.prompts))
        responses = set(map(row_digest, gold.prompts, gold.completions))
        details[gold.name], counts = {}, []
        for kind, each in (("prompts", prompts), ("responses", responses)):
            share = details[gold.name][kind] = len(each & trained) / max(1, len(each))
            counts.append(f"{len(each & trained):,} of {len(each):,} {kind} ({share:.1%})")
        if any(details[gold.name].values()):
            texts.append(f"{' and '.join(counts)} in {gold.name}")
    if texts:
        text = f"the reward was trained on {'; '.join(texts)}. Its results there show what it "
        text += "remembers: validate it on rows with other prompts."
        return Check(name, "fail", text, details=details)
    if unknown := [each for each, rows in models.items() if rows is None or not rows.complete]:
        text = f"what {', '.join(unknown)} was trained on is not known. On such rows the results "
        return not_measurable(name, text + "would look too good.")
    text = "the reward was trained on none of the prompts and responses."
    return Check(name, "pass", text, details=details)


def trained_models(scoring: Scoring, label: str) -> dict[str, TrainedRows | None]:
    """Return what each model that the rewards name was trained on, None where it is not known."""
    models = {}
    for each in scoring.components:
        if each["kind"] == "rewards" and label in (TOTAL, each["label"]):
            revision = each["arguments"].get("revision")
            for text in _texts([each["arguments"], each.get("files")]):
                if (folder := _folder(text, revision)) and not _generates(folder):
                    models[text] = _rows_of(folder)
    return models


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _folder(text: str, revision: str | None) -> Path | None:
    """Return the folder of a model, on disk or in the cache of the Hub; None for other texts."""
    with suppress(HfRlhfError, OSError, ValueError):
        folder = Path(resolve_model_path(os.path.expanduser(text)))
        if any((folder / name).exists() for name in _CONFIGS):
            return folder
        if commit := commit_of(text, revision):
            return download(text, commit, ("trained_on.json", "*config.json"), "the model")
    return None


def _generates(folder: Path) -> bool:
    """Return whether a model writes text, as the base of an adapter does."""
    file = folder / "config.json"
    kinds = json.loads(file.read_text()).get("architectures") if file.exists() else None
    return any(kind.endswith(_WRITERS) for kind in kinds or ())


def _rows_of(folder: Path) -> TrainedRows | None:
    """Return the rows that the file beside the weights names."""
    beside = (folder, folder / "adapter", folder / "merged")
    return next(filter(None, map(TrainedRows.read, beside)), None)

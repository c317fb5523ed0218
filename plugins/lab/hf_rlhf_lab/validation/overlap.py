"""Detect gold rows in the training data of a learned reward."""

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
from hf_rlhf.storage import RECORD_NAME, ReportCheck
from hf_rlhf_lab.validation.checks import checked, not_measurable
from hf_rlhf_lab.validation.gold import Gold

_CONFIGS = ("config.json", "adapter_config.json", RECORD_NAME)
_WRITERS = ("CausalLM", "LMHeadModel", "ConditionalGeneration")
"""Endings of the class names of generative models."""


def overlap(scoring: Scoring, label: str, data: Sequence[Gold]) -> ReportCheck | None:
    """Check that no reward model was trained on a prompt or a response of the gold data.

    A prompt with other responses counts too, because the model knows what is good for it. A prompt
    that all training rows share does not count. None if no reward uses a model.
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
        return checked(name, "fail", text, details=details)
    if unknown := [each for each, rows in models.items() if rows is None or not rows.complete]:
        text = f"what {', '.join(unknown)} was trained on is not known. On such rows the results "
        return not_measurable(name, text + "would look too good.")
    text = "the reward was trained on none of the prompts and responses."
    return checked(name, "pass", text, details=details)


def trained_models(scoring: Scoring, label: str) -> dict[str, TrainedRows | None]:
    """Return the training data of each model in the rewards, None if unknown."""
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
    """Return a model's folder on disk or in the Hub's cache; None for other texts."""
    with suppress(HfRlhfError, OSError, ValueError):
        folder = Path(resolve_model_path(os.path.expanduser(text)))
        if any((folder / name).exists() for name in _CONFIGS):
            return folder
        if commit := commit_of(text, revision):
            return download(text, commit, ("trained_on.json", "*config.json"), "the model")
    return None


def _generates(folder: Path) -> bool:
    """Return whether a model generates text, such as an adapter's base."""
    file = folder / "config.json"
    kinds = json.loads(file.read_text()).get("architectures") if file.exists() else None
    return any(kind.endswith(_WRITERS) for kind in kinds or ())


def _rows_of(folder: Path) -> TrainedRows | None:
    """Return the rows of the file beside the weights."""
    beside = (folder, folder / "adapter", folder / "merged")
    return next(filter(None, map(TrainedRows.read, beside)), None)

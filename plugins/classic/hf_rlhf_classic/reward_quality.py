"""The measured accuracy of a reward model, from the record beside it."""

from pathlib import Path

from hf_rlhf import RunRecord
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.formatting import counted, missing_interval
from hf_rlhf.models import resolve_model_path
from hf_rlhf.storage import RECORD_NAME, Estimate, load_record

METRIC = "pair_accuracy"
"""Held-out metrics of `--plugin reward`."""


def quality_advice(name: str, revision: str | None = None, plugin: str = "reward") -> str:
    """Return what to know about a reward model before a policy is trained on its score.

    Empty if its held-out accuracy was measured and the interval is above chance.

    Args:
        name: a folder, or an id on the Hub.
        revision: on the Hub.
        plugin: the trainer of the model.
    """
    measured = _measured(name, revision)
    if measured is None:
        return (
            f"how often the reward model {name!r} prefers the better of two responses was never "
            f"measured: no {RECORD_NAME} with `{METRIC}` is beside it. If it tells them apart no "
            f"better than chance, the policy is trained on noise. `--plugin {plugin}` with an "
            "`evaluation` section measures it."
        )
    mean, rows = measured.mean, counted(measured.n or 0, "held-out pair")
    if reason := missing_interval(measured):
        return (
            f"the reward model {name!r} was measured on {rows} only ({METRIC} {mean:.3f}; "
            f"{reason}), which does not show that it prefers the better of two responses."
        )
    low, high = measured.low, measured.high
    assert low is not None and high is not None, "or there were a reason for no interval"  # noqa: PT018
    if low > 0.5:
        return ""
    return (
        f"the reward model {name!r} was not shown to prefer the better of two responses: {METRIC} "
        f"{mean:.3f} [{low:.3f}, {high:.3f}] of {rows}. What is trained on its score may be noise."
    )


def _measured(name: str, revision: str | None) -> Estimate | None:
    record = record_of(name, revision)
    return record.evaluation.estimate("after", METRIC) if record and record.evaluation else None


def record_of(name: str, revision: str | None) -> RunRecord | None:
    """Return the record of the run that trained and measured a model, None if missing."""
    for folder in _folders(name, revision):
        try:
            record = load_record(folder)
        except HfRlhfError:
            continue
        result = record.evaluation.estimate("after", METRIC) if record.evaluation else Estimate()
        if result.mean is not None:
            return record
    return None


def _folders(name: str, revision: str | None) -> list[Path]:
    """Return possible locations of a model's record: beside its folder (`merged`), or in it."""
    folder = Path(resolve_model_path(name))
    if folder.exists():
        return [folder, folder.resolve().parent]
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
    )

    try:
        return [Path(hf_hub_download(name, RECORD_NAME, revision=revision)).parent]
    except (OSError, HTTPError, HfHubHTTPError, HFValidationError):
        return []

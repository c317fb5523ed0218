"""The cards' functions for records as JSON, which tests can change more easily than a model."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from hf_rlhf.cards import facts, metadata, notes, plots, render, results
from hf_rlhf.storage.record import RunRecord


def _from_json(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def _with_record(record: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        return function(RunRecord.from_json(record), *arguments, **options)

    return _with_record


def complete(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with every field, as JSON."""
    return RunRecord.from_json(record).to_json()


render_card = _from_json(render.render_card)
setup = _from_json(facts.setup)
settings_of = _from_json(facts.settings_of)
license_of = _from_json(metadata.license_of)
card_metadata = _from_json(metadata.metadata)
known_notes = _from_json(notes.known_notes)
reward_curve = _from_json(plots.reward_curve)
how_measured = _from_json(results.how_measured)
measures = _from_json(results.measures)

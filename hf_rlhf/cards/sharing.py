"""The user's own content that a published card and record show: rows, code, file names."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.cards.folders import hides_rows
from hf_rlhf.cards.render import has_samples
from hf_rlhf.formatting import code, counted, listed
from hf_rlhf.storage.record import RunRecord

NO_ROWS = "`evaluation.samples: 0` in the run file leaves out all rows"


def shared_by(record: RunRecord) -> str:
    """Return which content of the author a published record shows; "" if it shows none."""
    prompts = {
        kind: {sample.prompt for sample in record.samples if (sample.stage == "train") == training}
        for kind, training in (("held-out", False), ("training", True))
    }
    if record.generation is not None:
        example = record.generation.prompt
        text = str(example[-1]["content"] if isinstance(example, list) else example)
        if not any(text in (prompt or "") for prompt in prompts["held-out"]):
            prompts["held-out"].add(text)
    rows = [f"prompts of {counted(len(n), f'{kind} row')}" for kind, n in prompts.items() if n]
    shown = []
    if rows:
        source = _source(record.data.adapter, {**record.data.arguments, **record.data.report})
        shown.append(f"{listed(rows)} of {source}, with completions ({NO_ROWS})")
    if any(map(has_samples, record.training.report.values())):
        shown.append(f"clips and texts of rows in samples/ ({NO_ROWS})")
    if own := sorted({each.name or "" for each in record.components if each.source}):
        shown.append(f"the source of {listed(own)}")
    if record.reward_validation:
        quotes = f"the reports on the rewards, which quote their gold data ({NO_ROWS})"
        shown.append("the plots of the reports on the rewards" if hides_rows(record) else quotes)
    return "; ".join(shown)


def will_be_shared(
    samples: int | None, *, trains_by_rewards: bool, adapter: str | None, data: Mapping[str, Any]
) -> str:
    """Return what a run that begins will show; `samples` is None without an `evaluation`.

    `data` has the `source` or the `path` of the rows.
    """
    rows = [f"up to {samples} held-out rows"] if samples else []
    rows += ["a few training rows"] if trains_by_rewards and samples != 0 else []
    if not rows:
        return "no row of the data will be shown"
    shown = f"prompts of {listed(rows)} of {_source(adapter, data)} will be shown"
    return f"{shown}, with completions ({NO_ROWS})"


def _source(adapter: str | None, data: Mapping[str, Any]) -> str:
    name = data.get("source") or data.get("path")
    if not isinstance(name, str):
        return f"the dataset {code(adapter)}"
    path = name.partition(" (SHA-256 ")[0]
    return code(path.rpartition("/")[2] if path.startswith(("/", "~", "..")) else path)

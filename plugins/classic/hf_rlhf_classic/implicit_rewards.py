"""Implicit rewards: the change of a response's log-probability by training, times `beta`.

Rafailov et al. 2023, Direct Preference Optimization, eq. 5. The reference is the model at the start
of training, whatever becomes of TRL's copy of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.data import rows_digest
from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.evaluation import (
    Evaluation,
    held_out_rows,
    is_validated,
    measure_rows,
    saved_model,
    validation_run,
)
from hf_rlhf.models import policy_arguments
from hf_rlhf.runs import Run
from hf_rlhf_classic.encoding import Encoded
from hf_rlhf_classic.likelihood import Likelihood, Metrics, batch_size, likelihoods

Texts = Callable[[Mapping[str, Any]], Mapping[str, Encoded]]
"""Maps a row to its responses by name, truncated as in training."""
LogProbs = Mapping[str, Score]
"""For a row: the log-probability of each response in nats, and its length as NAME_tokens."""


def log_probs(
    run: Run, model: Any, model_kwargs: Mapping[str, Any], texts: Texts
) -> Sequence[LogProbs]:
    """Return a model's log-probabilities of each held-out row's responses; all processes call this.

    None for a response that `max_length` cuts entirely.
    """

    def measure(rows: Sequence[Mapping[str, Any]]) -> list[Metrics]:
        named = [texts(row) for row in rows]
        flat = [text for row in named for text in row.values()]
        measured = iter(likelihoods(policy, flat, run.tokenizer))
        return [_row({name: next(measured) for name in row}) for row in named]

    with saved_model(run, model, model_kwargs) as policy:
        return measure_rows(held_out_rows(run), measure, batch_size=batch_size(run)).rows


def reference_log_probs(run: Run, texts: Texts) -> Sequence[LogProbs]:
    """Return `log_probs` of the model at the start of training; computed once per run folder."""
    digest = rows_digest(held_out_rows(run)).rpartition(":")[2][:16]
    path = run.folder / "evaluation" / f"reference-{digest}.json"
    if path.exists():
        return Evaluation.load(path).rows
    start: Any = run.model_path
    if run.adapter is not None:
        start = policy_arguments(run)["model"].to(run.training.device)
    rows = log_probs(run, start, run.model_kwargs(), texts)
    run_on_main_process(lambda: Evaluation(rows).save(path))
    return rows


def measure_reference(run: Run, texts: Texts) -> None:
    """Measure the reference on the validation rows before the trained model exists."""
    if is_validated(run):
        reference_log_probs(validation_run(run), texts)


def _row(measured: Mapping[str, Likelihood]) -> Metrics:
    row: Metrics = {}
    for name, response in measured.items():
        row[name] = response.total if response.log_probs else None
        row[f"{name}_tokens"] = float(len(response.log_probs))
    return row

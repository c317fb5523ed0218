"""The rows for evaluations during training, separate from the rows of the results."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.config.schema import ValidationSpec
from hf_rlhf.evaluation.scoring import held_out_rows
from hf_rlhf.storage.record_schema import HELD_OUT

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

LOSS = "loss"
"""transformers' own metric, the loss on the validation rows."""
NAME = "validation"
"""The split of these rows in a `validation_run`."""


def is_validated(run: "Run") -> bool:
    """Return whether the run is evaluated during training."""
    return bool(getattr(run.training, "eval_strategy", "no") != "no")


def validation_range(run: "Run") -> tuple[str, range]:
    """Return the split and the range of the validation rows."""
    spec = run.spec.validation or ValidationSpec()
    held_out = run.spec.evaluation or EvaluationSpec()
    name = spec.split or held_out.split
    count = len(run.dataset[name]) if name in run.dataset else 0
    start = 0 if spec.split else min(held_out.rows or count, count)
    return name, range(start, min(start + spec.rows, count))


def is_separate(run: "Run") -> bool:
    """Return whether no validation row is among the rows of the results.

    Two splits may share rows, such as `test` and `test_LABEL` of a mixture.
    """
    held_out = run.spec.evaluation or EvaluationSpec()
    split, rows = validation_range(run)
    if split == held_out.split:
        return held_out.rows is not None and rows.start >= held_out.rows
    measured = set(map(repr, held_out_rows(run)))
    return measured.isdisjoint(map(repr, run.dataset[split].select(rows)))


def validation_rows(run: "Run", *columns: str) -> Any:
    """Return the validation rows, for the `eval_dataset` of a trainer.

    They have the existing `columns`, by default all. None if the run is not evaluated during
    training.
    """
    if not is_validated(run):
        return None
    split, rows = validation_range(run)
    selected = run.dataset[split].select(rows)
    names = [name for name in columns if name in selected.column_names]
    return selected.select_columns(names) if names else selected


def validation_run(run: "Run") -> "Run":
    """Return the run with all of its validation rows as held-out rows."""
    from datasets import DatasetDict

    held_out = run.spec.evaluation or EvaluationSpec()
    evaluation = replace(held_out, split=NAME, rows=None, samples=0)
    dataset = DatasetDict({**run.dataset, NAME: validation_rows(run)})
    return replace(run, dataset=dataset, spec=replace(run.spec, evaluation=evaluation))


def metric_key(run: "Run") -> str | None:
    """Return the name of `metric_for_best_model` in an evaluation's metrics, without `eval_`."""
    name: str | None = run.training.metric_for_best_model
    name = None if name is None else name.removeprefix("eval_")
    return name if name is None or name == LOSS or name.startswith(HELD_OUT) else HELD_OUT + name

"""Evaluate a run's model before and after training, by rewards on text and the trainer's metrics.

A resumed run reuses the evaluation before training if the rows are the same. After training it
always measures, since the weights are new.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState

from hf_rlhf.data.arrow_rows import rows_digest
from hf_rlhf.data.messages import prompt_in
from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import BrokenPlugin
from hf_rlhf.evaluation.results import Evaluation, Measured
from hf_rlhf.evaluation.saved_models import SavedModel
from hf_rlhf.evaluation.scoring import evaluate, held_out_rows
from hf_rlhf.models.lengths import FOR_TEMPLATES, completion_length, positions, token_lengths
from hf_rlhf.models.merge import merge_adapter

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

Say = Callable[[str], None]
_START = ".start"
_PARTS = {"text": "", "by_trainer": "_held_out"}
"""Part of a `Measured` -> suffix of its file name."""


def measure_before(run: "Run", say: Say) -> Measured:
    """Evaluate the initial model; all processes must call this."""
    if run.spec.evaluation is None:
        return Measured()
    folder = run.folder / "evaluation"
    paths = {part: folder / f"before{end}.json" for part, end in _PARTS.items()}
    saved = {part: Evaluation.load(path) for part, path in paths.items() if path.exists()}
    digest = _digest(run) if saved else None
    valid = {
        part: evaluation
        for part, evaluation in saved.items()
        if evaluation.digest in (None, digest)
    }
    for part in saved.keys() - valid.keys():
        say(f"{paths[part]} was measured on other rows than {run.spec.evaluation.split!r}: ignored")
    # Every process must read before the main process writes.
    PartialState().wait_for_everyone()
    if PartialState().is_main_process:
        # A process killed during a measurement leaves a merged model here.
        shutil.rmtree(run.folder / _START, ignore_errors=True)
    needed = {part for part in _PARTS if _is_measured(run, part)}
    # Saved benchmark scores are identified by the weights, which may need a merge first.
    if needed <= valid.keys() and not run.spec.evaluation.benchmarks:
        return _check_names(run, Measured(valid.get("text"), valid.get("by_trainer")))
    with _start(run, say) as (model, kwargs):
        return measure(run, "before", model, kwargs, say, valid)


def measure(
    run: "Run",
    stage: str,
    model: str | Path,
    model_kwargs: Mapping[str, Any],
    say: Say,
    saved: Mapping[str, Evaluation] | None = None,
) -> Measured:
    """Evaluate a saved model on the held-out split, and save every row; all processes call this.

    Args:
        run: its `evaluation` section sets the measurements; nothing without it.
        stage: `before` or `after`, the name of the file in `evaluation/`.
        model: a folder or Hub id with full weights.
        model_kwargs: for `from_pretrained`.
        say: prints a line.
        saved: parts (`text`, `by_trainer`) that are already measured.
    """
    spec = run.spec.evaluation
    if spec is None:
        return Measured()
    parts = dict(saved or {})
    todo = [part for part in _PARTS if part not in parts and _is_measured(run, part)]
    if todo:
        say(f"measuring {stage} training, on {spec.split!r}")
    digest = _digest(run) if todo else None
    if "text" in todo:
        parts["text"] = replace(_text(run, model, model_kwargs), digest=digest)
        _save(run, f"{stage}.json", parts["text"])
    if "by_trainer" in todo:
        metrics = run.trainer_class.held_out(run, model, model_kwargs)
        evaluation = replace(metrics or Evaluation(()), digest=digest)
        if metrics is not None:
            parts["by_trainer"] = evaluation
        if metrics is not None or stage == "before":
            # Also save an empty evaluation, or a resumed run would merge only to measure nothing.
            _save(run, f"{stage}{_PARTS['by_trainer']}.json", evaluation)
    if silent := [name for part in parts.values() for name in part.without_values()]:
        say(f"note: no row of {spec.split!r} has a value for {', '.join(silent)}")
    benchmarks = _benchmarks(run, stage, model, model_kwargs, say) if spec.benchmarks else ()
    return _check_names(run, Measured(parts.get("text"), parts.get("by_trainer"), benchmarks))


def _benchmarks(
    run: "Run", stage: str, model: str | Path, model_kwargs: Mapping[str, Any], say: Say
) -> Sequence[Evaluation]:
    from hf_rlhf.evaluation.benchmarks import find_benchmarks, measure_benchmarks
    from hf_rlhf.evaluation.task import Candidate

    spec = run.spec.evaluation
    assert spec is not None
    benchmarks, _ = find_benchmarks(spec.benchmarks)
    names = ", ".join(benchmark.name for benchmark in benchmarks)
    say(f"measuring {stage} training, on {names}")
    loading = dict(model_kwargs)
    saved = SavedModel(str(model), str(model), revision=loading.pop("revision", None))
    return measure_benchmarks(
        *(benchmarks, Candidate(stage, saved, loading=loading), run.tokenizer),
        run.folder / "evaluation",
        batch_size=spec.batch_size,
        device=run.training.device,
    )


def measure_in_training(run: "Run", model: Any) -> Measured:
    """Evaluate a model in memory on the held-out split; all processes call this. Nothing is saved.

    Args:
        run: a `validation_run`.
        model: as in `Trainer.held_out`.
    """
    text = _text(run, model, {}) if _is_measured(run, "text") else None
    return _check_names(run, Measured(text, run.trainer_class.held_out(run, model, {})))


def _is_measured(run: "Run", part: str) -> bool:
    spec = run.spec.evaluation
    if part == "by_trainer" or spec is None:
        return spec is not None and run.trainer_class.measures_held_out()
    if not run.writes_text:
        return False
    if run.reward is not None:
        return True
    return bool(spec.samples) and prompt_in(held_out_rows(run)[0]) is not None


def _text(run: "Run", model: Any, model_kwargs: Mapping[str, Any]) -> Evaluation:
    spec = run.spec.evaluation
    assert spec is not None
    settings: dict[str, Any] = {
        "max_new_tokens": completion_length(run),
        "device": str(run.training.device),
        "model_kwargs": model_kwargs,
        "chat_template_kwargs": getattr(run.training, "chat_template_kwargs", None),
        "toolset": run.toolset,
    }
    rows = run.dataset[spec.split]
    if run.reward is None:
        length = spec.max_new_tokens or completion_length(run)
        rows = list(islice(_rows_with_room(run, length), spec.samples))
        spec = replace(spec, rows=None, completions_per_prompt=1)
        if not rows:
            return Evaluation([])
    return evaluate(model, run.tokenizer, rows, run.reward, spec, **settings)


def _rows_with_room(run: "Run", answer: int) -> Iterator[Mapping[str, Any]]:
    """Yield in order the held-out prompts that leave room for `answer` tokens in the model."""
    room = positions(run)
    for row in held_out_rows(run):
        asked = {name: row.get(name) for name in FOR_TEMPLATES} | {"prompt": prompt_in(row)}
        if not room or token_lengths(run, [asked])[0] + answer <= room:
            yield asked


def _digest(run: "Run") -> str:
    assert run.spec.evaluation is not None
    return rows_digest(run.dataset[run.spec.evaluation.split])


def _save(run: "Run", name: str, evaluation: Evaluation) -> None:
    run_on_main_process(lambda: evaluation.save(run.folder / "evaluation" / name))


def _check_names(run: "Run", measured: Measured) -> Measured:
    """Return `measured`. Raise BrokenPlugin if the trainer's metrics share a reward's name."""
    if measured.text is not None and measured.by_trainer is not None:
        both = sorted({*measured.text.metrics()} & {*measured.by_trainer.metrics()})
        if both:
            raise BrokenPlugin(
                f"trainer {run.spec.plugin!r} measures {', '.join(both)}, and so do the rewards. "
                "Give the reward another `label`."
            )
    return measured


@contextmanager
def _start(run: "Run", say: Say) -> Iterator[tuple[str | Path, Mapping[str, Any]]]:
    """Yield the initial model: the base, merged with a continued adapter."""
    if run.adapter is None:
        yield run.model_path, run.model_kwargs()
        return
    folder, adapter = run.folder / _START, run.adapter
    say("merging the adapter that training continues, to evaluate it")
    options = {"revision": run.model.model_revision, "overwrite": True}
    run_on_main_process(lambda: merge_adapter(run.model_path, adapter, folder, **options))
    try:
        yield folder, without_revision(run.model_kwargs())
        PartialState().wait_for_everyone()
    finally:
        if PartialState().is_main_process:
            shutil.rmtree(folder, ignore_errors=True)


def without_revision(model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for `from_pretrained` with a folder, which has no revisions."""
    return {key: value for key, value in model_kwargs.items() if key != "revision"}

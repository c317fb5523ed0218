"""Initial weights of each phase of a run, and the run's common record.

Each phase has its own run folder in `phases/`. Its record decides whether it is done, and a ledger
(`phases/steps.json`) whether its saved files are unchanged. The run's folder has a record, a card
and the weights of the last phase.
"""

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from hf_rlhf.errors import ModelError
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.formatting import duration
from hf_rlhf.runs.estimate import planned_steps
from hf_rlhf.runs.resolve import with_settings
from hf_rlhf.runs.run import Phase, Run
from hf_rlhf.steps.ledger import Ledger
from hf_rlhf.storage.files import atomic_dir, atomic_write_bytes
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record
from hf_rlhf.storage.record_schema import EvaluationSection, TrainingSection, ValidationSection
from hf_rlhf.training.progress import SAMPLES_NAME
from hf_rlhf.training.run_folder import differences

_START = {
    *("model_name_or_path", "model_revision", "adapter", "adapter_revision"),
    "adapter's weights",
}
"""Differences of a phase's record from its resolved run, which starts from the base."""
_WEIGHTS = ("num_labels", "parameters", "trainable_parameters", "dtype", "adapter")
_MEASURED_AFTER = {"text": "after.json", "by_trainer": "after_held_out.json"}


def is_finished(run: Run) -> bool:
    """Return whether a phase is finished, ignoring its initial weights, which may be deleted.

    A folder of another run is not finished, and its session refuses it. All processes must call
    this.
    """
    done = False
    if PartialState().is_main_process and (run.folder / RECORD_NAME).exists():
        record = load_record(run.folder)
        done = record.status == "finished" and not differences(record, run, ignored=_START)
    return bool(broadcast_object_list([done])[0])


def note_saved(phase: Phase) -> None:
    """Record the saved files of a finished phase, once for each run of it."""
    ledger, step = _ledger(phase)
    inputs = {"run_id": load_record(phase.run.folder).run_id}
    if ledger.entries().get(step, {}).get("inputs") != inputs:
        with ledger.recording(step, inputs) as recording:
            recording.outputs.append(_saved(phase.run))


def with_weights_of(run: Run, before: Phase) -> tuple[Run, Path]:
    """Return a phase's run with the weights of the previous phase, and their folder.

    The weights are an adapter on the base, or full weights. All processes must call this.

    Raises ModelError if a file is missing or damaged.
    """
    ledger, step = _ledger(before)
    # All files are read, so only by one process.
    reasons = ledger.reasons(step) if PartialState().is_main_process else []
    start, reasons = _saved(before.run), broadcast_object_list([reasons])[0]
    if reasons != []:
        why = "; ".join(reasons or ["not recorded"])
        raise ModelError(
            f"{start} is not as phase {before.name} left it ({why}). Restore it, or delete "
            f"{before.run.folder} to train it again."
        )
    names = ("adapter", "adapter_revision")
    if not run.model.use_peft:
        names = ("model_name_or_path", "model_revision")
    return with_settings(run, {names[0]: str(start), names[1]: None}), start


def _ledger(phase: Phase) -> tuple[Ledger, str]:
    """Return the ledger of a run's phases, and the name of a phase in it."""
    folder = phase.run.folder
    return Ledger(folder.parent.resolve(), folder_option="`output_dir`"), folder.name


def _saved(run: Run) -> Path:
    return run.folder.resolve() / ("adapter" if run.model.use_peft else "merged")


def take_over(run: Run) -> None:
    """Copy the last phase's files and results into the run's folder, weights as hard links."""
    last = run.phases[-1].run.folder
    for name in ("adapter", "merged"):
        if (last / name).is_dir():
            with atomic_dir(run.folder / name, overwrite=True) as new:
                shutil.copytree(last / name, new, copy_function=_link, dirs_exist_ok=True)
    for name in (SAMPLES_NAME, *(f"evaluation/{file}" for file in _MEASURED_AFTER.values())):
        if (last / name).exists():
            atomic_write_bytes(run.folder / name, (last / name).read_bytes())


def measured_after(run: Run) -> dict[str, Evaluation]:
    """Return the evaluations after training taken over from the last phase, by part."""
    folder = run.folder / "evaluation"
    return {
        part: Evaluation.load(folder / name)
        for part, name in _MEASURED_AFTER.items()
        if (folder / name).exists()
    }


def _link(source: str, target: str) -> None:
    """Create a hard link, or a copy if the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def compose_record(record: RunRecord, run: Run) -> None:
    """Compose a run's sections on training and weights from the records of its phases."""
    records = [
        load_record(phase.run.folder) if (phase.run.folder / RECORD_NAME).exists() else None
        for phase in run.phases
    ]
    begun = [each for each in records if each is not None]
    # Before the first step the record has its empty section.
    if any(each.training.steps for each in begun):
        record.training = composed_training(run.phases, records)
    if begun:
        for name in _WEIGHTS:
            setattr(record.model, name, getattr(begun[-1].model, name))
        record.model.identity = begun[0].model.identity
        record.exactness = begun[-1].exactness


def composed_training(
    phases: Sequence[Phase], records: Sequence[RunRecord | None]
) -> TrainingSection:
    """Return the section `training` of a run: sums, and its phases in order.

    `records` has None for phases that have not started; not all are None. The steps of the history
    continue from phase to phase.
    """
    trained = [each.training for each in records if each is not None and each.training.steps]
    last, peaks = trained[-1], [each.peak_memory for each in trained if each.peak_memory]
    rows = [_row(phase, record) for phase, record in zip(phases, records, strict=True)]
    report = {f"{title} (phase {phases[-1].name})": value for title, value in last.report.items()}
    return TrainingSection(
        steps=sum(each.steps or 0 for each in trained),
        planned_steps=sum(
            (record.training.planned_steps if record else None) or planned_steps(phase.run)
            for phase, record in zip(phases, records, strict=True)
        ),
        epochs=math.fsum(each.epochs or 0 for each in trained) or None,
        seconds=math.fsum(each.seconds or 0 for each in trained) or None,
        world_size=last.world_size,
        distributed=last.distributed,
        final=last.final,
        history=_history(trained),
        report={"Phases": rows, **report},
        validation=_validation(trained),
        monitor=next((each.monitor for each in reversed(trained) if each.monitor), None),
        peak_memory=max(peaks, key=lambda peak: peak.get("bytes") or 0) if peaks else None,
    )


def _validation(trained: Sequence[TrainingSection]) -> ValidationSection | None:
    """Return the last phase's validation section in steps of the whole run."""
    last, done = trained[-1].validation, sum(each.steps or 0 for each in trained[:-1])
    if last is None:
        return None
    stopped = any(each.validation.stopped_early for each in trained if each.validation)
    best = None if last.best_step is None else last.best_step + done
    return last.model_copy(update={"best_step": best, "stopped_early": stopped})


def _history(trained: Sequence[TrainingSection]) -> list[dict[str, Any]]:
    history, done = [], 0
    for training in trained:
        history += [
            {**entry, "step": entry["step"] + done}
            for entry in training.history
            if entry.get("step") is not None
        ]
        done += training.steps or 0
    return history


def _row(phase: Phase, record: RunRecord | None) -> dict[str, Any]:
    """Return a phase's row in the card's table; unknown values are None."""
    run, record = phase.run, record or RunRecord()
    training, evaluation = record.training, record.evaluation or EvaluationSection()
    tokens = [entry["num_tokens"] for entry in training.history if "num_tokens" in entry]
    row = {
        "phase": f"{phase.number} {phase.name}",
        "data": phase.data or run.spec.dataset.name,
        "rows": len(run.dataset["train"]),
        "tokens": int(tokens[-1]) if tokens else None,
        "epochs": training.epochs,
        "learning rate": f"{run.training.learning_rate:g}",
        "steps": training.steps,
    }
    # The first metric of the trainer itself, on the phase's own rows.
    for metric in list(run.trainer_class.held_out_metrics)[:1]:
        means = [evaluation.estimate(stage, metric).mean for stage in ("before", "after")]
        text = " → ".join("?" if mean is None else f"{mean:.3f}" for mean in means)
        row[f"held-out {metric}"] = None if set(means) == {None} else text
    return {**row, "time": None if training.seconds is None else duration(training.seconds)}

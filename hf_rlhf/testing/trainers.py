"""`check_trainer`: a trainer that trains, saves, and resumes exactly, on a tiny model."""

import inspect
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.contracts import Trainer, as_trainer
from hf_rlhf.errors import BrokenPlugin
from hf_rlhf.runs.run import AUTO_CLASSES
from hf_rlhf.testing.checks import Check, Unusable, fail, run_checks
from hf_rlhf.testing.trainer_case import TrainerCase, weights_of

UPSTREAM = frozenset({"trl", "transformers"})
CLASS_METHODS = tuple(
    name for name, var in vars(Trainer).items() if isinstance(var, classmethod) and name[0] != "_"
)


def has_the_contract(case: TrainerCase) -> None:
    """A class derived from Trainer, with a `Config` and the methods to load, train and save."""
    import transformers

    try:
        trainer: Any = as_trainer(case.trainer, "under_test")
    except BrokenPlugin as error:
        cure = "class MyTrainer(Trainer, GRPOTrainer), with Trainer from hf_rlhf."
        fail(str(error), cure, kind=Unusable)
    if missing := [name for name in ("train", "save_model") if not hasattr(trainer, name)]:
        cure = "derive it from a trainer of TRL or transformers as well, or write them."
        fail(f"{trainer!r} lacks {', '.join(missing)}.", cure, kind=Unusable)
    config = trainer.Config
    built_on_it = issubclass(trainer, transformers.Trainer)
    valid = isinstance(config, type) and is_dataclass(config)
    if not valid or (built_on_it and not issubclass(config, transformers.TrainingArguments)):
        fail(
            f"Config is {config!r}.",
            "derive it from the Config of the TRL trainer that you build on, with @dataclass.",
            kind=Unusable,
            expected="a dataclass; of TrainingArguments, for one built on transformers.Trainer.",
        )
    if "resume_from_checkpoint" not in inspect.signature(trainer.train).parameters:
        fail("train() takes no `resume_from_checkpoint`.", "add the parameter.", kind=Unusable)
    if not inspect.ismethod(trainer.from_run):
        fail("from_run is no classmethod.", "add @classmethod.", kind=Unusable)


def has_valid_attributes(case: TrainerCase) -> None:
    """`task`, `auto_class` and `columns` have the form that runs read; hooks are classmethods."""
    task = case.trainer.task
    if task not in AUTO_CLASSES and not case.trainer.auto_class:
        fail(
            f"task is {task!r}, and there is no auto_class.",
            'write auto_class = "AutoModelForSpeechSeq2Seq", say.',
            kind=Unusable,
            expected=f"{' or '.join(AUTO_CLASSES)}, or the class that loads the model.",
        )
    columns: Any = case.trainer.columns
    if not isinstance(columns, (set, frozenset)) or not all(isinstance(c, str) for c in columns):
        cure = 'write columns = frozenset({"prompt", "completion"}), say.'
        fail(f"columns is {columns!r}.", cure, kind=Unusable)
    for name in CLASS_METHODS:
        if not inspect.ismethod(getattr(case.trainer, name)):
            fail(f"{name} is no classmethod.", "add @classmethod.")


def overrides_nothing_private(case: TrainerCase) -> None:
    """No underscore method of TRL or transformers is overridden: a release may change it."""
    classes = [cls for cls in case.trainer.__mro__ if cls is not object]
    upstream = [cls for cls in classes if cls.__module__.split(".")[0] in UPSTREAM]
    private = sorted(
        name
        for cls in classes
        if cls not in upstream
        for name in vars(cls)
        if name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        if name not in case.allow and any(name in vars(other) for other in upstream)
    )
    if private:
        fail(
            f"it overrides {', '.join(private)}.",
            "use a reward, a callback, a collator or a public method; or own the whole loop.",
        )


def trains(case: TrainerCase) -> None:
    """It trains the configured steps, logs a loss for each, and changes the weights."""
    done = case.trained
    steps, state = done.run.training.max_steps, done.trainer.state
    if state.global_step != steps or state.max_steps != steps:
        fail(
            f"state.global_step is {state.global_step} and max_steps {state.max_steps} after "
            f"{steps} steps.",
            "count optimizer steps there; the record and `hf-rlhf check` read it.",
            expected="a `state` like transformers.TrainerState.",
        )
    logged = [entry["step"] for entry in state.log_history if "loss" in entry]
    if len(logged) != steps or not isinstance(getattr(done.output, "metrics", None), Mapping):
        fail(
            f"losses are logged for the steps {logged}, and train() returned "
            f"{type(done.output).__name__}.",
            "log as transformers.Trainer.log does.",
            expected="one entry with `loss` and `step` per logged step in state.log_history, and "
            "an object with `metrics`.",
        )
    if _difference(done.before, weights_of(done.trainer)) == 0:
        cure = "check that the reward varies, and that the learning rate is not 0."
        fail("no trainable weight changed.", cure)


def calls_the_callbacks(case: TrainerCase) -> None:
    """`run.callbacks` get their events: checkpoints are sealed and steps counted by them."""
    expected = {"train_begin": 1, "step_end": case.trained.run.training.max_steps, "train_end": 1}
    counts = {name: case.trained.events.count(name) for name in (*expected, "save", "log")}
    wrong = any(counts[name] != count for name, count in expected.items())
    if wrong or not counts["save"] or not counts["log"]:
        fail(
            f"run.callbacks were called so often: {counts}.",
            "pass callbacks=list(run.callbacks) to the trainer.",
            expected=f"{expected}, and on_save and on_log where they are due.",
        )


def saves(case: TrainerCase) -> None:
    """save_model writes the weights as safetensors, finite, and no pickled weights."""
    from safetensors.torch import load_file

    target = case.saved
    files = sorted(path.name for path in target.rglob("*") if path.is_file())
    pickled = [
        name
        for name in files
        if name.endswith((".bin", ".pt", ".pth", ".pkl")) and name != "training_args.bin"
    ]
    tensors = {
        name: tensor
        for path in target.rglob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    bad = [name for name, t in tensors.items() if not (t.numel() and t.isfinite().all())]
    if not tensors or bad or pickled:
        fail(
            f"save_model wrote {files}" + (f"; {bad[:3]} are empty or not finite." if bad else "."),
            "use save_pretrained, which does.",
        )


def measures(case: TrainerCase) -> None:
    """`held_out`, if there is one, returns one row of the same metrics per held-out row.

    The values are finite numbers or None, and equal in every call, since differences must come from
    training.
    """
    if not case.trainer.measures_held_out():
        return
    with case.run("measured", evaluation={"rows": 4, "batch_size": 3}) as run:
        kwargs = {key: value for key, value in run.model_kwargs().items() if key != "revision"}
        first, again = (case.trainer.held_out(run, case.full_model, kwargs) for _ in range(2))
        count = min(4, len(run.dataset["test"]))
    if first is None:
        return  # this model has nothing to measure
    names = {tuple(row) for row in first.rows}
    values = [value for row in first.rows for value in row.values() if value is not None]
    bad = [v for v in values if not (isinstance(v, (int, float)) and math.isfinite(v))]
    if len(first.rows) != count or len(names) != 1 or bad or names == {()}:
        fail(
            f"held_out gave {len(first.rows)} rows for {count} held-out rows, with the metrics "
            f"{sorted(names)}" + (f" and {bad[:3]}." * bool(bad)),
            "use hf_rlhf.evaluation.measure_rows.",
        )
    if [dict(row) for row in first.rows] != [dict(row) for row in again.rows]:
        fail(
            "held_out measured other numbers the second time.",
            "put the model into evaluation mode, and seed what is drawn.",
        )


def reports(case: TrainerCase) -> None:
    """`report` returns JSON: titles with rows (a list of mappings) or with one mapping each."""
    report = case.trained.trainer.report()
    try:
        json.dumps(report, allow_nan=False)
    except (TypeError, ValueError) as error:
        report = error
    if not isinstance(report, Mapping):
        cure = "return plain numbers and text; None for what is not a number."
        fail(f"report() gave {report!r}.", cure)


def resumes_exactly(case: TrainerCase) -> None:
    """Resumed from the middle, it ends with exactly the weights of an uninterrupted training."""
    done = case.trained
    checkpoints = sorted(
        Path(done.run.training.output_dir).glob("checkpoint-*"),
        key=lambda path: int(path.name.rpartition("-")[2]),
    )
    if len(checkpoints) < 2:
        fail(
            f"these checkpoints were saved: {[path.name for path in checkpoints]}.",
            "save as transformers.Trainer does, in args.output_dir.",
            expected=f"one each {done.run.training.save_steps:g} steps, as checkpoint-STEP.",
        )
    with case.run("resumed") as run:
        trainer = case.build(run)
        trainer.train(resume_from_checkpoint=str(checkpoints[0]))
    difference = _difference(weights_of(done.trainer), weights_of(trainer))
    if difference != 0:
        fail(
            f"resumed from {checkpoints[0].name}, weights differ by up to {difference:.3g} from "
            "those of the uninterrupted training.",
            "save and restore what your trainer keeps beside model, optimizer and random states, "
            "and save only between two generation cycles.",
        )


TRAINER_CHECKS: tuple[Check, ...] = (
    has_the_contract,
    has_valid_attributes,
    overrides_nothing_private,
    trains,
    calls_the_callbacks,
    saves,
    measures,
    reports,
    resumes_exactly,
)


def check_trainer(
    trainer: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    dataset: Any = None,
    reward: Any = None,
    allow: Collection[str] = (),
    skip: Collection[str] = (),
) -> None:
    """Check that a trainer keeps the contract, by training a tiny model twice: 15 s on a CPU.

    Args:
        trainer: the class.
        settings: top-level keys of a run file, over `minimal_settings`: two steps, a save after
            each, fp32 on the CPU. Saves must be between two generation cycles, where resuming is
            exact.
        dataset: a DatasetDict instead of `minimal_rows` with the trainer's `columns`.
        reward: an instance instead of `LetterShare()`; a classifier's trainer gets none.
        allow: private methods of TRL or transformers that it may override; comment why.
        skip: names of checks to skip; comment why.

    Raises:
        AssertionError: lists all failures.
    """
    case = TrainerCase(trainer, settings or {}, dataset, reward, allow)
    run_checks("trainer", trainer, case, TRAINER_CHECKS, skip)


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    if first.keys() != second.keys():
        return float("inf")
    return max((float((first[name] - second[name]).abs().max()) for name in first), default=0.0)

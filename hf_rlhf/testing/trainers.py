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
    """A class with `Config`, `from_run`, `train(resume_from_checkpoint)` and `save_model`."""
    try:
        trainer: Any = as_trainer(case.trainer, "under_test")
    except BrokenPlugin as error:
        cure = "class MyTrainer(Trainer, GRPOTrainer), with Trainer from hf_rlhf."
        fail(str(error), "a class derived from Trainer, with a Config.", cure, Unusable)
    if lacks := [name for name in ("train", "save_model") if not hasattr(trainer, name)]:
        fail(
            f"{trainer!r} lacks {', '.join(lacks)}.",
            "train(resume_from_checkpoint) and save_model(dir).",
            "derive it from a trainer of TRL or transformers as well, or write them.",
            Unusable,
        )
    import transformers

    config = trainer.Config
    built_on_it = issubclass(trainer, transformers.Trainer)
    known = isinstance(config, type) and is_dataclass(config)
    if not known or (built_on_it and not issubclass(config, transformers.TrainingArguments)):
        fail(
            f"Config is {config!r}.",
            "a dataclass; of TrainingArguments, for a trainer built on transformers.Trainer.",
            "derive it from the Config of the TRL trainer that you build on, with @dataclass.",
            Unusable,
        )
    if "resume_from_checkpoint" not in inspect.signature(case.trainer.train).parameters:
        fail(
            "train() takes no `resume_from_checkpoint`.",
            "train(resume_from_checkpoint=PATH or None).",
            "add the parameter.",
            Unusable,
        )
    if not inspect.ismethod(case.trainer.from_run):
        fail("from_run is no classmethod.", "Trainer.from_run(run).", "add @classmethod.", Unusable)


def says_what_it_is(case: TrainerCase) -> None:
    """What it says of itself beside the contract has the form that the core reads."""
    task = case.trainer.task
    if task not in AUTO_CLASSES and not case.trainer.auto_class:
        fail(
            f"task is {task!r}, and there is no auto_class.",
            f"{' or '.join(AUTO_CLASSES)}, or the class of transformers that loads the model.",
            'write auto_class = "AutoModelForSpeechSeq2Seq", say.',
            Unusable,
        )
    columns: Any = case.trainer.columns
    if not isinstance(columns, (set, frozenset)) or not all(isinstance(c, str) for c in columns):
        fail(
            f"columns is {columns!r}.",
            "a frozenset of the names of dataset columns.",
            'write columns = frozenset({"prompt", "completion"}), say.',
            Unusable,
        )
    for name in CLASS_METHODS:
        if not inspect.ismethod(getattr(case.trainer, name)):
            fail(f"{name} is no classmethod.", f"Trainer.{name}(run, ...).", "add @classmethod.")


def overrides_nothing_private(case: TrainerCase) -> None:
    """No underscore method of TRL or transformers is overridden: copies of those rot unseen."""
    classes = [cls for cls in case.trainer.__mro__ if cls is not object]
    above = [cls for cls in classes if cls.__module__.split(".")[0] in UPSTREAM]
    private = sorted(
        name
        for cls in classes
        if cls not in above
        for name in vars(cls)
        if name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
        if name not in case.allow and any(name in vars(other) for other in above)
    )
    if private:
        fail(
            f"it overrides {', '.join(private)}.",
            "public methods only; a release of TRL may change the others without a word.",
            "use a reward, a callback, a collator or a public method; or own the whole loop.",
        )


def trains(case: TrainerCase) -> None:
    """It trains the steps it was asked for, changes the weights, and says so."""
    done = case.trained
    steps, state = done.run.training.max_steps, done.trainer.state
    if state.global_step != steps or state.max_steps != steps:
        fail(
            f"state.global_step is {state.global_step} and max_steps {state.max_steps} after "
            f"{steps} steps.",
            "a `state` as transformers.TrainerState has it.",
            "count optimizer steps there; the record and `hf-rlhf check` read it.",
        )
    logged = [entry["step"] for entry in state.log_history if "loss" in entry]
    if len(logged) != steps or not isinstance(getattr(done.output, "metrics", None), Mapping):
        fail(
            f"losses are logged for the steps {logged}, and train() returned "
            f"{type(done.output).__name__}.",
            "one entry with `loss` and `step` per logged step in state.log_history, and an "
            "object with `metrics`.",
            "log as transformers.Trainer.log does.",
        )
    if _difference(done.before, weights_of(done.trainer)) == 0:
        fail(
            "no trainable weight changed.",
            "training.",
            "check that the reward varies, and that the learning rate is not 0.",
        )


def calls_the_callbacks(case: TrainerCase) -> None:
    """`run.callbacks` get their events: checkpoints are sealed and steps shown by them."""
    wanted = {"train_begin": 1, "step_end": case.trained.run.training.max_steps, "train_end": 1}
    visited = {name: case.trained.events.count(name) for name in (*wanted, "save", "log")}
    short = {name: count for name, count in wanted.items() if visited[name] != count}
    if short or not visited["save"] or not visited["log"]:
        fail(
            f"of run.callbacks these were called: {visited}.",
            f"{wanted}, and on_save and on_log where they are due.",
            "pass callbacks=list(run.callbacks) to the trainer.",
        )


def saves(case: TrainerCase) -> None:
    """save_model writes safetensors, whole and finite, and nothing that is pickled."""
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
    whole = {name: value.numel() and value.isfinite().all() for name, value in tensors.items()}
    bad = [name for name, good in whole.items() if not good]
    if not tensors or bad or pickled:
        fail(
            f"save_model wrote {files}" + (f"; {bad[:3]} are empty or not finite." if bad else "."),
            "the weights as .safetensors, and no pickled weights.",
            "use save_pretrained, which does.",
        )


def measures(case: TrainerCase) -> None:
    """`held_out`, if there is one, gives each row the same numbers whenever it is asked."""
    if not case.trainer.measures_held_out():
        return
    with case.run("measured", evaluation={"rows": 4, "batch_size": 3}) as run:
        kwargs = {key: value for key, value in run.model_kwargs().items() if key != "revision"}
        item, again = (case.trainer.held_out(run, case.whole, kwargs) for _ in range(2))
        expected = min(4, len(run.dataset["test"]))
    if item is None:
        return  # there is nothing to measure of this model
    names = {tuple(row) for row in item.rows}
    values = [value for row in item.rows for value in row.values()]
    bad = [value for value in values if value is not None and not _finite(value)]
    if len(item.rows) != expected or len(names) != 1 or bad or names == {()}:
        fail(
            f"held_out gave {len(item.rows)} rows for {expected} held-out rows, with the metrics "
            f"{sorted(names)}" + (f" and {bad[:3]}." * bool(bad)),
            "one row of the same metrics, finite numbers or None, for each row of the split.",
            "use hf_rlhf.evaluation.measure_rows.",
        )
    if [dict(row) for row in item.rows] != [dict(row) for row in again.rows]:
        fail(
            "held_out measured other numbers the second time.",
            "the same: differences before and after must come from training.",
            "put the model into evaluation mode, and seed what is drawn.",
        )


def reports(case: TrainerCase) -> None:
    """`report` returns JSON."""
    message = case.trained.trainer.report()
    try:
        json.dumps(message, allow_nan=False)
    except (TypeError, ValueError) as error:
        message = error
    if not isinstance(message, Mapping):
        fail(
            f"report() gave {message!r}.",
            "a mapping of titles to rows (a list of mappings) or to one mapping, as JSON.",
            "return plain numbers and text; None for what is not a number.",
        )


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def resumes_exactly(case: TrainerCase) -> None:
    """Resumed from the middle, it ends with the very weights of a training without a break."""
    done = case.trained
    checkpoints = sorted(
        Path(done.run.training.output_dir).glob("checkpoint-*"),
        key=lambda path: int(path.name.rpartition("-")[2]),
    )
    if len(checkpoints) < 2:
        fail(
            f"these checkpoints were saved: {[path.name for path in checkpoints]}.",
            f"one each {done.run.training.save_steps:g} steps, as checkpoint-STEP.",
            "save as transformers.Trainer does, in args.output_dir.",
        )
    with case.run("resumed") as run:
        trainer = case.build(run)
        trainer.train(resume_from_checkpoint=str(checkpoints[0]))
    difference = _difference(weights_of(done.trainer), weights_of(trainer))
    if difference != 0:
        fail(
            f"resumed from {checkpoints[0].name}, weights differ by up to {difference:.3g} from "
            "those of the training without a break.",
            "no difference: a resumed run is the same run.",
            "save and restore what your trainer keeps beside model, optimizer and random states, "
            "and save only between two generation cycles.",
        )


TRAINER_CHECKS: tuple[Check, ...] = (
    has_the_contract,
    says_what_it_is,
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
            each, fp32 on the CPU. A save falls where resuming is exact, between two generation
            cycles.
        dataset: a DatasetDict, in place of `minimal_rows` with the trainer's `columns`.
        reward: an instance, in place of `LetterShare()`; a classifier's trainer gets none.
        allow: private methods of TRL or transformers that it may override; say why beside it.
        skip: names of checks to leave out; say why beside it.

    Raises:
        AssertionError: with everything that is wrong.
    """
    case = TrainerCase(trainer, settings or {}, dataset, reward, allow)
    title = getattr(trainer, "__name__", type(trainer).__name__)
    run_checks(f"trainer {title}", case, TRAINER_CHECKS, skip)


def _difference(item: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    if item.keys() != other.keys():
        return float("inf")
    return max((float((item[name] - other[name]).abs().max()) for name in item), default=0.0)

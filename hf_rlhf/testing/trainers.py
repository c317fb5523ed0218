"""`check_trainer`: a trainer that trains, saves, and resumes exactly, on a tiny model."""

import inspect
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.testing.checks import Check, Unusable, fail, run_checks
from hf_rlhf.testing.minimal import LetterShare, minimal_rows, minimal_settings
from hf_rlhf.testing.offering import offering
from hf_rlhf.testing.tiny import make_tiny_policy

if TYPE_CHECKING:
    from hf_rlhf.run import Run

UPSTREAM = frozenset({"trl", "transformers"})
_NAME = "under_test"


@dataclass
class TrainerCase:
    """A trainer to be checked, and the tiny run that it is given."""

    trainer: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    dataset: Any = None
    reward: Any = None
    allow: Collection[str] = ()
    _kept: Any = field(default_factory=tempfile.TemporaryDirectory)

    @property
    def folder(self) -> Path:
        """Where the tiny runs are; it goes when the case does."""
        return Path(self._kept.name)

    @contextmanager
    def run(self, name: str, *callbacks: Any) -> Iterator["Run"]:
        """Prepare the run as `train` would, in a folder of its own. Raises Unusable."""
        from hf_rlhf.config import RunFile
        from hf_rlhf.errors import HfRlhfError
        from hf_rlhf.prepare import prepare

        policy = self.folder / "policy"
        if not policy.is_dir():
            make_tiny_policy(policy)
        data = self.dataset if self.dataset is not None else minimal_rows()
        content = {
            "plugin": _NAME,
            "model_name_or_path": str(policy),
            "output_dir": str(self.folder / name),
            "dataset": {"name": "minimal_rows"},
            "rewards": [{"name": "reward_under_test"}],
            "evaluation": None,
            **minimal_settings(self.trainer.Config),
            **self.settings,
        }
        components = {
            "trainers": {_NAME: self.trainer},
            "datasets": {"minimal_rows": lambda: data},
            "rewards": {"reward_under_test": lambda: self.reward or LetterShare()},
        }
        with offering(components):
            try:
                run = prepare(RunFile.from_mapping(content))
            except HfRlhfError as error:
                fail(
                    f"the tiny run is refused: {error}.",
                    "a Config that takes settings for a few steps on a CPU.",
                    "pass settings={...}, dataset= or reward= as your trainer needs them.",
                    Unusable,
                )
            yield run.with_callbacks(*callbacks)

    def build(self, run: "Run") -> Any:
        """Return the trainer of a run. Raises Unusable."""
        try:
            return self.trainer.from_run(run)
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"from_run raised {type(error).__name__}: {error}.",
                "a trainer built from run.training, run.model_path, run.dataset, run.tokenizer, "
                "run.reward and run.callbacks.",
                "build it as docs/plugins.md has it.",
                Unusable,
            )

    @cached_property
    def trained(self) -> "Trained":
        """What training to the end did, done once. Raises Unusable if it raised."""
        events = _events()
        with self.run("whole", events) as run:
            trainer = self.build(run)
            before = _weights(trainer)
            try:
                output = trainer.train(resume_from_checkpoint=None)
            except Exception as error:  # noqa: BLE001 - plugin code may raise anything
                fail(
                    f"train() raised {type(error).__name__}: {error}.",
                    "a training of a few steps.",
                    "pass settings={...} if your trainer needs others.",
                    Unusable,
                )
            return Trained(trainer, run, output, before, events.seen)


@dataclass
class Trained:
    """What is left of one training."""

    trainer: Any
    run: "Run"
    output: Any
    before: Mapping[str, Any]
    events: list[str]


def has_the_contract(case: TrainerCase) -> None:
    """A class with `Config`, `from_run`, `train(resume_from_checkpoint)` and `save_model`."""
    names = ("Config", "from_run", "train", "save_model")
    trainer: Any = case.trainer
    lacks = [name for name in names if not hasattr(trainer, name)]
    if not isinstance(trainer, type) or lacks:
        fail(
            f"{trainer!r} lacks {', '.join(lacks) or 'being a class'}.",
            "a class with Config, from_run(run), train(resume_from_checkpoint), save_model(dir).",
            "add what is missing; a subclass of a TRL trainer has the last two.",
            Unusable,
        )
    from transformers import Trainer, TrainingArguments

    config = case.trainer.Config
    built_on_it = issubclass(case.trainer, Trainer)
    known = isinstance(config, type) and is_dataclass(config)
    if not known or (built_on_it and not issubclass(config, TrainingArguments)):
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
    if _difference(done.before, _weights(done.trainer)) == 0:
        fail(
            "no trainable weight changed.",
            "training.",
            "check that the reward varies, and that the learning rate is not 0.",
        )


def calls_the_callbacks(case: TrainerCase) -> None:
    """`run.callbacks` get their events: checkpoints are sealed and steps shown by them."""
    wanted = {"train_begin": 1, "step_end": case.trained.run.training.max_steps, "train_end": 1}
    seen = {name: case.trained.events.count(name) for name in (*wanted, "save", "log")}
    short = {name: count for name, count in wanted.items() if seen[name] != count}
    if short or not seen["save"] or not seen["log"]:
        fail(
            f"of run.callbacks these were called: {seen}.",
            f"{wanted}, and on_save and on_log where they are due.",
            "pass callbacks=list(run.callbacks) to the trainer.",
        )


def saves(case: TrainerCase) -> None:
    """save_model writes safetensors, whole and finite, and nothing that is pickled."""
    from safetensors.torch import load_file

    target = case.folder / "saved"
    case.trained.trainer.save_model(str(target))
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
    difference = _difference(_weights(done.trainer), _weights(trainer))
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
    overrides_nothing_private,
    trains,
    calls_the_callbacks,
    saves,
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
        dataset: a DatasetDict, in place of `minimal_rows()`.
        reward: an instance, in place of `LetterShare()`.
        allow: private methods of TRL or transformers that it may override; say why beside it.
        skip: names of checks to leave out; say why beside it.

    Raises:
        AssertionError: with everything that is wrong.
    """
    case = TrainerCase(trainer, settings or {}, dataset, reward, allow)
    title = getattr(trainer, "__name__", type(trainer).__name__)
    run_checks(f"trainer {title}", case, TRAINER_CHECKS, skip)


def _events() -> Any:
    from transformers import TrainerCallback

    class Events(TrainerCallback):  # type: ignore[misc]
        """Notes which events it is handed."""

        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.seen.append("train_begin")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seen.append("step_end")

        def on_save(self, *_: Any, **__: Any) -> None:
            self.seen.append("save")

        def on_log(self, *_: Any, **__: Any) -> None:
            self.seen.append("log")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.seen.append("train_end")

    return Events()


def _weights(trainer: Any) -> dict[str, Any]:
    """Return copies of the trainable weights, by name."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        name: weight.detach().to("cpu", copy=True)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    if one.keys() != other.keys():
        return float("inf")
    return max((float((one[name] - other[name]).abs().max()) for name in one), default=0.0)

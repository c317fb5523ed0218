"""The tiny run that a trainer is checked by."""

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.testing.checks import Unusable, fail
from hf_rlhf.testing.minimal import LetterShare, minimal_rows, minimal_settings
from hf_rlhf.testing.offering import offering
from hf_rlhf.testing.tiny import make_tiny_policy

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

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
    def run(
        self, name: str, *callbacks: Any, evaluation: Mapping[str, Any] | None = None
    ) -> Iterator["Run"]:
        """Prepare the run as `train` would, in a folder of its own. Raises Unusable."""
        from hf_rlhf.config import RunFile
        from hf_rlhf.errors import HfRlhfError
        from hf_rlhf.runs.resolve import resolve_run

        policy = self.folder / "policy"
        if not policy.is_dir():
            make_tiny_policy(policy)
        columns = self.trainer.columns
        data = self.dataset if self.dataset is not None else minimal_rows(columns)
        # Rewards score text, which only a text generation model has.
        generates = self.trainer.task == "text-generation"
        content = {
            "plugin": _NAME,
            "model_name_or_path": str(policy),
            "output_dir": str(self.folder / name),
            "dataset": {"name": "minimal_rows"},
            "rewards": [{"name": "reward_under_test"}] * generates,
            **minimal_settings(self.trainer.Config),
            **self.settings,
            "evaluation": evaluation,
        }
        components = {
            "trainers": {_NAME: self.trainer},
            "datasets": {"minimal_rows": lambda: data},
            "rewards": {"reward_under_test": lambda: self.reward or LetterShare()},
        }
        with offering(components):
            try:
                run = resolve_run(RunFile.from_mapping(content))
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
                "build it as docs/how-to/write-a-trainer.md has it.",
                Unusable,
            )

    @cached_property
    def trained(self) -> "Trained":
        """What training to the end did, done once. Raises Unusable if it raised."""
        events = _events()
        with self.run("whole", events) as run:
            trainer = self.build(run)
            before = weights_of(trainer)
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

    @cached_property
    def saved(self) -> Path:
        """The folder that save_model wrote after the training."""
        target = self.folder / "saved"
        self.trained.trainer.save_model(str(target))
        return target

    @cached_property
    def whole(self) -> Path:
        """The trained model with whole weights, as it is published."""
        from hf_rlhf.models.merge import merge_adapter

        if not (self.saved / "adapter_config.json").exists():
            return self.saved
        self.trained.run.tokenizer.save_pretrained(self.saved)
        merged = self.folder / "merged"
        merge_adapter(self.trained.run.model_path, self.saved, merged)
        return merged


@dataclass
class Trained:
    """What is left of one training."""

    trainer: Any
    run: "Run"
    output: Any
    before: Mapping[str, Any]
    events: list[str]


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


def weights_of(trainer: Any) -> dict[str, Any]:
    """Return copies of the trainable weights, by name."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        name: weight.detach().to("cpu", copy=True)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }

"""The tiny run for checks of a trainer."""

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
    """A trainer under test, and its tiny run."""

    trainer: Any
    settings: Mapping[str, Any] = field(default_factory=dict)
    dataset: Any = None
    reward: Any = None
    allow: Collection[str] = ()
    _folder: Any = field(default_factory=tempfile.TemporaryDirectory)

    @property
    def folder(self) -> Path:
        """The folder of the tiny runs, deleted with the case."""
        return Path(self._folder.name)

    @contextmanager
    def run(
        self, name: str, *callbacks: Any, evaluation: Mapping[str, Any] | None = None
    ) -> Iterator["Run"]:
        """Prepare the run like `train`, in a separate folder. Raises Unusable."""
        from hf_rlhf.config import RunFile
        from hf_rlhf.errors import HfRlhfError
        from hf_rlhf.runs.resolve import resolve_run

        policy = self.folder / "policy"
        if not policy.is_dir():
            make_tiny_policy(policy)
        columns = self.trainer.columns
        data = self.dataset if self.dataset is not None else minimal_rows(columns)
        # Rewards score text, which only a text generation model produces.
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
                    "pass settings={...}, dataset= or reward= as your trainer needs them.",
                    kind=Unusable,
                    expected="a Config that takes settings for a few steps on a CPU.",
                )
            yield run.with_callbacks(*callbacks)

    def build(self, run: "Run") -> Any:
        """Return the trainer of a run. Raises Unusable."""
        try:
            return self.trainer.from_run(run)
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"from_run raised {type(error).__name__}: {error}.",
                "build it as docs/how-to/write-a-trainer.md does.",
                kind=Unusable,
                expected="a trainer built from run.training, run.model_path, run.dataset, "
                "run.tokenizer, run.reward and run.callbacks.",
            )

    @cached_property
    def trained(self) -> "Trained":
        """The complete training, run once. Raises Unusable if it raised."""
        events: list[str] = []
        with self.run("trained", _recorder(events)) as run:
            trainer = self.build(run)
            before = weights_of(trainer)
            try:
                output = trainer.train(resume_from_checkpoint=None)
            except Exception as error:  # noqa: BLE001 - plugin code may raise anything
                fail(
                    f"train() raised {type(error).__name__}: {error}.",
                    "pass settings={...} if your trainer needs others.",
                    kind=Unusable,
                    expected="a training of a few steps.",
                )
            return Trained(trainer, run, output, before, events)

    @cached_property
    def saved(self) -> Path:
        """The folder from save_model after the training."""
        target = self.folder / "saved"
        self.trained.trainer.save_model(str(target))
        return target

    @cached_property
    def full_model(self) -> Path:
        """The trained model with full weights, as published."""
        from hf_rlhf.models.merge import merge_adapter

        if not (self.saved / "adapter_config.json").exists():
            return self.saved
        self.trained.run.tokenizer.save_pretrained(self.saved)
        merged = self.folder / "merged"
        merge_adapter(self.trained.run.model_path, self.saved, merged)
        return merged


@dataclass
class Trained:
    """A training: the trainer, its run, the result of `train`, weights, events."""

    trainer: Any
    run: "Run"
    output: Any
    before: Mapping[str, Any]
    """The trainable weights before the first step."""
    events: list[str]


def _recorder(events: list[str]) -> Any:
    """Return a callback that appends the names of its events to `events`."""
    from transformers import TrainerCallback

    names = ("train_begin", "step_end", "save", "log", "train_end")
    methods = {
        f"on_{name}": lambda self, *_, name=name, **__: events.append(name) for name in names
    }
    return type("Recorder", (TrainerCallback,), methods)()


def weights_of(trainer: Any) -> dict[str, Any]:
    """Return copies of the trainable weights, by name."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        name: weight.detach().to("cpu", copy=True)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }

"""Models, the tasks that plugins add, and the completions of models for tasks."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from hf_rlhf.config import value_of
from hf_rlhf.errors import ConfigError, HfRlhfError, ModelError, Problem
from hf_rlhf.evaluation.completions import Completions, SavedValues
from hf_rlhf.evaluation.plot import Panel, means_panel
from hf_rlhf.evaluation.report import Metric
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.evaluation.saved_models import SavedModel, find_saved
from hf_rlhf.evaluation.statistics import Interval
from hf_rlhf.models.lengths import prompt_ids
from hf_rlhf.steps.digests import digest

_NAMED = re.compile(r"([^={]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model under evaluation."""

    name: str
    """Name in tables. Models with the same name are training seeds."""
    saved: SavedModel
    number: int = 0
    """Index among the models of that name."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for `from_pretrained`."""

    @property
    def label(self) -> str:
        """Return the name, with the number from the second seed on."""
        return f"{self.name}.{self.number + 1}" if self.number else self.name

    @cached_property
    def tokenizer(self) -> Any:
        """The model's own tokenizer. Raises ModelError."""
        return self.saved.tokenizer(**self._trust)

    @cached_property
    def positions(self) -> int | None:
        """The number of the model's positions; None without a limit."""
        return self.saved.positions(**self._trust)

    @property
    def _trust(self) -> dict[str, bool]:
        return {"trust_remote_code": bool(self.loading.get("trust_remote_code"))}

    def prompt_ids(
        self,
        prompts: Sequence[Any],
        template: Mapping[str, Any] | None = None,
        rows: Sequence[Mapping[str, Any]] = (),
    ) -> list[list[int]]:
        """Return tokenized prompts (texts or conversations) of `rows`. Raises ModelError."""
        if prompts and not isinstance(prompts[0], str) and not self.tokenizer.chat_template:
            raise ModelError(
                f"{self.saved.source}: its tokenizer has no chat template, and the prompts are "
                "conversations. Save a chat_template.jinja beside it, or name an instruct model."
            )
        return prompt_ids(self.tokenizer, prompts, template or {}, rows)

    def partner(self, name: str | None, models: "Sequence[Candidate]") -> "Candidate | None":
        """Return the model of `name` to pair with: the only model, or the same seed's."""
        others = [each for each in models if each.name == name]
        if not others or self.name == name:
            return None
        return others[0] if len(others) == 1 else others[self.number]

    def load(self, device: Any) -> AbstractContextManager[Any]:
        """Yield the model, ready to generate, and free its memory at the end."""
        return self.saved.load(device, **self.loading)

    @classmethod
    def find(
        cls,
        models: Mapping[str, Sequence[Any]],
        loading: Mapping[str, Any],
        *,
        paired: Collection[str | None] = (),
        where: str = "--model ",
    ) -> "tuple[list[Candidate], list[Problem]]":
        """Return the model of each source (see `find_saved`), and the problems of the others.

        Tokenizers and configurations are loaded, but no weights. All models are compared with the
        models in `paired`. `where` is the setting, for problems.
        """
        candidates, problems = [], []
        for other in sorted({str(name) for name in paired} & models.keys()):
            count = len(models[other])
            for name, sources in models.items():
                if count not in (1, len(sources)):
                    what = f"has {len(sources)} seeds, but {other!r}, to be compared with, {count}."
                    fix = f"Give {other!r} one, or as many, in the same order."
                    problems.append(Problem(f"{where}{name}", what, fix))
        for name, sources in models.items():
            for number, source in enumerate(sources):
                try:
                    candidate = cls(name, find_saved(source), number, loading)
                    _ = candidate.tokenizer, candidate.positions
                    candidates.append(candidate)
                except HfRlhfError as error:
                    problems.append(Problem(f"{where}{name}", str(error)))
        labels = [candidate.label for candidate in candidates]
        for label in sorted({label for label in labels if labels.count(label) > 1}):
            what = f"{label!r} names two models: it is also the label of a name's second seed."
            problems.append(Problem(f"{where}{label}", what, "Rename one of them."))
        return candidates, problems

    @staticmethod
    def parse(options: Sequence[str]) -> dict[str, list[Any]]:
        """Return name -> sources of `--model [NAME=]WHERE` in order; a repeated name has seeds.

        WHERE may be YAML, `{base: BASE, adapter: ADAPTER}`. Without a name it is the last part of
        the path that distinguishes it. Raises ConfigError with all problems.
        """
        models: dict[str, list[Any]] = {}
        problems, implied = [], set()
        for option in options:
            match = _NAMED.fullmatch(option)
            name, where = (match[1], match[2]) if match else (_name_of(option), option)
            if name in models and (not match or name in implied):
                what = f"two models would be named {name!r}: {models[name][0]} and {where}."
                problems.append(Problem("--model", what, f"Write --model OTHER={where}."))
                continue
            if not match:
                implied.add(name)
            try:
                source = value_of(where) if where[0] in "{[" else where
            except ValueError as error:
                problems.append(Problem(f"--model {option}", str(error)))
                continue
            models.setdefault(name, []).append(source)
        if problems:
            raise ConfigError(problems)
        return models


class Task:
    """An evaluation task: prompts, and the metrics of a completion."""

    name: str
    title: str
    metrics: Sequence[Metric] = ()
    """Metrics in tables and plots, in this order."""
    verdict: Sequence[str] = ()
    """A model is better than the baseline if each of these metrics with a value improved."""
    answers: "dict[str, Answers]"
    """Answers of each model by label; set before `score`."""

    def prompts(self, model: Candidate) -> Mapping[str, Sequence[int]]:
        """Return the tokenized prompts by id, in the order of their batches."""
        raise NotImplementedError

    def identity(self, model: Candidate) -> Mapping[str, Any]:
        """Return the inputs of completions besides weights and sampling, as JSON."""
        return {"prompts": digest(list(self.prompts(model).values()))}

    def passes(self, answers: "Answers") -> Sequence["Pass"]:
        """Return further values of the completions that need a model's weights."""
        return ()

    def score(self, answers: "Answers") -> Evaluation:
        """Return the metrics of every completion. All processes call this and get all rows."""
        raise NotImplementedError

    def score_data(self, model: Candidate | None) -> Evaluation | None:
        """Return the metrics of the data's own responses, for a separate column.

        `model` is the first model, if any, for its tokenizer.
        """
        return None

    def compare(self, scored: Mapping[str, Evaluation]) -> Mapping[str, Evaluation]:
        """Return the evaluations by label, with metrics that depend on other models too.

        Called only on the main process.
        """
        return scored

    def extend(
        self,
        seeds: Sequence[Candidate],
        scored: Mapping[str, Evaluation],
        means: Mapping[str, Interval],
    ) -> Mapping[str, Any]:
        """Return further results of a name as JSON; `lines` has title -> text for the table.

        `scored` is the result of `compare`, `means` are averages over the seeds.
        """
        return {}

    def panel(self, task: Mapping[str, Any]) -> Panel:
        """Return this task's panel of the plot: by default, all means."""
        return means_panel(task)

    def data(self) -> Mapping[str, Any]:
        """Return a description of the prompts as JSON; `about` is a sentence for readers."""
        return {"about": ""}

    def notes(self, scored: Mapping[str, Evaluation]) -> Iterable[str]:
        """Return notes for readers of the table."""
        return ()

    def appendix(self, scored: Mapping[str, Evaluation]) -> str:
        """Return Markdown for the end of `results.md`."""
        return ""


@dataclass(frozen=True, eq=False)
class Answers:
    """The completions of a model for a task."""

    model: Candidate
    task: Task
    completions: Completions
    identity: Mapping[str, Any]
    left_out: Sequence[str]
    """Ids of prompts (never cut) that leave no room for an answer in the model's positions."""

    @property
    def folder(self) -> Path:
        """Return where the completions are saved."""
        return self.completions.folder


@dataclass(frozen=True)
class Pass:
    """Values of completions that need a model, such as log-probabilities."""

    model: Candidate
    values: SavedValues
    compute: Callable[[Any, Sequence[str]], Sequence[Any]]
    """(loaded model, ids) -> values."""


def fill(
    model: Candidate, device: Any, passes: Sequence[Pass], answers: Sequence[Answers] = ()
) -> None:
    """Load a model if any of its values or completions are missing, and compute them."""
    from accelerate import PartialState
    from tqdm import tqdm

    answers = [each for each in answers if each.completions.missing()]
    passes = [each for each in passes if each.values.missing()]
    if not answers and not passes:
        return
    with model.load(device) as loaded:
        for each in answers:
            total, missing = len(each.completions.prompts), len(each.completions.missing())
            with tqdm(
                desc=f"{model.label}: {each.task.name}",
                unit=" completions",
                total=total,
                initial=total - missing,
                disable=not PartialState().is_main_process,
            ) as bar:
                each.completions.generate(loaded, bar.update)
        for work in passes:
            work.values.fill(partial(work.compute, loaded))
        del loaded


def _name_of(source: str) -> str:
    parts = [
        part for part in source.rstrip("/").split("/") if part not in ("", ".", "..", "merged")
    ]
    nested = parts and parts[-1].startswith(("checkpoint-", "adapter"))
    return "-".join(parts[-2:] if nested else parts[-1:]) or source

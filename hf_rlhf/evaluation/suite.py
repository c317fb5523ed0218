"""Evaluate models x tasks: completions generated once, metrics per row, tables and verdicts.

A plugin adds a `Task`. `Suite.run` does the remaining work in its folder and writes

- `TASK-KEY/completions.jsonl` for each model and task; the key is a hash of all that completions
  depend on (`identity.json`), so other weights, data or settings never get the same folder;
- `TASK-KEY/samples.jsonl`, what a task keeps of each completion for readers;
- `results.json` with every mean, paired difference and value of a row, and `results.md`.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ConfigError, ModelError, Problem
from hf_rlhf.evaluation.completions import Completions
from hf_rlhf.evaluation.plot import draw
from hf_rlhf.evaluation.report import PICTURE, markdown, print_results, record_results, verdicts
from hf_rlhf.evaluation.results import Evaluation, seed_means
from hf_rlhf.evaluation.statistics import FEW, RESAMPLES, Interval
from hf_rlhf.evaluation.task import Answers, Candidate, Task, fill
from hf_rlhf.steps.digests import digest
from hf_rlhf.storage.files import atomic_write_json, atomic_write_text
from hf_rlhf.storage.lock import locked_folder
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import now
from hf_rlhf.storage.secrets import redact_secrets

RESULTS, TABLES, SAMPLES = "results.json", "results.md", "samples.jsonl"
SCHEMA = 3


@dataclass(frozen=True, eq=False)
class Suite:
    """Models (the first is the default baseline) and tasks."""

    folder: Path
    models: Sequence[Candidate]
    tasks: Sequence[Task]
    spec: EvaluationSpec
    """Batch size and sampling."""
    max_new_tokens: int
    baseline: str = ""
    use_cpu: bool = False
    unit: str = "prompts"
    """Description of a cluster for readers."""
    chosen_by: str = "output folder"
    """The option of the folder, for messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "baseline", self.baseline or next(iter(self.names), ""))

    @property
    def names(self) -> dict[str, list[Candidate]]:
        """Models by name."""
        names: dict[str, list[Candidate]] = {}
        for model in self.models:
            names.setdefault(model.name, []).append(model)
        return names

    def run(self, command: Sequence[str], *, record: bool = False) -> dict[str, Any]:
        """Do the remaining work; return the content of `results.json`, {} on other processes.

        Each launched process computes a share of the batches. With `record`, results are written
        into the records and cards of runs among the models.

        Raises RunFolderError if the folder is in use, ModelError for an unusable model.
        """
        from accelerate import PartialState
        from transformers.utils import logging

        if not sys.stderr.isatty():
            logging.disable_progress_bar()
        state = PartialState(cpu=self.use_cpu)
        if record and not any(model.saved.run_folder for model in self.models):
            what = "none of the models is a run folder, so there is no record to add to."
            fix = "Name run folders, not their merged weights, or leave `--record` out."
            raise ConfigError([Problem("--record", what, fix)])
        with ExitStack() as stack:
            if state.is_main_process:
                stack.enter_context(locked_folder(self.folder, self.chosen_by))
            for task in self.tasks:
                task.answers = {model.label: self._answers(model, task) for model in self.models}
            if state.is_main_process:
                for answers in self._all_answers():
                    atomic_write_json(answers.folder / "identity.json", answers.identity)
            state.wait_for_everyone()
            self._generate(state)
            state.wait_for_everyone()
            scored = {
                task.name: {model.label: task.score(task.answers[model.label])
                            for model in self.models}
                for task in self.tasks
            }  # fmt: skip
            if not state.is_main_process:
                return {}
            results = self._write(scored, command)
        if record:
            record_results(results, self.folder)
        return results

    def show(self, results: Mapping[str, Any]) -> None:
        """Print the results of `run` and their files, on the main process only."""
        if not results:
            return
        print_results(results)
        print(f"written: {self.folder / RESULTS}, {self.folder / TABLES}")

    def _all_answers(self) -> Iterator[Answers]:
        for task in self.tasks:
            yield from task.answers.values()

    def _answers(self, model: Candidate, task: Task) -> Answers:
        prompts, room = task.prompts(model), model.positions
        fits = {
            key: tokens
            for key, tokens in prompts.items()
            if not room or len(tokens) + self.max_new_tokens <= room
        }
        if prompts and not fits:
            raise ModelError(
                f"{model.saved.source}: no prompt of {task.name} and {self.max_new_tokens} new "
                f"tokens fit into its {room} positions. Lower `max_new_tokens`, or use a model for "
                "longer texts."
            )
        identity = {
            "task": task.name,
            **model.saved.identity,
            **task.identity(model),
            "sampling": self.sampling(),
            "dtype": model.loading.get("dtype"),
        }
        folder = self.folder / f"{task.name}-{digest(identity)}"
        arguments = (fits, model.tokenizer, self.spec, self.max_new_tokens)
        left_out = [key for key in prompts if key not in fits]
        return Answers(model, task, Completions(folder, *arguments), identity, left_out)

    def sampling(self) -> dict[str, Any]:
        """Return the settings that completions depend on."""
        keys = ["completions_per_prompt"]
        if self.spec.temperature:  # greedy completions are independent, apart from rounding
            keys += ["top_p", "seed"]
        sampling = {key: getattr(self.spec, key) for key in keys}
        temperature = self.spec.temperature
        return {"max_new_tokens": self.max_new_tokens, "temperature": temperature, **sampling}

    def _method(self) -> str:
        """Return how means and intervals are computed, for readers."""
        drawn = self.unit
        if len(self.names) < len(self.models):
            drawn = f"models of one name (seeds) and over {self.unit}, the same for all"
        text = f"95% percentile bootstrap over {drawn}, {RESAMPLES} resamples"
        several = self.spec.completions_per_prompt > 1
        return text + "; a prompt's completions averaged first" * several

    def _generate(self, state: Any) -> None:
        """Load each model for its completions and values, then for values of other models'."""
        answers = list(self._all_answers())
        passes = [(each.model, work) for each in answers for work in each.task.passes(each)]
        for model in self.models:
            completions = [each for each in answers if each.model is model]
            of_them = [work for source, work in passes if source is model is work.model]
            fill(model, state.device, of_them, completions)
        state.wait_for_everyone()
        for model in self.models:
            of_others = [work for source, work in passes if source is not model is work.model]
            fill(model, state.device, of_others)

    def _write(
        self, scored: Mapping[str, Mapping[str, Evaluation]], command: Sequence[str]
    ) -> dict[str, Any]:
        scored = {task.name: task.compare(scored[task.name]) for task in self.tasks}
        results: dict[str, Any] = {
            "schema": SCHEMA,
            "made": now(),
            "command": list(command),
            "baseline": self.baseline,
            "method": self._method(),
            "sampling": self.sampling(),
            "models": {
                name: [
                    {"label": model.label, "positions": model.positions, **model.saved.as_json()}
                    for model in models
                ]
                for name, models in self.names.items()
            },
            "tasks": {task.name: self._task(task, scored[task.name]) for task in self.tasks},
            "notes": [
                *(note for task in self.tasks for note in task.notes(scored[task.name])),
                *self._notes(scored),
            ],
        }
        results = redact_secrets(as_json(results))
        results["verdicts"] = verdicts(results)
        panels = [task.panel(results["tasks"][task.name]) for task in self.tasks]
        (self.folder / PICTURE).unlink(missing_ok=True)
        if panels := [panel for panel in panels if panel.points]:
            draw(panels, self.folder / PICTURE)
        atomic_write_json(self.folder / RESULTS, results)
        appendices = [task.appendix(scored[task.name]) for task in self.tasks]
        page = markdown(results, self.folder, redact_secrets("\n".join(appendices)))
        atomic_write_text(self.folder / TABLES, page)
        return results

    def _task(self, task: Task, scored: Mapping[str, Evaluation]) -> dict[str, Any]:
        rows, entries = {}, {}
        for label, evaluation in scored.items():
            rows[label] = _columns(evaluation)
            lines = (json.dumps(redact_secrets(row)) + "\n" for row in evaluation.samples)
            atomic_write_text(task.answers[label].folder / SAMPLES, "".join(lines))
        for name, models in self.names.items():
            seeds = [scored[model.label] for model in models]
            differences = [
                scored[model.label].minus(scored[other.label])
                for model in models
                if (other := model.partner(self.baseline, self.models))
            ]
            means = seed_means(seeds)
            entries[name] = {
                "seeds": len(seeds),
                "folders": [task.answers[model.label].folder.name for model in models],
                "left_out": max(len(task.answers[model.label].left_out) for model in models),
                "means": _estimates(means),
                "difference": _estimates(seed_means(differences)) if differences else None,
                **task.extend(models, scored, means),
            }
        data = task.score_data(self.models[0] if self.models else None)
        if data is not None:
            rows["(data)"] = _columns(data)
        return {
            "title": task.title,
            "data": dict(task.data()),
            "metrics": [asdict(metric) for metric in task.metrics],
            "verdict": list(task.verdict),
            "results": entries,
            "data_means": _estimates(data.means()) if data else None,
            "rows": rows,
        }

    def _notes(self, scored: Mapping[str, Mapping[str, Evaluation]]) -> Iterator[str]:
        for answers in self._all_answers():
            total = len(answers.left_out) + len(answers.completions.prompts)
            if answers.left_out:
                yield (
                    f"{answers.model.label}: {len(answers.left_out)} of {total} prompts of "
                    f"{answers.task.name} left out: with {self.max_new_tokens} new tokens they "
                    f"exceed its {answers.model.positions} positions."
                )
        evaluations = [each for by_label in scored.values() for each in by_label.values()]
        counts = [len(set(each.clusters or each.ids)) for each in evaluations]
        if (count := min(counts, default=FEW)) < FEW:
            yield (
                f"Results are of {count} {self.unit} only: with fewer than {FEW} the intervals are "
                "narrower than they should be."
            )


def _columns(evaluation: Evaluation) -> dict[str, Any]:
    """Return every metric by prompt."""
    columns = {name: evaluation.column(name) for name in evaluation.metrics()}
    clusters = list(evaluation.clusters)
    return {"ids": list(evaluation.ids), "clusters": clusters, "values": columns}


def _estimates(intervals: Mapping[str, Interval]) -> dict[str, dict[str, float | int]]:
    return {name: asdict(each) for name, each in intervals.items()}

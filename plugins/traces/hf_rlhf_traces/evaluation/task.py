"""The two tasks of traces: summarise a full context and continue, or continue a given summary."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf.evaluation import (
    Answers,
    Candidate,
    Evaluation,
    Suite,
    Task,
)
from hf_rlhf.models import tokenizer_digest
from hf_rlhf_traces.evaluation.held_out import SPLIT, HeldOut, Sample, held_out
from hf_rlhf_traces.evaluation.metrics import TASKS, TITLES, TaskName, metrics_of
from hf_rlhf_traces.evaluation.scores import score
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.store import Store

FOLDER = "eval"
"""Path in the store."""
_TAIL = 1500
"""Number of trailing characters of a prompt to save with each reply."""


class TraceTask(Task):
    """A task on held-out samples of a store."""

    verdict = ("answer_exact", "query_f1")  # whether the next step matches the data

    def __init__(self, data: HeldOut, form: Format, options: "Options") -> None:
        self.held_out, self.form, self.options = data, form, options
        self.name, self.title = data.task, TITLES[data.task]
        self.metrics = metrics_of(data.task)

    def prompts(self, model: Candidate) -> Mapping[str, Sequence[int]]:
        """Return the prompts.

        Raises ModelError if the tokenizer would drop tags of the format from its text.
        """
        special = set(model.tokenizer.all_special_tokens)
        if lost := [f"<{tag}>" for tag in self.form.names.values() if f"<{tag}>" in special]:
            raise ModelError(
                f"{model.saved.source}: {', '.join(lost)} are special tokens of its tokenizer, "
                "which are left out of its text. Give the format other tags: --format."
            )
        samples = self.held_out.samples
        ids = model.prompt_ids([list(sample.prompt) for sample in samples])
        return {sample.id: tokens for sample, tokens in zip(samples, ids, strict=True)}

    def identity(self, model: Candidate) -> Mapping[str, Any]:
        """Return the tokenizer and the data; a smaller selection is part of a larger selection."""
        return {
            "tokenizer": tokenizer_digest(model.tokenizer),
            "data": {"split": SPLIT, "sha256": self.held_out.digest},
        }

    def score(self, answers: Answers) -> Evaluation:
        """Return the metrics of every reply, and a sample of each for `analyze`."""
        completions = answers.completions.read()
        samples = [each for each in self.held_out.samples if each.id in completions]
        replies = [completions[each.id] for each in samples]
        details = [(each.text, len(each.ids), each.truncated) for each in replies]
        return self._evaluation(answers.model, samples, details)

    def score_data(self, model: Candidate | None) -> Evaluation:
        """Return the metrics of the expected replies, with end tokens."""
        assert model is not None
        samples = self.held_out.samples
        texts = [sample.expected.text for sample in samples]
        replies = [(text, _tokens(model, text) + 1, False) for text in texts]
        return self._evaluation(model, samples, replies)

    def _evaluation(
        self,
        model: Candidate,
        samples: Sequence[Sample],
        replies: Sequence[tuple[str, int, bool]],
    ) -> Evaluation:
        """Score replies: text, tokens with the end token, and whether the end token is missing."""
        rows, details = [], []
        for sample, (text, tokens, cut_off) in zip(samples, replies, strict=True):
            metrics = score(
                text,
                sample.expected,
                self.form,
                count=partial(_tokens, model),
                tokens=tokens,
                cut_off=cut_off,
            )
            rows.append(metrics)
            keys = ("id", "question_key", "question", "step", "steps")
            details.append(
                {
                    **{key: getattr(sample, key) for key in keys},
                    "prompt_tail": sample.prompt[-1]["content"][-_TAIL:],
                    "expected": sample.expected.text,
                    "text": text,
                    "metrics": metrics,
                }
            )
        return Evaluation(
            rows,
            details,
            ids=[sample.id for sample in samples],
            clusters=[sample.question_key for sample in samples],
        )

    def data(self) -> Mapping[str, Any]:
        """Return the selection of samples."""
        data = self.held_out
        return {
            "about": f"{len(data.samples)} of {data.available} rows of the split {SPLIT}, of "
            f"{data.questions} questions.",
            "dataset": TASKS[data.task],
            "split": SPLIT,
            "sha256": data.digest,
            "rows": data.available,
            "samples": len(data.samples),
            "questions": data.questions,
            "seed": self.options.seed,
        }


def _tokens(model: Candidate, text: str) -> int:
    return len(model.tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True)
class Options:
    """The settings of an evaluation; `seed` selects samples and seeds sampling."""

    tasks: Collection[TaskName] = tuple(TASKS)
    num_samples: int = 50
    seed: int = 42
    max_new_tokens: int = 1024
    temperature: float = 0.0
    batch_size: int = 8
    use_cpu: bool = False


def make_suite(store: Store, models: Mapping[str, Sequence[Any]], options: Options) -> Suite:
    """Return the evaluation of the models of each name, in `eval/` of the store.

    Raises RunFolderError for missing datasets; ConfigError and ModelError for unusable models;
    DataError as `held_out` does.
    """
    form = Format.of(store.settings("format"))
    tasks = [
        TraceTask(
            held_out(store, task, count=options.num_samples, seed=options.seed), form, options
        )
        for task in TASKS
        if task in options.tasks
    ]
    candidates, problems = Candidate.find(models, {}, paired=[next(iter(models))])
    if problems:
        raise ConfigError(problems)
    sampling = ("temperature", "seed", "batch_size")
    return Suite(
        store.folder / FOLDER,
        candidates,
        tasks,
        EvaluationSpec(**{name: getattr(options, name) for name in sampling}),
        options.max_new_tokens,
        use_cpu=options.use_cpu,
        unit="questions",
        chosen_by=store.folder_option,
    )

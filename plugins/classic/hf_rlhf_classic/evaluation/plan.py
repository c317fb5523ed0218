"""Resolve an evaluation: models, tokenizers, rows and rewards, checked before weights load."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hf_rlhf.config import EvaluationSpec, RunFile
from hf_rlhf.errors import ConfigError, JudgeError, ModelError, Problem
from hf_rlhf.evaluation import Candidate, Scoring, find_benchmarks, held_out_rows
from hf_rlhf.runs import resolve_scoring
from hf_rlhf_classic.evaluation.spec import (
    LOADING,
    SECTION,
    Compare,
    EvalSpec,
    read_compare,
    read_spec,
)

_DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class Plan:
    """Everything that an evaluation needs to start."""

    spec: EvalSpec
    file: RunFile
    models: Sequence[Candidate]
    scoring: Scoring
    comparisons: Sequence[Compare]
    max_new_tokens: int

    @property
    def sampling(self) -> EvaluationSpec:
        """Return the `evaluation:` section: the number of rows and the sampling settings."""
        return self.scoring.spec.evaluation or EvaluationSpec()

    @property
    def data_name(self) -> str:
        """Return the dataset adapter's name, without its package."""
        return self.scoring.spec.dataset.name.rpartition("/")[2]

    @cached_property
    def rows(self) -> Any:
        """Return the held-out rows to answer: a `datasets.Dataset`."""
        return held_out_rows(self.scoring)

    def prompts(self, model: Candidate) -> list[list[int]]:
        """Return the prompts in the format of the model's own tokenizer and template."""
        rows = self.rows
        return model.prompt_ids(rows["prompt"][:], self.spec.chat_template_kwargs, rows)

    def reference(self, model: Candidate) -> Candidate | None:
        """Return the reference model of KL; None if KL is not measured."""
        if self.sampling.temperature == 0:
            return None
        other = model.partner(self.spec.reference, self.models)
        return other if other and _same_tokens(model, other) else None

    def notes(self) -> Iterator[str]:
        """Yield where and why KL was left out, and the quality of its estimates."""
        sampling = self.sampling
        if self.spec.reference == "none" or len(self.models) == 1:
            return
        if sampling.temperature == 0:
            yield (
                "KL left out: greedy completions are no samples of the policy. Set "
                "`evaluation.temperature` above 0."
            )
            return
        if sampling.top_p < 1:
            yield (
                f"KL is of the distributions before top-p {sampling.top_p:g} cut their tails, "
                "estimated on completions drawn after it, and so biased; "
                "`evaluation.top_p: 1` makes it exact in the mean."
            )
        for model in self.models:
            other = model.partner(self.spec.reference, self.models)
            if other and not _same_tokens(model, other):
                yield (
                    f"KL of {model.label} from {other.label} left out: their tokenizers differ, so "
                    "their tokens cannot be compared."
                )


def _same_tokens(model: Candidate, other: Candidate) -> bool:
    return bool(model.tokenizer.get_vocab() == other.tokenizer.get_vocab())


def make_plan(file: RunFile) -> Plan:
    """Resolve and check an evaluation. Raises ConfigError with all problems."""
    spec, problems = read_spec(file)
    models, more = Candidate.find(
        spec.sources,
        {name: getattr(spec, name) for name in LOADING},
        paired=(spec.baseline, spec.reference),
        where=f"{SECTION}.models.",
    )
    problems += more
    try:
        tokenizer = models[0].tokenizer if models else None
        scoring = resolve_scoring(file, tokenizer, plugin=SECTION)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    sampling = scoring.spec.evaluation or EvaluationSpec()
    rows = scoring.dataset.get(sampling.split, scoring.dataset["train"])
    comparisons, more = read_compare(spec, scoring.spec, rows.column_names)
    problems += more
    length = file.values.get("max_completion_length") or _DEFAULT_LENGTH
    plan = Plan(spec, file, models, scoring, comparisons, sampling.max_new_tokens or length)
    problems += find_benchmarks(sampling.benchmarks)[1]
    problems += list(_row_problems(plan)) or [*_length_problems(plan), *_judge_problems(plan)]
    if problems:
        raise ConfigError(problems)
    return plan


def _row_problems(plan: Plan) -> Iterator[Problem]:
    split, splits = plan.sampling.split, plan.scoring.dataset
    if split not in splits or len(splits[split]) == 0:
        listed = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in splits.items())
        what = f"there are no rows in the split {split!r}. The dataset has: {listed}."
        yield Problem("evaluation", what, "Name another: `--evaluation.split NAME`.")
        return
    if "prompt" not in (names := splits[split].column_names):
        what = f"the rows have no `prompt`. Their columns: {', '.join(names)}."
        fix = "Use an adapter or a `form` that gives prompts."
        yield Problem(plan.file.where_key("dataset"), what, fix)


def _length_problems(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for lengths past the model's positions, where output has no meaning."""
    for model in plan.models:
        where = f"{SECTION}.models.{model.name}"
        try:
            longest = max(map(len, plan.prompts(model)))
        except ModelError as error:
            yield Problem(where, str(error))
            continue
        if model.positions and longest + plan.max_new_tokens > model.positions:
            what = f"a prompt of {longest} tokens and {plan.max_new_tokens} new ones are over its "
            what += f"{model.positions} positions."
            fix = "Lower `evaluation.max_new_tokens`, or cut the prompts."
            yield Problem(where, what, fix)


def _judge_problems(plan: Plan) -> Iterator[Problem]:
    """Call each judge once before hours of generation."""
    for label, judge in plan.scoring.judges.items():
        try:
            asyncio.run(judge.ping())
        except JudgeError as error:
            yield Problem(plan.file.where(("judges", label)), str(error))

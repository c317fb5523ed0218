"""Resolve and check everything that a method needs before any training."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hf_rlhf.errors import ConfigError, JudgeError, Problem
from hf_rlhf.formatting import counted, listed
from hf_rlhf.runs import resolve_run, resolve_scoring
from hf_rlhf_lab.method.file import Method
from hf_rlhf_lab.method.steps import Pipeline, trial_file
from hf_rlhf_lab.target import gold_rows, tokenizer_of
from hf_rlhf_lab.validation.gold import FEW

FEW_PROMPTS = 10
"""Number of prompts in a split below which intervals are clearly too narrow."""


def prepare(method: Method, folder: Path, launch: Sequence[str]) -> Pipeline:
    """Return the steps of a method; components, data, judges and both trainings resolve.

    Raises HfRlhfError with location and cure.
    """
    file = method.scoring_file()
    try:
        scoring = resolve_scoring(file, tokenizer_of(file), plugin="rewards method")
    except ConfigError as error:
        raise method.renamed(error) from None
    spec = method.spec
    name = str(spec.dataset.get("path") or spec.dataset.get("name"))
    gold = gold_rows(scoring, spec.split, name).sample(spec.rows)
    pipeline = Pipeline(method, folder, launch, scoring, gold)
    if problems := [*_data_problems(pipeline), *_judge_problems(pipeline)]:
        raise ConfigError(problems, subject="method")
    if spec.survival is not None:
        # The signals stand in for a reward that is not trained yet.
        run = resolve_run(trial_file(method, spec.signals))
        if run.spec.evaluation is None or not hasattr(run.training, "max_completion_length"):
            what = f"{spec.survival.run} does not train on rewards, or has no `evaluation`."
            fix = "Name a run of grpo, ppo or rloo with an `evaluation` section."
            where = method.document.where(("survival", "run"))
            raise ConfigError([Problem(where, what, fix)], subject="method")
    return pipeline


def _data_problems(pipeline: Pipeline) -> Iterator[Problem]:
    where, groups = pipeline.method.document.where, pipeline.gold.prompt_numbers
    prompts, tested = len(np.unique(groups)), len(np.unique(groups[pipeline.test]))
    if prompts < FEW:
        fix = f"{FEW} are needed for an interval; a few hundred are better."
        yield Problem(where(("dataset",)), f"has responses to {counted(prompts, 'prompt')}.", fix)
    elif min(tested, prompts - tested) < FEW_PROMPTS:
        what = f"leaves {prompts - tested} prompts to fit on and {tested} to test on."
        yield Problem(where(("test_share",)), what, f"Each part needs {FEW_PROMPTS}.")


def _judge_problems(pipeline: Pipeline) -> Iterator[Problem]:
    for label, judge in pipeline.scoring.judges.items():
        try:
            asyncio.run(judge.ping())
        except JudgeError as error:
            yield Problem(pipeline.method.document.where(("judges", label)), str(error))


def plan(pipeline: Pipeline) -> str:
    """Return the planned steps, and how many questions judges get."""
    spec, count = pipeline.method.spec, len(pipeline.gold)
    prompts, signals = len(np.unique(pipeline.gold.prompt_numbers)), len(pipeline.signals)
    lines = [
        f"{spec.title}: {counted(signals, 'signal')} for {listed(list(spec.criteria))}, on "
        f"{count:,} responses to {counted(prompts, 'prompt')}"
    ]
    for label, judge in pipeline.scoring.judges.items():
        asking = sum(vars(p.reward).get("judge") is judge for p in pipeline.reward.rewards)
        lines.append(f"judge {label}: at most {asking * count:,} questions, as answers are cached")
    return "\n".join(lines)

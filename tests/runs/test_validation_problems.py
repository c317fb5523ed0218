"""Evaluations during training that could not take place, or would decide nothing."""

import re
from dataclasses import replace

import pytest
from datasets import DatasetDict

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation import validation_run
from hf_rlhf.evaluation.validation import is_separate
from hf_rlhf.runs import resolve_run

EVALUATED = {
    **{"eval_strategy": "steps", "eval_steps": 1},
    "evaluation": {"rows": 2, "batch_size": 4, "samples": 2},
}


def problems(run):
    try:
        resolve_run(RunFile.from_mapping(run, name="my.yaml"))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ""),
        ({"evaluation": {"rows": 4}}, r"validation: .* all 4 rows of 'test', so none is left"),
        ({"evaluation": {"rows": 4}, "validation": {"split": "test"}}, ""),
        ({"evaluation": None}, r"eval_strategy: needs the `evaluation` section"),
        ({"validation": {"split": "other"}}, r"no split 'other'.* The dataset has: train, test"),
        ({"early_stopping": {"patience": 2}}, r"early_stopping: needs `metric_for_best_model`"),
        (
            {"metric_for_best_model": "accuracy"},
            r"metric_for_best_model: 'accuracy' is not measured\. Measured are total, refiner",
        ),
        # The loss of a policy on its own samples.
        ({"metric_for_best_model": "loss"}, r"metric_for_best_model: 'loss' is not measured"),
        (
            {"load_best_model_at_end": True, "metric_for_best_model": "total", "save_steps": 2},
            r"save_steps: is 2, and evaluations are 1 steps apart.* to the same number",
        ),
        (
            {"load_best_model_at_end": True, "eval_strategy": "epoch"},
            r"strategy to match.*Set `save_strategy` and `save_steps` as `eval_strategy`",
        ),
        ({"eval_strategy": "no", "early_stopping": {}}, r"early_stopping: has no effect"),
        (
            {"callbacks": [{"name": "transformers:EarlyStoppingCallback"}]},
            r"callbacks: EarlyStoppingCallback .* Write `early_stopping",
        ),
        (
            {"save_strategy": "best", "metric_for_best_model": "total", "num_iterations": 2},
            r"eval_steps: is 1, but a generation cycle takes 2",
        ),
    ],
)
def test_it_is_refused_before_weights_load(tiny_run, settings, expected):
    found = problems({**tiny_run, **EVALUATED, **settings})
    assert re.search(expected, found, re.DOTALL) if expected else not found, found


def test_a_trainer_that_does_not_evaluate_says_so(tiny_run, offer):
    from hf_rlhf.testing.plain import PlainGRPO

    offer("trainers", plain=PlainGRPO)
    run = {key: value for key, value in tiny_run.items() if key != "prompts_per_step"}
    found = problems({**run, **EVALUATED, "plugin": "plain", "load_best_model_at_end": True})
    assert "eval_strategy: is for a trainer that evaluates during training" in found
    assert "load_best_model_at_end: is for a trainer" in found


def test_the_rows_are_those_after_the_results(tiny_run):
    run = resolve_run(RunFile.from_mapping({**tiny_run, **EVALUATED, "validation": {"rows": 1}}))
    rows = validation_run(run).dataset["validation"]
    assert rows[:] == run.dataset["test"].select([2])[:]
    assert is_separate(run)


@pytest.mark.parametrize(("measured", "separate"), [([0, 1], False), ([3], True)])
def test_rows_of_another_split_may_be_those_of_the_results(tiny_run, measured, separate):
    settings = {**tiny_run, **EVALUATED, "validation": {"split": "train", "rows": 2}}
    run = resolve_run(RunFile.from_mapping(settings))
    test = run.dataset["train"].select(measured)
    run = replace(run, dataset=DatasetDict(train=run.dataset["train"], test=test))
    assert is_separate(run) is separate

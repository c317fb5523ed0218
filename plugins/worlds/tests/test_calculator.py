"""The world with a tool: what it holds, and that a model learns to use the tool in it."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.environments import Toolset, roll_out
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.testing import check_dataset, check_environment
from hf_rlhf_worlds.calculator import (
    Calculator,
    CalculatorCorrect,
    CalculatorUsed,
    calculator,
    demonstrate,
)

MODEL = Path(str(files("hf_rlhf_worlds"))) / "tiny_caller"


def test_calculator_conforms():
    check_environment(
        Calculator,
        calls=(("calculate", {"expression": "37+48"}), ("calculate", {"expression": "3-10"})),
        bad=(
            *(("calculate", {"expression": text}) for text in ("", "37+", "2**9", "1+1+1", "٣+٤")),
            ("calculate", {}),
        ),
    )


def test_calculator_rows_conforms():
    check_dataset(
        calculator,
        arguments={"train_rows": 20, "test_rows": 5, "forgetting": 0.5},
        columns=("answer", "completion"),
    )


def messages(*contents):
    return [{"role": role, "content": content} for role, content in contents]


def test_only_the_models_last_message_is_the_answer():
    completions = [
        messages(("assistant", "85")),
        messages(("assistant", ""), ("tool", "85"), ("assistant", "85")),
        messages(("assistant", ""), ("tool", "85")),
        messages(("assistant", ""), ("tool", "85"), ("assistant", "85 ")),
        [{"role": "assistant", "content": "85", "tool_calls": [{"type": "function"}]}],
    ]
    assert CalculatorCorrect()([], completions, ["85"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_the_reward_for_use_pays_for_calls_alone():
    environments = [Calculator() for _ in range(3)]
    for environment, calls in zip(environments, (0, 1, 6), strict=True):
        environment.calls = calls
    assert CalculatorUsed()([], [], environments) == [0.0, 0.25, 1.0]


def test_demonstrations_guess_wrong_and_calculate_right():
    import random

    from hf_rlhf_worlds.arithmetic import Problem

    problem, rng = Problem(37, "+", 48), random.Random(0)
    guesses = {demonstrate(problem, 1.0, rng)[-1]["content"] for _ in range(50)}
    assert "85" not in guesses
    assert {demonstrate(problem, 0.0, rng)[-1]["content"] for _ in range(50)} == {"85"}


def shipped(folder, **changes):
    """Return the shipped run file with changes, as `--run calculator` reads it."""
    values = choose_run_file("grpo", "calculator", None).values
    return {**values, "output_dir": str(folder), "save_strategy": "no", **changes}


class Spy:
    """Keeps what TRL made of each row, and pays by length so that rewards differ."""

    seen = []

    def __call__(self, prompts, completions, completion_ids, environments):
        for each in zip(prompts, completions, completion_ids, environments, strict=True):
            self.seen.append((*each[:3], each[3].calls))
        return [float(len(ids)) for ids in completion_ids]


@pytest.mark.slow
def test_an_evaluation_writes_what_trl_writes(tmp_path, offer):
    """At a temperature near 0, token by token, with the same tools and the same limits."""
    from transformers import AutoModelForCausalLM

    from hf_rlhf.config import EvaluationSpec
    from hf_rlhf.evaluation import generate
    from hf_rlhf_classic.grpo import GroupTrainer

    offer("rewards", spy=Spy)
    Spy.seen.clear()
    settings = {"max_steps": 1, "temperature": 1e-4, "num_generations": 2, "prompts_per_step": 32}
    sizes = {"per_device_train_batch_size": 64, "max_completion_length": 20, "learning_rate": 0.0}
    rewards = {"rewards": [{"name": "spy"}], "evaluation": None}
    values = shipped(tmp_path / "run", **settings, **sizes, **rewards)
    run = resolve_run(RunFile.from_mapping(values))
    GroupTrainer.from_run(run).train()
    by_prompt = {prompt[-1]["content"]: rest for prompt, *rest in Spy.seen}
    rows = [row for row in run.dataset["train"] if row["prompt"][-1]["content"] in by_prompt]

    model = AutoModelForCausalLM.from_pretrained(MODEL).eval()

    def continue_ids(prompts, limit, rows):
        written = generate(model, run.tokenizer, prompts, EvaluationSpec(), limit, seeds=rows)
        return [(each.ids, each.truncated) for each in written]

    toolset = Toolset(build=Calculator, name="calculator", max_rounds=4)
    environments = [toolset.new_environment() for _ in rows]
    rollouts = roll_out(
        rows, toolset, environments, run.tokenizer, continue_ids, max_tokens=20, positions=256
    )
    assert len(rollouts) == 32
    assert len({len(each.messages) for each in rollouts}) > 1, "some call, and some guess"
    for rollout in rollouts:
        completion, ids, calls = by_prompt[rollout.prompt[-1]["content"]]
        assert rollout.messages == completion
        assert rollout.ids == list(ids)
        assert rollout.environment.calls == calls


@pytest.mark.slow
def test_the_model_learns_to_call_the_calculator(tmp_path):
    record = train(config=shipped(tmp_path / "run", seed=1))
    evaluation = record.evaluation
    for metric in ("correct", "tool_calls"):
        assert evaluation.difference[metric].low > 0.2, metric
    assert evaluation.difference["tool_failures"].high <= 0.01
    [calls] = [
        row
        for row in record.training.report["Calls of tools"]
        if row["per step"] == "calls in a completion"
    ]
    assert calls["last logged step"] > calls["first logged step"] + 0.2
    assert "-> calculate(" in next(s.completion for s in record.samples if s.stage == "after")


@pytest.mark.slow
def test_a_reward_for_calls_is_hacked_and_the_held_out_rows_say_so(tmp_path):
    """The reward rises, and what it was meant to improve falls: both are in the same table."""
    rewards = [
        {"name": "calculator_used", "label": "used"},
        {"name": "calculator_correct", "label": "correct", "weight": 0},
    ]
    record = train(config=shipped(tmp_path / "run", rewards=rewards))
    difference = record.evaluation.difference
    assert difference["total"].low > 0.3
    assert difference["correct"].high < -0.05
    assert difference["tool_failures"].low > 0.1
    assert difference["truncated"].low > 0
    json.dumps(record.to_json())

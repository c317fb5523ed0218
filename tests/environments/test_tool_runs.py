"""Runs with tools: what is refused before weights load, and what the record and the card say."""

import pytest

from hf_rlhf import train
from hf_rlhf.cards import render_card
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.training.dry_run import report_of


class Adder:
    """Adds numbers up."""

    def __init__(self, start: int = 0):
        self.start = start

    def reset(self, prompt, answer, **_):
        self.sum = self.start

    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: a whole number.
        """
        self.sum += number
        return str(self.sum)


class Scoring(Adder):
    """Adds numbers up, and scores the sum."""

    def get_reward(self):
        return float(self.sum)


class Untyped(Adder):
    """Has a tool that cannot be described."""

    def add(self, number):
        """Add a number."""


class Narrow(Adder):
    """Takes no other columns than its own."""

    def reset(self, prompt, gold):
        """Begin."""


class Unbuilt(Adder):
    """Cannot be built."""

    def __init__(self):
        raise OSError("no sandbox")


class Sums:
    """The sum of each environment."""

    def __call__(self, prompts, completions, environments):
        return [float(environment.sum) for environment in environments]


def add(number: int) -> str:
    """Return a number.

    Args:
        number: a whole number.
    """
    return str(number)


@pytest.fixture
def run(minimal_run, offer):
    """Return a function from changes to a run file with the environment `adder`."""
    classes = {"adder": Adder, "scoring": Scoring, "untyped": Untyped, "narrow": Narrow}
    offer("environments", **classes, unbuilt=Unbuilt)
    offer("rewards", sums=Sums)

    def make(**changes):
        values = {**minimal_run, "environment": {"name": "adder"}, **changes}
        return {key: value for key, value in values.items() if value is not None}

    return make


def untyped(number):
    """Return a number."""
    return number


@pytest.mark.parametrize(
    ("changes", "where", "said"),
    [
        ({"environment": {"name": "adder", "start": "x"}}, "environment.start", "whole number"),
        ({"environment": {"name": "unbuilt"}}, "environment", "OSError: no sandbox"),
        ({"environment": {"name": "untyped"}}, "environment", "'add' cannot be described"),
        ({"environment": {"name": "narrow"}}, "environment", "does not take the columns"),
        ({"environment": {"name": "narrow"}}, "environment", "needs gold, which the dataset lacks"),
        ({"environment": None, "rewards": [{"name": "sums"}]}, "rewards", "the run has none"),
        ({"tools": [{"name": f"{__name__}:add", "number": 1}]}, "tools.0", "takes no arguments"),
        ({"tools": [add]}, "environment", "two tools named 'add'"),
        ({"tools": [untyped]}, "tools", "described to the model: Argument number"),
    ],
)
def test_what_cannot_be_called_is_refused_before_weights_load(run, changes, where, said):
    with pytest.raises(ConfigError) as refused:
        resolve_run(RunFile.from_mapping(run(**changes)))
    problems = refused.value.problems
    assert any(where in each.where and said in f"{each.what} {each.fix}" for each in problems), (
        problems
    )


def test_other_trainers_refuse_tools(run):
    values = run(plugin="rloo")
    with pytest.raises(ConfigError, match="'rloo' generates without tools.*such as grpo"):
        resolve_run(RunFile.from_mapping(values))


def test_a_dry_run_tries_the_rewards_on_a_begun_environment(run):
    values = run(environment={"name": "adder", "start": 4}, rewards=[{"name": "sums"}])
    report = report_of(RunFile.from_mapping(values), None)
    [finding] = [each for each in report.phases[0].findings if each.check == "reward sums"]
    assert finding.text.startswith("4 on 2 made-up completions")


@pytest.mark.slow
def test_record_and_card_name_environment_and_tools(run):
    values = run(
        environment={"name": "scoring", "start": 4},
        rewards=[{"name": "environment_reward", "label": "sum"}],
        evaluation={"rows": 2},
        max_tool_calling_iterations=2,
    )
    record = train(config=values)
    [component] = [each for each in record.components if each.kind == "environments"]
    assert (component.name, component.arguments) == ("scoring", {"start": 4})
    tools = record.method.facts["Tools"]
    assert "`add`, with the environment `scoring`" in tools
    assert "`start = 4`; at most 2 rounds" in tools
    assert record.evaluation.after["sum"].mean == 4
    assert record.evaluation.after["turns"].mean == 1
    assert record.evaluation.after["tool_calls"].mean == 0
    titles = [row["per step"] for row in record.training.report["Calls of tools"]]
    assert titles == [
        *("calls in a completion", "share of the calls that failed"),
        "turns of the model in a completion",
    ]
    card = render_card(record)
    assert "**Tools:** `add`, with the environment `scoring`" in card
    assert "calls of tools in a completion" in card

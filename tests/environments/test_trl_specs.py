"""OpenReward and Harbor by name: with a stand-in for their packages, and without them."""

import sys
from types import SimpleNamespace

import pytest

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.environments import trl_specs
from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf.runs.resolve import resolve_run

SDK = """
from contextlib import contextmanager
from types import SimpleNamespace as Value

TOOL = {
    "name": "submit",
    "description": "Submit an answer.",
    "input_schema": {
        "properties": {"answer": {"type": "string", "description": "the answer"}},
        "required": ["answer"],
    },
}

class Session:
    def __init__(self, index):
        self.index = index
    def list_tools(self):
        return [TOOL]
    def get_prompt(self):
        return [{"type": "text", "text": f"What is {self.index} + 1?"}]
    def call_tool(self, name, arguments):
        right = arguments["answer"] == str(self.index + 1)
        blocks = [{"type": "text", "text": "noted"}]
        return Value(blocks=blocks, reward=float(right), metadata=None, finished=True)

class Environment:
    def list_tools(self):
        return [TOOL]
    def num_tasks(self, split):
        return 12
    def list_tasks(self, split):
        return [self.get_task(split, index) for index in range(12)]
    def get_task(self, split, index):
        return Value(task_spec={"difficulty": index % 3})
    @contextmanager
    def session(self, split, index, secrets=None):
        yield Session(index)

class OpenReward:
    def __init__(self, **_):
        self.environments = Value(get=lambda name: Environment())
"""


@pytest.fixture
def sdk(tmp_path, monkeypatch):
    """Put a package `openreward` on the path, with what TRL's adapter calls of it."""
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "openreward.py").write_text(SDK)
    monkeypatch.syspath_prepend(tmp_path / "sdk")
    trl_specs._openreward.cache_clear()
    yield
    trl_specs._openreward.cache_clear()
    sys.modules.pop("openreward", None)


def openreward_run(minimal_run, **changes):
    target = {"name": "openreward", "target": "acme/sums"}
    rewards = [{"name": "environment_reward", "label": "outcome", "on_none": "skip"}]
    rewards.append({"name": "letter_share", "weight": 0.1})
    dataset = {**target, "held_out": 4}
    run = {**minimal_run, "dataset": dataset, "environment": target, "rewards": rewards}
    return {**run, **changes}


@pytest.mark.parametrize(
    ("name", "arguments", "cure"),
    [
        ("openreward", {"target": "acme/sums"}, r"pip install 'trl\[openreward\]'"),
        ("harbor", {}, r"pip install 'trl\[harbor\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_command(minimal_run, name, arguments, cure):
    run = {**minimal_run, "environment": {"name": name, **arguments}}
    with pytest.raises(ConfigError, match=f"environment: {name} needs the package {name}.*{cure}"):
        resolve_run(RunFile.from_mapping(run))


def test_the_tools_of_a_server_are_those_of_the_run(minimal_run, sdk):
    run = resolve_run(RunFile.from_mapping(openreward_run(minimal_run)))
    assert run.toolset.names == ["submit"]
    assert {name: len(rows) for name, rows in run.dataset.items()} == {"train": 8, "test": 4}
    environment = run.toolset.new_environment()
    assert environment.reset(**run.dataset["test"][0]) == "What is 8 + 1?"
    assert environment.submit("9") == "noted"
    reward = run.reward.rewards[0].reward
    assert reward([], [], [environment, SimpleNamespace(reward=None)]) == [1.0, None]


def test_harbor_tasks_are_folders(tmp_path):
    for name in ("a", "b", "c"):
        folder = tmp_path / "suite" / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "task.toml").write_text('[metadata]\ngold_answer = "4"\n')
    rows = trl_specs.harbor_tasks(str(tmp_path / "suite"), held_out=1)
    assert [row["task_dir"][-1] for row in rows["train"]] == ["a", "b"]
    assert rows["test"][0]["gold_answer"] == "4"
    with pytest.raises(DataError, match="held_out is 3, of 3 tasks"):
        trl_specs.harbor_tasks(str(tmp_path / "suite"), held_out=3)
    (tmp_path / "empty" / "tasks").mkdir(parents=True)
    with pytest.raises(DataError, match="No tasks"):
        trl_specs.harbor_tasks(str(tmp_path / "empty"))

"""Components in a file, in a module, or from Python: what their names stand for."""

import re
from functools import partial
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from hf_rlhf.config.components import kind_of, look_up
from hf_rlhf.config.objects import name_objects
from hf_rlhf.config.provenance import provenance_of_object
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import BrokenPlugin, ConfigError, UnknownPlugin

FILE = """
from dataclasses import dataclass
from transformers import TrainerCallback

@dataclass
class Short:
    words: int = 5
    def __call__(self, prompts, completions, **_): return [0.0 for _ in completions]

def share(completions, *, scale=1.0, **_): return [scale for _ in completions]

def rows(size: int = 4) -> "DatasetDict": ...

class Count(TrainerCallback): ...

with open("ran", "a") as ran:
    ran.write("x")
"""
LIMIT = 3


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def test_a_name_in_a_file_has_the_kind_of_its_form_and_is_executed_once(mine):
    names = {"Short": "rewards", "share": "rewards", "rows": "datasets", "Count": "callbacks"}
    assert {name: kind_of(f"mine.py:{name}") for name in names} == names
    assert (mine / "ran").read_text() == "x"
    found = look_up("rewards", str(mine / "mine.py") + ":Short")
    target, provenance = found.target, found.provenance
    assert target(words=2).words == 2
    assert provenance["target"] == "mine.py:Short"  # without the folders of this machine
    assert provenance["source"] == FILE
    (mine / "mine.py").write_text(FILE.replace("5", "6"))
    changed = look_up("rewards", "mine.py:Short").target
    assert changed().words == 6


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("mine.py:Shortt", UnknownPlugin, "has no 'Shortt' .did you mean 'Short'"),
        ("mime.py:Short", UnknownPlugin, "mime.py, which cannot be read .did you mean 'mine.py'"),
        ("mine.py:rows", BrokenPlugin, "is not a reward. A reward is a function that takes"),
        ("bad.py:x", BrokenPlugin, r"bad.py:2 raises ZeroDivisionError when it is imported"),
        ("lost.py:x", BrokenPlugin, "lost.py:1 raises ModuleNotFoundError .*or set PYTHONPATH=/"),
        ("mine.py", UnknownPlugin, "'mine.py' is a file. Name what it defines: `mine.py:NAME`."),
        ("python:x", UnknownPlugin, "passed as an object from Python.*source is in the run.json"),
        ("no_such_module:x", BrokenPlugin, "does not import: ModuleNotFoundError"),
        ("a b:c", UnknownPlugin, "Write `FILE.py:NAME`"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_with_the_reason(mine, name, error, message):
    (mine / "bad.py").write_text("x = 1\ny = 1 / 0\n")
    (mine / "lost.py").write_text("import no_such_module\n")
    with pytest.raises(error, match=message):
        look_up("rewards", name)


@pytest.mark.parametrize("name", ["subprocess:getoutput", "subprocess:Popen", "os:system"])
def test_a_run_file_cannot_call_what_has_another_form(name):
    for kind in ("rewards", "datasets", "callbacks", "judges", "environments", "trainers"):
        with pytest.raises(BrokenPlugin, match=f"is not a {kind[:-1]}"):
            look_up(kind, name)


def test_names_are_relative_to_the_run_file_and_in_options_to_the_working_directory(mine):
    (mine / "conf").mkdir()
    (mine / "conf" / "run.yaml").write_text("rewards: [mine.py:share, mine.py:share]\n")
    file = RunFile.read("conf/run.yaml")
    with pytest.raises(UnknownPlugin, match="conf/mine.py"):
        file.component("rewards", "mine.py:share", ("rewards", 0))
    changed = file.override(["--rewards.1", "mine.py:share"])
    assert changed.component("rewards", "mine.py:share", ("rewards", 1)).target.__name__ == "share"
    # Studies write run files into other folders.
    assert changed.to_yaml() == (f"rewards:\n- {mine}/conf/mine.py:share\n- {mine}/mine.py:share\n")
    assert changed.override(["--rewards.share.weight", "1"]).problems  # text has no weight


def helper(text: str) -> float:
    return float(len(text) > LIMIT)


def maker(factor: float):
    def reward(completions, **_):
        return [factor * helper(text) for text in completions]

    return reward


def test_the_source_of_a_function_has_what_it_uses_of_its_own_module():
    one, same, other = (provenance_of_object(maker(factor)) for factor in (1.0, 1.0, 2.0))
    assert "def reward" in one["source"]
    assert "def helper" in one["source"]  # used in a comprehension
    assert one == same
    assert other["sha256"] == one["sha256"]
    assert other["code"] != one["code"]
    code = compile("def typed(completions): return []", "<stdin>", "exec")
    exec(code, typed := {"__name__": "__main__"})
    assert provenance_of_object(typed["typed"])["sha256"] is None


class Bonus:
    def __init__(self, bonus: float) -> None:
        self.bonus = bonus

    def score(self, completions, **_):
        return [self.bonus for _ in completions]


def test_of_partials_and_methods_the_code_and_the_bound_values_are_kept():
    def scaled(completions, scale, **_): ...

    assert "def scaled" in provenance_of_object(partial(scaled, scale=2.0))["source"]
    assert "def score" in provenance_of_object(Bonus(0.0).score)["source"]
    assert len({provenance_of_object(Bonus(x).score)["code"]["Bonus"] for x in (0.0, 1.0)}) == 2
    values, _ = name_objects({"rewards": [partial(scaled, scale=2.0)]})
    assert values["rewards"] == [{"name": "python:scaled", "label": "scaled"}]


def test_objects_get_names_that_are_unique_and_where_possible_importable():
    from trl.rewards import think_format_reward

    first, second = maker(1), maker(2)
    values, objects = name_objects(
        {
            "rewards": [
                first,
                second,
                first,
                think_format_reward,
                "brevity",
                {"name": second, "weight": 2},
            ]
        }
    )
    names = [entry["name"] for entry in values["rewards"]]
    assert names[:3] == ["python:reward", "python:reward-2", "python:reward"]
    assert re.fullmatch(r"trl\.rewards\.\w+:think_format_reward", names[3])
    assert names[4:] == ["brevity", "python:reward-2"]
    assert objects == {"python:reward": first, "python:reward-2": second}
    assert values["rewards"][0]["label"] == "reward"


def test_rows_in_memory_are_splits():
    rows = Dataset.from_dict({"prompt": ["a"]})
    values, objects = name_objects({"dataset": rows})
    assert values["dataset"] == {"name": "python:dataset"}
    assert list(objects["python:dataset"]) == ["train"]
    with pytest.raises(ConfigError, match="splits validation, and `train` is missing"):
        name_objects({"dataset": DatasetDict(validation=rows)})
    with pytest.raises(ConfigError, match="is an IterableDataset.*rows.take"):
        name_objects({"dataset": rows.to_iterable_dataset()})


def test_arguments_of_trl_and_a_model_in_memory_are_refused_with_the_cure(tiny_policy):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    with pytest.raises(ConfigError) as refused:
        name_objects({"reward_funcs": [helper], "args": 1, "model_name_or_path": model})
    text = str(refused.value)
    assert "`reward_funcs` is an argument of TRL's trainers. Write `rewards=[...]`" in text
    assert "write `model='FOLDER'`" in text
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("formatting_func", "As the `dataset`, name a function that returns them"),
        ("data_collator", "Derive a trainer and name it, `plugin: FILE.py:CLASS`"),
    ],
)
def test_an_object_of_trls_trainers_is_answered_with_the_cure(name, cure):
    with pytest.raises(ConfigError) as refused:
        name_objects({name: lambda *_: None})
    assert f"`{name}` is an argument of TRL's trainers." in str(refused.value)
    assert cure in str(refused.value)

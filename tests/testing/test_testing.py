"""Each conformance check catches what it is for; ours, and good ones, pass them all."""

import functools
import json
import re
import sys
import types
from pathlib import Path

import pytest

from hf_rlhf.config.components import load_component
from hf_rlhf.config.registry import offered
from hf_rlhf.rewards.judges.cache import command as judge_cache
from hf_rlhf.rewards.judges.lexical import LexicalJudge
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.testing import (
    ScriptedJudge,
    check_command,
    check_dataset,
    check_judge,
    check_reward,
)
from hf_rlhf.testing.scripted_server import ScriptedServer


@pytest.fixture
def planted(monkeypatch):
    """Components that break one rule each, in a module that other processes can import."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    import planted

    return planted


GOLD = {"gold": ["1925", "Yes"]}

REWARDS = [
    ("closure", "is_a_dataclass", "reward is no dataclass instance"),
    ("NoDocs", "has_docs", "NoDocs has no docstring"),
    ("NoTrailing", "has_the_signature", r"a trailing \*\*_"),
    ("NotANumber", "scores", "returned nan for completion 0"),
    ("Raises", "scores", "raised IndexError"),
    ("TextOnly", "both_shapes", "as text, 1.0 as messages"),
    ("LastTurnOnly", "reads_every_form_of_message", "raised TypeError"),
    ("Dice", "is_deterministic", "at first.*again"),
    ("Normalises", "ignores_the_batch", "in a batch of 8"),
    ("Abstains", "scores_empty_completions", "abstains over the completion ''"),
    ("HoldsALambda", "survives_pickling", "does not pickle"),
    ("LosesItsState", "survives_pickling", "3.0 itself, 1.0 as a pickled copy"),
    ("FailureIsZero", "judge_failures_are_none", "could not answer.*scores 0.0"),
    ("FailureIsFullMarks", "judge_failures_are_none", "could not answer.*scores 1.0"),
    ("SwallowsErrors", "gaps_in_the_data_are_not_scored", "with gold None in every row"),
]


@pytest.mark.parametrize(("name", "check", "said"), REWARDS, ids=[row[0] for row in REWARDS])
def test_a_broken_reward_is_caught(planted, name, check, said):
    columns = {"SwallowsErrors": GOLD}.get(name, {})
    with pytest.raises(AssertionError) as caught:
        check_reward(getattr(planted, name), columns=columns)
    (line,) = [line for line in str(caught.value).splitlines() if f"- {check}: " in line]
    assert re.search(said, line), line
    assert " Expected: " in line
    assert " Cure: " in line


def test_a_factory_is_called(planted):
    check_reward(functools.partial(planted.Good, most=3.0))
    check_reward(lambda judge: planted.GoodJudged(judge))
    with pytest.raises(AssertionError, match=r"cannot be made: TypeError.*check_reward\(MyReward"):
        check_reward(lambda: planted.Good(least=3))


@pytest.mark.parametrize("name", ["Good", "GoodWithoutPrompts", "GoodColumn", "GoodJudged"])
def test_a_good_reward_passes(planted, name):
    check_reward(getattr(planted, name), columns=GOLD if name == "GoodColumn" else {})


def test_a_reward_whose_module_imports_torch_is_caught(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (Path(__file__).parents[1] / "planted.py").read_text()
    heavy = text.replace("import itertools\n", "import itertools\nimport peft\n")
    (tmp_path / "heavy_planted.py").write_text(heavy)
    (tmp_path / "peft.py").write_text("")  # the real one takes seconds
    monkeypatch.setitem(sys.modules, "peft", types.ModuleType("peft"))
    import heavy_planted

    with pytest.raises(AssertionError, match="light: importing 'heavy_planted' imports peft"):
        check_reward(heavy_planted.Good)
    check_reward(heavy_planted.Good, skip=["light"])


def test_what_a_check_is_not_given_is_asked_for(planted):
    with pytest.raises(AssertionError, match=r"needs the column gold.*pass columns=\{'gold'"):
        check_reward(planted.GoodColumn)
    with pytest.raises(ValueError, match="no check is named pickles; there are: is_a_dataclass"):
        check_reward(planted.Good, skip=["pickles"])
    with pytest.raises(ValueError, match="each needs the same"):
        check_reward(planted.GoodColumn, columns={"gold": ["a"], "other": ["b", "c"]})


def test_all_that_is_wrong_is_said_at_once(planted):
    with pytest.raises(AssertionError, match="reward NoDocs fails 1 of 12 checks:"):
        check_reward(planted.NoDocs, skip=["light"])
    with pytest.raises(AssertionError) as caught:
        check_reward(planted.Dice)
    found = set(re.findall(r"- (\w+):", str(caught.value)))
    assert {"both_shapes", "is_deterministic", "ignores_the_batch", "survives_pickling"} <= found


@pytest.fixture(scope="module")
def world():
    """Columns of refiner rows, and answers to them in the right form."""
    rows = load_component("datasets", "tiny_world")(train_rows=3, test_rows=1).dataset["train"]
    cited = [
        f"<answer><snippet id={one['id']}>{one['text']}</snippet></answer>"
        for row in rows
        for one in row["sources"]
    ]
    return {name: rows[name][:] for name in rows.column_names if name != "prompt"}, cited


# The other plugins hold theirs to it on rows of their own.
REFINERS = [
    point.name
    for point in offered("rewards")
    if point.dist is not None and point.dist.name == "hf-rlhf-refiner"
]


@pytest.mark.parametrize("name", REFINERS)
def test_our_rewards_conform(name, world):
    columns, completions = world
    check_reward(load_component("rewards", name), columns=columns, completions=completions)


JUDGES = [
    ("JudgeDrops", "scores", "for 6 questions"),
    ("JudgeShuffles", "order", "in the reversed call"),
    ("JudgeOutOfRange", "scores", "score=2.0"),
    ("JudgePicklesItsKey", "describes_itself", "the pickle shows a secret"),
    ("JudgeHoldsAFile", "dataclass_that_pickles", "does not pickle"),
    ("JudgeCountsNothing", "usage_counts", "after 6 questions"),
    ("JudgePingsBadly", "ping_answers", "ConnectionError: refused"),
    ("JudgeFailureIsANumber", "failures_are_none", "score=0.0"),
]


@pytest.mark.parametrize(("name", "check", "said"), JUDGES, ids=[row[0] for row in JUDGES])
def test_a_broken_judge_is_caught(planted, name, check, said):
    judge = getattr(planted, name)
    broken = judge(down=True) if name == "JudgeFailureIsANumber" else None
    with pytest.raises(AssertionError, match=f"- {check}: .*{said}"):
        check_judge(judge, broken=broken)


@pytest.mark.slow
def test_our_judges_conform(planted, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-planted-key-0123456789")
    monkeypatch.setenv("HF_RLHF_CACHE", str(tmp_path))
    check_judge(planted.GoodJudge)
    check_judge(ScriptedJudge, broken=ScriptedJudge(error="down"))
    check_judge(LexicalJudge)
    nobody = OpenAIJudge("scripted", "http://127.0.0.1:9/v1", cache=False, retries=0, patience=0)
    with ScriptedServer(lambda asked: len(asked.candidate) % 3) as server:
        check_judge(OpenAIJudge("scripted", server.base_url), broken=nobody)


DATASETS = [
    ("rows_untyped", "has_typed_arguments", "`path` has no type"),
    ("rows_leak", "splits_do_not_overlap", "1 of 1 rows of 'test'"),
    ("rows_shuffle", "is_deterministic", "split 'train' differs"),
    ("rows_without_prompt", "is_in_a_trl_format", "its columns are question"),
    ("rows_of_bad_messages", "is_in_a_trl_format", "row 0 of train: prompt is"),
    ("rows_with_a_set", "reports_in_json", "set is not JSON serializable"),
    ("rows_that_raise", "names_bad_files_and_rows", "raised FileNotFoundError"),
    ("rows_uneven", "gives_splits", "split 'test' has"),
]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"What is {n}?"}) + "\n" for n in range(4)))
    return {"path": str(path)}


@pytest.mark.parametrize(("name", "check", "said"), DATASETS, ids=[row[0] for row in DATASETS])
def test_a_broken_dataset_is_caught(planted, rows, name, check, said):
    with pytest.raises(AssertionError, match=f"- {check}: .*{said}"):
        check_dataset(getattr(planted, name), rows)


def test_a_good_dataset_passes_and_its_errors_are_looked_at(planted, rows, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    changed = {"path": str(bad)}
    check_dataset(planted.good_rows, rows, bad=[(changed, "bad.jsonl:2: field 'prompt'")])
    with pytest.raises(AssertionError, match="a message that contains 'bad.jsonl:7'"):
        check_dataset(planted.good_rows, rows, bad=[(changed, "bad.jsonl:7")])
    with pytest.raises(AssertionError, match="it lacks the column answer; it has prompt"):
        check_dataset(planted.good_rows, rows, columns=["answer"])


@pytest.mark.slow
def test_our_datasets_conform(tmp_path):
    check_dataset(load_component("datasets", "tiny_world"), {"train_rows": 4, "test_rows": 2})
    path = tmp_path / "rows.jsonl"
    shown = "<snippet id=S1>The mill was built in 1925.</snippet>"
    rows = [
        {
            "question": f"When was mill {n} built?",
            "tool_output": shown,
            "positive_rubrics": ["1925"],
        }
        for n in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps(rows[0]) + "\n" + json.dumps({**rows[1], "question": 3}) + "\n")
    check_dataset(
        load_component("datasets", "refiner_rows"),
        {"path": str(path), "test_rows": 2},
        columns=["sources", "positive_rubrics"],
        bad=[({"path": str(bad)}, "bad.jsonl:2: field 'question'")],
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("silent_command", "has_help: `--help` ends with 0 and prints ''"),
        ("raising_command", "raised KeyError"),
        ("statusless_command", r"returns_a_status: \[\] ends with None"),
    ],
)
def test_a_broken_command_is_caught(planted, name, said):
    with pytest.raises(AssertionError, match=said):
        check_command(getattr(planted, name), [])


def test_good_commands_pass(planted, tmp_path):
    check_command(planted.good_command, [])
    check_command(judge_cache, ["show", "--path", str(tmp_path / "none.sqlite")])
    check_command(load_component("commands", "hub"))


def test_the_pytest_plugin_is_light():
    """It is imported in every pytest session of an environment that has hf_rlhf."""
    import subprocess

    code = "import sys, hf_rlhf.testing.plugin as p; print(*sys.modules, sep='\\n')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in said.stdout.split() if name.startswith("hf_rlhf")}
    assert ours == {"hf_rlhf", "hf_rlhf.testing", "hf_rlhf.testing.plugin"}

"""Task sets: answered by an oracle that makes the expected calls, and by nobody who does not."""

import shutil

import pytest
import yaml

from hf_rlhf.errors import DataError
from hf_rlhf_agents.chains import chain_tasks
from hf_rlhf_agents.demonstrations import demonstrate
from hf_rlhf_agents.rewards import outcome
from hf_rlhf_agents.rows import agent_chains, agent_tasks, question
from hf_rlhf_agents.scores import calls_of, process
from hf_rlhf_agents.tasks import read_set, select

SIZES = {"agentbench_mini": 36, "gaia_mini": 30, "practice": 17}


def of(name):
    content = read_set(name)
    return [content.of(task) for task in content.tasks]


def answer(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("name", SIZES)
def test_the_oracle_is_right_everywhere_and_no_constant_is(name):
    if name == "gaia_mini":
        pytest.importorskip("inspect_evals")
    tasks = of(name)
    assert len(tasks) == SIZES[name]
    for task in tasks:
        messages = demonstrate(task)
        assert (task.id, outcome(task, messages)) == (task.id, 1.0)
        assert (task.id, process(task, calls_of(messages)).score) == (task.id, 1.0)
    for text in ("", "ANSWER: 42", "ANSWER: I cannot answer.", "ANSWER: Brannick"):
        right = sum(outcome(task, answer(text)) for task in tasks)
        assert right <= (text.endswith("Brannick") and name == "agentbench_mini")


@pytest.mark.parametrize("name", [name for name in SIZES if name != "gaia_mini"])
def test_every_answer_stands_in_what_the_tools_return(name):
    for task in of(name):
        told = " ".join(m["content"] for m in demonstrate(task) if m["role"] == "tool")
        plain = told.replace(",", "").casefold()
        assert not task.answers or any(
            each.replace(",", "").casefold() in plain for each in task.answers
        ), task.id
        # A tool that fails is to be met with another call, or with a refusal.
        assert task.scored == "refusal" or not task.fails or len(task.calls) > 1


def test_the_sets_for_training_and_for_tests_share_no_task():
    practice, bench = of("practice"), of("agentbench_mini")
    assert not {task.question for task in practice} & {task.question for task in bench}
    assert not set(practice[0].documents) & set(bench[0].documents)
    halves = agent_tasks().dataset
    assert {len(rows) for rows in halves.values()} == {18}
    assert not set(halves["train"]["id"]) & set(halves["test"]["id"])


@pytest.mark.parametrize("hops", [2, 12])
def test_chains_of_any_length(hops):
    tasks = chain_tasks(hops)
    for task in (next(tasks) for _ in range(5)):
        assert len(task.calls) == hops
        assert outcome(task, demonstrate(task)) == 1.0
        assert outcome(task, demonstrate(task, task.calls[:-1])) == 0.0
    with pytest.raises(DataError, match="Expected"):
        next(chain_tasks(13))


def test_chains_as_rows_have_other_facts_in_each_half():
    rows = agent_chains(hops=[2, 3], train_rows=5, test_rows=3).dataset
    assert (len(rows["train"]), len(rows["test"])) == (5, 3)
    assert {'"facts":0' in task for task in rows["train"]["task"]} == {True}
    assert {'"facts":1' in task for task in rows["test"]["task"]} == {True}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_code_repair_knows_broken_from_fixed(monkeypatch):
    # A broken search never ends.
    monkeypatch.setattr("hf_rlhf_agents.code.SECONDS", 1.5)
    tasks = of("code_repair")
    assert [sum(t.tier == tier for t in tasks) for tier in ("easy", "medium", "hard")] == [4, 4, 4]
    for task in tasks:
        assert 5 <= len(task.cases) <= 6
        assert task.code.strip() in question(task)
        assert not any(case.expression in question(task) for case in task.cases)
        broken = outcome(task, answer(f"FIXED CODE:\n```python\n{task.code}```"))
        assert broken < 1.0, task.id
        assert outcome(task, answer("no code")) == 0.0


GOOD = {
    "id": "a",
    "category": "c",
    "question": "q",
    "answers": ["x"],
    "tools": ["read"],
    "calls": [{"tool": "read", "arguments": {"title": "D"}}],
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": []}, "task a: calls: read is not among the tools"),
        ({"answers": []}, "task a: answers: at least one"),
        ({"calls": [{"tool": "read", "arguments": {"title": "E"}}]}, "a: reads 'E', which is no"),
        ({"scored": "number"}, "task a: answers: not all are numbers: x"),
        ({"scored": "refusal", "answers": []}, ""),
        ({"scored": "refusal"}, "a refusal has no answers"),
        ({"scored": "cases"}, "needs code, function and cases"),
        ({"tools": ["read", "fly"]}, "a: no tool is named fly"),
        ({"tools": ["read", "lookup"]}, "a: lookup needs `facts`"),
        ({"calls": [{"tool": "read", "arguments": {"q": "D"}}]}, "a: a call of read has the arg"),
        ({"tier": "huge"}, "task a.tier"),
        ({"answer": "x"}, "task a.answer"),
        ({"id": "b"}, "ids occur twice: b"),
    ],
)
def test_bad_sets_are_refused_with_task_and_field(change, said, tmp_path):
    path = tmp_path / "mine.yaml"
    tasks = [{**GOOD, **change}, {**GOOD, "id": "b"}]
    path.write_text(yaml.safe_dump({"documents": {"D": "x"}, "tasks": tasks}))
    if not said:
        assert read_set(str(path)).name == "mine"
        return
    with pytest.raises(DataError, match=said.replace("(", r"\(")) as error:
        read_set(str(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["[1, 2", "- 1", "tasks: 3", ""])
def test_files_that_are_no_sets(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"mine\.yaml"):
        read_set(str(path))


def test_choices():
    tasks = of("agentbench_mini")
    assert len(select(tasks, categories=["recovery"], max_per_category=2)) == 2
    assert {task.tier for task in select(tasks, tiers=["hard"])} == {"hard"}
    for wrong in ({"categories": ["recover"]}, {"tiers": ["huge"]}):
        with pytest.raises(DataError, match="Known"):
            select(tasks, **wrong)
    with pytest.raises(DataError, match="no task is left"):
        select(tasks, ["tool_use"], ["hard"])
    with pytest.raises(DataError, match="HF_TOKEN, and run `inspect eval inspect_evals/gaia"):
        read_set("gaia")
    with pytest.raises(DataError, match="Known: agentbench_mini"):
        read_set("agentbench")

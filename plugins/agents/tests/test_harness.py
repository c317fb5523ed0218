"""Agents on inspect_ai, by scripted models."""

import json
import shutil
from itertools import islice

import pytest

pytest.importorskip("inspect_ai")

import inspect_ai
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.util import sandboxenv  # noqa: F401 - the registry is loaded

from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf_agents.chains import chain_tasks
from hf_rlhf_agents.command import command
from hf_rlhf_agents.demonstrations import demonstrate
from hf_rlhf_agents.harness import agent_task
from hf_rlhf_agents.results import Row, by_category, compare, predicts, read_log, smallest_effect
from hf_rlhf_agents.tasks import read_set
from hf_rlhf_agents.trajectories import rejection

CHAINS = list(islice(chain_tasks(3), 2))


def output(text="", call=None):
    if call is not None:
        name, arguments = call
        found = ModelOutput.for_tool_call("mock", name, arguments, content="")
    else:
        found = ModelOutput.from_content("mock", text)
    found.usage = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)
    return found


def scripted(reply):
    return get_model("mockllm/model", custom_outputs=reply, memoize=False)


def run(tasks, agent, reply, folder, **settings):
    (log,) = inspect_ai.eval(
        agent_task(tasks, agent, **settings),
        model=scripted(reply),
        log_dir=str(folder),
        display="none",
        fail_on_error=False,
    )
    assert log.status == "success", log.error
    return log, read_log(log.location)[2]


def by_the_book(tasks):
    """Return a model that makes the expected calls and answers right."""
    by_question = {task.question: task for task in tasks}

    def reply(messages, tools, choice, config):
        asked = [each.text for each in messages if each.role == "user"][0]
        task = next(task for question, task in by_question.items() if question in asked)
        done = sum(each.role == "tool" for each in messages)
        if done < len(task.calls):
            call = task.calls[done]
            arguments = {
                name: " ".join(value) if isinstance(value, list) else value
                for name, value in call.arguments.items()
            }
            return output(call=(call.tool, arguments))
        return output(f"ANSWER: {task.answers[0] if task.answers else 'cannot be found'}")

    return reply


def test_react_by_the_book(tmp_path):
    content = read_set("agentbench_mini")
    tasks = [content.of(task) for task in content.tasks]
    _, rows = run(tasks, "react", by_the_book(tasks), tmp_path)
    assert {(row.outcome, row.process, row.wasted) for row in rows} == {(1.0, 1.0, 0)}
    assert sum(row.calls for row in rows) == sum(len(task.calls) for task in tasks)
    assert all(row.tokens == 5 * (row.calls + 1) for row in rows)
    assert set(by_category(rows)) == {"tool_use", "several_calls", "recovery", "all"}


@pytest.mark.parametrize(
    "reply",
    [
        output("I do not know."),
        output(""),
        output(call=("lookup", {"relation": "mayor"})),
        output(call=("lookup", {"relation": 7, "name": ["x"]})),
        output(call=("no_such_tool", {"x": 1})),
    ],
    ids=["no answer", "empty", "missing argument", "wrong types", "unknown tool"],
)
def test_models_that_go_wrong_get_0_and_not_an_error(reply, tmp_path):
    _, rows = run(
        CHAINS[:1], "react", lambda *_: reply.model_copy(deep=True), tmp_path, message_limit=8
    )
    assert [row.outcome for row in rows] == [0.0]
    assert [row.wasted for row in rows] == [rows[0].calls], "also calls that reached no tool"
    assert bool(rows[0].calls) == bool(reply.message.tool_calls)


def test_a_tool_that_cannot_run_is_unscored(tmp_path, monkeypatch):
    from hf_rlhf_agents.desk import Register, ToolUnavailable

    def down(self, relation: str, name: str) -> str:
        """Look up.

        Args:
            relation: a relation.
            name: a name.
        """
        raise ToolUnavailable("no network")

    monkeypatch.setattr(Register, "lookup", down)
    calls = iter([output(call=("lookup", {"relation": "mayor", "name": "x"})), output("ANSWER: y")])
    _, (row,) = run(CHAINS[:1], "react", lambda *_: next(calls), tmp_path)
    assert (row.outcome, row.reason) == (None, "lookup: no network")


def test_plan_execute_plans_first(tmp_path):
    replies = by_the_book(CHAINS)

    def reply(messages, tools, choice, config):
        return replies(messages, tools, choice, config) if tools else output("1. Look it up.")

    log, rows = run(CHAINS, "plan_execute", reply, tmp_path)
    assert {row.outcome for row in rows} == {1.0}
    assert any("1. Look it up." in each.text for each in log.samples[0].messages)


@pytest.mark.parametrize("agent", ["multi_agent", "scratchpad"])
def test_executors_see_one_query_and_make_one_call(agent, tmp_path):
    task = CHAINS[0]
    seen = []

    def reply(messages, tools, choice, config):
        text = messages[-1].text
        if tools:
            seen.append(text)
            assert len(messages) == 1, "the context of an executor is its query"
            call = task.calls[len(seen) - 1]
            twice = output(call=(call.tool, dict(call.arguments)))
            twice.message.tool_calls *= 2
            return twice
        if "Reply with JSON" in messages[0].text:
            made = len(seen)
            return output('{"done": true}' if made == 3 else json.dumps({"query": f"hop {made}"}))
        if "Rewrite these notes" in messages[0].text:
            return output("word " * 400 + text)
        return output(f"ANSWER: {task.answers[0]}")

    _, (row,) = run([task], agent, reply, tmp_path)
    assert (row.outcome, row.process, row.calls) == (1.0, 1.0, 3)
    assert len(seen) == 3


def test_a_planner_that_writes_no_json_ends(tmp_path):
    _, (row,) = run(CHAINS[:1], "multi_agent", lambda *_: output("hm {broken"), tmp_path)
    assert (row.outcome, row.calls) == (0.0, 0)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_code_by_trial(tmp_path):
    task = next(t for t in read_set("code_repair").tasks if t.function == "clamp")
    right = (
        "def clamp(v, low, high):\n    if low > high: raise ValueError\n"
        "    return max(low, min(v, high))"
    )
    tries = iter([task.code, "def broken(", right])
    told = []

    def reply(messages, *_):
        told.append(messages[-1].text)
        return output(f"FIXED CODE:\n```python\n{next(tries)}\n```")

    _, (row,) = run([task], "code_executor", reply, tmp_path)
    assert row.outcome == 1.0
    assert told[1:] == [f"{n} of 5 hidden assertions pass. Try again." for n in (2, 0)]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_the_sandbox_of_inspect(tmp_path):
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import solver
    from inspect_ai.util import sandbox

    found = {}

    @solver
    def try_it():
        async def solve(state, generate):
            box = sandbox()
            await box.write_file("a/b.txt", "1")
            found["file"] = await box.read_file("a/b.txt")
            found["run"] = await box.exec(["cat", "a/b.txt"])
            found["missing"] = (await box.exec(["no-such-program"])).success
            for name, call in {
                "user": lambda: box.exec(["true"], user="root"),
                "time": lambda: box.exec(["sleep", "9"], timeout=1),
                "outside": lambda: box.read_file("../../etc/passwd"),
            }.items():
                try:
                    await call()
                except Exception as error:  # noqa: BLE001 - its name is compared
                    found[name] = type(error).__name__
            return state

        return solve

    task = Task(dataset=[Sample(input="x")], solver=try_it(), sandbox="bwrap")
    (log,) = inspect_ai.eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert (found["file"], found["run"].stdout, found["missing"]) == ("1", "1", False)
    assert found["user"] == "SandboxUserUnsupportedError"
    assert (found["time"], found["outside"]) == ("SandboxTimeoutError", "PermissionError")


def test_unknown_agents_and_logs():
    with pytest.raises(DataError, match="react"):
        agent_task(CHAINS, "reakt")
    with pytest.raises(DataError, match="not a log"):
        read_log(__file__)


def test_logs_of_other_tasks_with_one_score_are_read(tmp_path):
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import match

    samples = [Sample(input="x", target=each, metadata={"level": 2}) for each in "ab"]
    (log,) = inspect_ai.eval(
        Task(dataset=samples, scorer=match()),
        model=scripted(lambda *_: output("a")),
        log_dir=str(tmp_path),
        display="none",
    )
    rows = read_log(log.location)[2]
    assert [(row.category, row.outcome, row.process) for row in rows] == [
        ("level 2", 1.0, None),
        ("level 2", 0.0, None),
    ]


@pytest.mark.parametrize("option", ["--epochs", "--max_tokens", "--per_hops", "--max_per_category"])
def test_counts_are_above_0(option, capsys):
    with pytest.raises(SystemExit):
        command(["eval", option, "0"])
    assert "no whole number above 0" in capsys.readouterr().err


def row(number, outcome, process=0.5, category="c"):
    return Row(str(number), category, 1, outcome, process, None, 0, 1, 5, None, 0.1, "")


def test_comparisons_are_exact_and_say_what_they_can_show():
    before = [row(n, 0.0) for n in range(12)]
    found = compare(before, [row(n, float(n < 6)) for n in range(12)])
    assert (found.better, found.worse, found.smallest) == (6, 0, 6)
    assert found.p == pytest.approx(2 * 0.5**6)
    assert compare(before, [row(n, float(n < 5)) for n in range(12)]).p > 0.05
    assert [smallest_effect(n) for n in (3, 5, 6, 100)] == [0, 0, 6, 6]
    assert compare(before, [*before[:3], row(3, None)]).tasks == 3
    with pytest.raises(DataError, match="share no task"):
        compare(before, [row("x", 1.0)])


def test_whether_process_predicts_outcome():
    rows = [row(n, float(n % 2), 0.3 + 0.4 * (n % 2)) for n in range(20)]
    assert predicts(rows).mean == pytest.approx(1.0)
    assert predicts([row(n, 1.0) for n in range(5)]) is None
    noisy = [row(n, float(n % 3 > 0), 0.3 + 0.1 * (n % 5)) for n in range(20)]
    once, often = predicts(noisy), predicts(noisy * 4)
    assert (often.low, often.high) == pytest.approx((once.low, once.high)), "epochs are no tasks"
    assert predicts([]) is None


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (row(1, 1.0, 1.0), ""),
        (row(1, None), "not scored: "),
        (row(1, 0.0), "wrong answer: none"),
        (row(1, 1.0, 0.2), "wrong calls: process 0.20 is below 0.8"),
    ],
)
def test_what_is_kept_for_training(found, reason):
    assert rejection(found, 0.8) == reason


def test_trajectories_by_command(tmp_path, capsys, monkeypatch):
    tasks = [read_set("practice").of(task) for task in read_set("practice").tasks]
    wrong = by_the_book(tasks[1:])

    def reply(messages, *rest):
        asked = messages[1].text
        return (
            output("ANSWER: 0") if asked.startswith(tasks[0].question) else wrong(messages, *rest)
        )

    monkeypatch.setattr("inspect_ai.model.get_model", lambda name: scripted(reply))
    argv = ["trajectories", "mockllm/model", "--out", str(tmp_path)]
    assert command([*argv, "--dry_run"]) == 0
    assert "17 tasks (8 tool_use, 6 several_calls, 3 recovery)" in capsys.readouterr().out
    assert command(argv) == 0
    assert "16 kept, 1 wrong answer" in capsys.readouterr().out
    kept = [json.loads(line) for line in (tmp_path / "trajectories.jsonl").read_text().splitlines()]
    assert len(kept) == 16
    task = next(task for task in tasks if task.id == kept[0]["id"])
    assert kept[0]["messages"][2:] == demonstrate(task)
    (rejected,) = (tmp_path / "rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["reason"] == "wrong answer: 0"
    for other, said in {
        ("mockllm/other",): "has logs of mockllm/model",
        ("mockllm/model", "--tasks", "code_repair"): "other tasks",
    }.items():
        with pytest.raises(ConfigError, match=said):
            command(["trajectories", *other, "--out", str(tmp_path)])
    (log,) = tmp_path.glob("*.eval")
    assert command(["show", str(log), "--count", "1"]) == 0
    assert "ANSWER: 0" in capsys.readouterr().out
    assert command(["table", str(log), str(log)]) == 0
    assert "0 tasks better, 0 worse of 17" in capsys.readouterr().out

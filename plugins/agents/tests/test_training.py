"""The tiny agent, evaluated by inspect and by the run's own evaluation, and trained."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from hf_rlhf.storage import load_record
from hf_rlhf.train import main as train
from hf_rlhf_agents.rows import agent_chains, agent_tasks

EXAMPLE = Path(__file__).parents[3] / "examples/agent_chains.yaml"


def test_rows_to_imitate():
    calls = agent_chains(hops=[2], train_rows=8, test_rows=2, form="calls", mistakes=1.0).dataset
    lengths = {len(row["completion"]) for row in calls["train"]}
    assert lengths == {3, 7}, "one lookup left out, or made twice"
    assert {len(row["completion"]) for row in calls["test"]} == {5}
    assert all('"lookup"' in tools for tools in calls["train"]["tools"])
    (answer,) = agent_chains(hops=[2], train_rows=1, test_rows=1, form="answers").dataset["train"][
        "completion"
    ][0]
    assert answer["content"].startswith("ANSWER: ")
    row = agent_tasks(form="calls").dataset["train"][0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert "tools" not in agent_tasks().dataset["train"].column_names


def test_inspect_and_training_show_the_model_the_same_tools():
    pytest.importorskip("inspect_ai")
    from hf_rlhf.environments import Toolset
    from hf_rlhf_agents.chains import chain_tasks
    from hf_rlhf_agents.desk import Desk, Register, schemas
    from hf_rlhf_agents.harness.model import schema_of
    from hf_rlhf_agents.harness.tools import tools_of

    for environment, names in ((Register, ["lookup"]), (Desk, ["calculate", "read", "search"])):
        assert Toolset(build=environment).schemas == schemas(names)
    (tool,) = tools_of([next(chain_tasks(2))])
    from inspect_ai.tool._tool_info import ToolInfo

    info = ToolInfo(name="lookup", description="", options=tool.options)
    assert schema_of(info) == schemas(["lookup"])[0]


def test_the_embedded_default_answers_offline(tmp_path, capsys):
    pytest.importorskip("inspect_ai")
    from hf_rlhf_agents.command import command

    argv = ["eval", "--per_hops", "3", "--hops", "2", "3", "--out", str(tmp_path)]
    assert command(argv) == 0
    out = capsys.readouterr().out
    assert "6 tasks" in out
    assert "inspect view --log-dir" in out
    (log,) = tmp_path.glob("*.eval")
    from hf_rlhf_agents.results import read_log

    agent, model, rows = read_log(log)
    assert (agent, len(rows)) == ("react", 6)
    assert sum(row.outcome for row in rows) >= 3
    assert all(row.tokens > 50 for row in rows)


def test_runs_of_a_task_differ_and_prompts_that_do_not_fit_are_wrong(tmp_path, monkeypatch):
    pytest.importorskip("inspect_ai")
    from hf_rlhf_agents.command import command
    from hf_rlhf_agents.results import open_log

    argv = ["eval", "--hops", "3", "--per_hops", "1", "--out", str(tmp_path)]
    assert command([*argv, "--epochs", "4", "--temperature", "3", "--max_tokens", "24"]) == 0
    (log,) = tmp_path.glob("*.eval")
    texts = {"".join(m.text for m in sample.messages) for sample in open_log(log).samples}
    assert len(texts) > 1
    from hf_rlhf.evaluation.saved_models import SavedModel

    monkeypatch.setattr(SavedModel, "positions", lambda *_, **__: 8)
    log.unlink()
    model = shutil.copytree(files("hf_rlhf_agents") / "tiny_agent", tmp_path / "model")
    assert command([*argv, str(model), "--instruction", ""]) == 0
    (log,) = tmp_path.glob("*.eval")
    (sample,) = open_log(log).samples
    assert (sample.error, sample.scores["task_outcome"].value) == (None, 0.0)
    assert sample.output.stop_reason == "model_length"


@pytest.mark.slow
def test_it_learns_care(tmp_path):
    assert train(["--config", str(EXAMPLE), "--output_dir", str(tmp_path / "run")]) == 0
    record = load_record(tmp_path / "run")
    gained = record.evaluation.difference["outcome"]
    assert gained.low > 0.2
    pytest.importorskip("inspect_ai")
    from hf_rlhf_agents.command import command

    assert command(["log", str(tmp_path / "run"), "--out", str(tmp_path)]) == 0
    assert list(tmp_path.glob("*.eval"))


@pytest.mark.parametrize("plugin", ["rloo", "online_dpo"])
def test_trainers_without_tools_are_refused_by_name(plugin, tmp_path, capsys):
    given = yaml.safe_load(EXAMPLE.read_text())
    kept = ("schema", "model_name_or_path", "dataset", "environment", "rewards", "use_cpu", "bf16")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"plugin": plugin, **{name: given[name] for name in kept}}))
    assert train(["--config", str(path), "--output_dir", str(tmp_path / "run"), "--dry_run"])
    assert f"trainer '{plugin}' generates without tools" in capsys.readouterr().err

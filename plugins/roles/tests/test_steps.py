"""Planning and training steps: order, staleness, isolation, and the proof about weights.

The run itself is replaced by one that leaves what a run leaves (`test_pipeline.py` has real ones).
"""

import json
import re
import shutil

import pytest
from safetensors.torch import load_file, save_file

from hf_rlhf.errors import (
    ConfigError,
    DataError,
    ModelError,
    RunFolderError,
)
from hf_rlhf.testing import check_command
from hf_rlhf_roles import training
from hf_rlhf_roles.command import command
from hf_rlhf_roles.inspection import check
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.workspace import read_workspace

pytestmark = pytest.mark.usefixtures("runs")


def train(home, *argv):
    return command(["train", "--workspace", str(home), *argv])


def step(home, role, stage, *argv):
    return train(home, "--role", role, "--stage", stage, *argv)


def plugins(runs):
    return [values["plugin"] for values in runs.ran]


def test_the_recommended_order_runs_once(home, runs, capsys):
    train(home, "--all")
    assert plugins(runs) == ["sft", "sft", "dpo", "reward"]
    train(home, "--all")
    assert len(runs.ran) == 4
    assert capsys.readouterr().out.count("done already") == 4
    train(home, "--all", "--optional")
    assert plugins(runs)[4:] == ["ppo"]
    ppo = runs.ran[4]
    assert re.fullmatch(r"runs/writer/dpo-\w{8}/adapter", ppo["adapter"])
    assert re.fullmatch(r"runs/writer/reward-\w{8}/adapter", ppo["reward_adapter"])
    assert [values["evaluation"] for values in runs.ran] == [{"rows": 4, "max_new_tokens": 32}] * 5
    assert sorted(p.name for p in (home / "adapters").iterdir()) == [
        *("data_insight", "writer", "writer.reward"),
    ]
    for folder in (home / "adapters").iterdir():
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert 'PeftModel.from_pretrained(base, ".")' in card
        assert "More Information Needed" not in card


def test_a_run_file_has_the_role_and_the_workspace_in_it(home, runs):
    step(home, "data_insight", "sft", "--max_length", "77", "--dataset.test_rows", "2")
    (values,) = runs.ran
    workspace = read_workspace(home)
    assert values["dataset"]["system"] == workspace.role("data_insight").system
    assert values["dataset"]["path"] == "data/data_insight_sft.jsonl"
    assert (values["max_length"], values["dataset"]["test_rows"]) == (77, 2)
    assert (values["model_name_or_path"], values["use_peft"]) == ("./base", True)
    assert values["use_cpu"] is True
    assert "adapter" not in values


def test_what_changed_makes_a_step_and_what_follows_stale(home, runs, capsys):
    train(home, "--all")
    capsys.readouterr()
    with (home / "data" / "writer_sft.jsonl").open("a") as file:
        file.write('{"prompt": "Task: new", "response": "New."}\n')
    train(home, "--all", "--dry_run")
    output = capsys.readouterr().out
    assert re.search(r"data_insight/sft +done", output)
    assert re.search(r"writer/sft +stale.*data changed", output)
    assert re.search(r"writer/dpo +stale.*writer/sft will be done anew", output)
    assert len(runs.ran) == 4
    train(home, "--all")
    assert plugins(runs)[4:] == ["sft", "dpo", "reward"]


def test_changed_settings_and_base_are_reported(home, runs, capsys):
    step(home, "data_insight", "sft")
    step(home, "data_insight", "sft", "--seed", "3", "--dry_run")
    assert "settings.seed: 0 -> 3" in capsys.readouterr().out
    tensors = load_file(home / "base" / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, home / "base" / "model.safetensors", {"format": "pt"})
    step(home, "data_insight", "sft", "--dry_run")
    assert "base.model.safetensors changed" in capsys.readouterr().out
    assert check(read_workspace(home), Ledger(read_workspace(home)))[1]


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        (["--role", "writer"], ConfigError, "names no step to train"),
        (["--all", "--role", "writer"], ConfigError, "combined with --role"),
        (["--role", "writr", "--stage", "sft"], ConfigError, "did you mean 'writer'"),
        (["--role", "writer", "--stage", "sf"], ConfigError, "did you mean 'sft'"),
        (["--role", "data_insight", "--stage", "dpo"], ConfigError, "Give --data FILE"),
        (["--role", "writer", "--stage", "sft", "--sed", "1", "x"], ConfigError, "not an option"),
    ],
)
def test_bad_commands_are_refused_before_anything_runs(home, runs, argv, error, message):
    with pytest.raises(error, match=message):
        train(home, *argv)
    assert runs.ran == []


@pytest.mark.parametrize(
    "argv",
    [
        ["--dataset.path", "data/writer_sft.jsonl"],
        ["--dataset.system", "Something else."],
        ["--model_name_or_path", "elsewhere"],
        ["--adapter", "adapters/writer"],
        ["--output_dir", "/tmp/x"],
    ],
)
def test_options_cannot_replace_inspected_data_and_base(home, runs, argv):
    with pytest.raises(ConfigError, match="is decided by the workspace"):
        step(home, "data_insight", "sft", *argv)
    assert runs.ran == []


def test_data_of_the_wrong_kind_names_the_stage_for_it(home, runs):
    path = str(home / "data" / "writer_preference.jsonl")
    with pytest.raises(DataError, match="takes data of kind sft"):
        step(home, "writer", "sft", "--data", path)
    with pytest.raises(DataError, match="no such file"):
        step(home, "writer", "sft", "--data", str(home / "data" / "writer_sf.jsonl"))
    assert runs.ran == []


def talk(system: object, *, by: str = "role", text: str = "content") -> dict[str, object]:
    turns = (("system", system), ("user", "Q"), ("assistant", "A"))
    name = "messages" if by == "role" else "conversations"
    return {name: [{by: role, text: content} for role, content in turns]}


@pytest.mark.parametrize(
    ("stage", "row"),
    [
        ("sft", {"system": "You are a pirate.", "prompt": "Q", "response": "A"}),
        ("sft", talk("You are a pirate.")),
        ("sft", talk([{"type": "text", "text": "You are a pirate."}])),
        (
            "dpo",
            {
                "prompt": talk("You are a pirate.")["messages"][:2],
                "chosen": "A",
                "rejected": "B",
            },
        ),
    ],
)
def test_rows_with_a_system_prompt_of_their_own_are_refused(home, runs, stage, row):
    data = home / "data" / "mine.jsonl"
    plain = (home / "data" / "writer_sft.jsonl").read_text().splitlines()[:2]
    step(home, "writer", "sft")
    first = plain if stage == "sft" else []
    data.write_text("\n".join([*first, json.dumps(row)]) + "\n")
    own = rf"1 of {len(first) + 1} rows have a system prompt of their own .*pirate.*mine\.jsonl:"
    for dry in ([], ["--dry_run"]):
        with pytest.raises(DataError, match=own):
            step(home, "writer", stage, "--data", str(data), *dry)
    assert len(runs.ran) == 1


@pytest.mark.parametrize("first", ["writer", "data_insight"])
def test_rows_of_an_isolated_role_train_no_other(home, runs, first):
    other = {"writer": "data_insight", "data_insight": "writer"}[first]
    data = home / "data" / "mine.jsonl"
    data.write_text('{"prompt": "Q", "response": "A"}\n{"prompt": "R", "response": "B"}\n')
    again = home / "data" / "again.jsonl"
    again.write_text('{"prompt": "new", "response": "new"}\n{"question": "r", "answer": "C"}\n')
    step(home, first, "sft", "--data", str(data))
    with pytest.raises(DataError, match="'data_insight' is isolated"):
        step(home, other, "sft", "--data", str(again))
    assert len(runs.ran) == 1
    step(home, other, "sft", "--data", str(again), "--allow_shared_data")
    assert f"{first}/sft" in str(runs.ran[1]["card"]["known_notes"])
    assert check(read_workspace(home), Ledger(read_workspace(home)))[1] == []


def test_an_isolated_role_stays_isolated_when_the_workspace_no_longer_lists_it(home, runs):
    step(home, "data_insight", "sft")
    path = home / "workspace.yaml"
    kept = [line for line in path.read_text().splitlines() if "{role: data_insight" not in line]
    path.write_text("\n".join(kept).replace("[data_insight, writer]", "[writer]") + "\n")
    data = str(home / "data" / "data_insight_sft.jsonl")
    with pytest.raises(DataError, match=r"The first is .*:1\. Role 'data_insight' is isolated"):
        step(home, "writer", "sft", "--data", data)
    assert len(runs.ran) == 1


def test_a_lost_adapter_is_restored_before_others_train(home, runs, capsys):
    train(home, "--all")
    shutil.rmtree(home / "adapters" / "data_insight")
    (home / "adapters" / f".writer.{'0' * 32}.tmp").mkdir()  # as a killed process leaves it
    with pytest.raises(RunFolderError, match="--role data_insight --stage sft"):
        step(home, "writer", "sft", "--seed", "5")
    assert len(runs.ran) == 4
    capsys.readouterr()
    step(home, "data_insight", "sft")
    assert "adapters/data_insight was restored" in capsys.readouterr().out
    assert command(["check", "--workspace", str(home)]) == 0
    assert len(runs.ran) == 4


@pytest.mark.parametrize("victim", ["base/model.safetensors", "adapters/data_insight"])
def test_a_change_to_other_weights_during_training_is_refused(home, runs, victim):
    step(home, "data_insight", "sft")

    def spoil(folder):
        path = folder / victim
        path = path / "adapter_model.safetensors" if path.is_dir() else path
        content = bytearray(path.read_bytes())
        content[-1] ^= 1  # one bit
        path.write_bytes(content)

    runs.spoilers.append(spoil)
    with pytest.raises(RunFolderError, match="weights that are not its own changed"):
        step(home, "writer", "sft")
    assert not (home / "adapters" / "writer").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda h: shutil.rmtree(h / "adapters" / "writer"), "not as writer/dpo left it"),
        (lambda h: shutil.rmtree(next(h.glob("runs/writer/sft-*/"))), "is missing or was changed"),
        (lambda h: (h / "data" / "writer_sft.jsonl").unlink(), "its data cannot be read"),
        (
            lambda h: shutil.copytree(h / "adapters" / "writer", h / "adapters" / "x"),
            "no step of the ledger",
        ),
        (lambda h: next(h.glob("runs/writer/dpo-*/run.json")).unlink(), "cannot be pushed"),
    ],
)  # fmt: skip
def test_check_names_what_is_wrong(home, runs, spoil, message, capsys):
    train(home, "--all")
    spoil(home)
    capsys.readouterr()
    assert command(["check", "--workspace", str(home)]) == 1
    assert message in capsys.readouterr().out


def test_a_workspace_can_be_moved(home, runs, tmp_path):
    train(home, "--all")
    home.rename(tmp_path / "moved")
    train(tmp_path / "moved", "--all")
    assert len(runs.ran) == 4
    assert command(["check", "--workspace", str(tmp_path / "moved")]) == 0


def test_a_damaged_or_incomplete_ledger_is_refused(home, runs):
    train(home, "--all")
    (home / "ledger" / "writer.sft.rows").unlink()
    with pytest.raises(RunFolderError, match="the workspace is incomplete"):
        step(home, "data_insight", "sft")
    (home / "ledger.json").write_text("{")
    with pytest.raises(RunFolderError, match="cannot be read"):
        Ledger(read_workspace(home))


def test_a_reward_adapter_without_its_head_is_refused(tmp_path, home, make_adapter):
    make_adapter(home / "base", tmp_path / "headless", "reward", 1, head=False)
    with pytest.raises(ModelError, match="without its head"):
        training.check_adapter(tmp_path / "headless", "reward")
    make_adapter(home / "base", tmp_path / "policy", "sft", 1)
    with pytest.raises(ModelError, match="no score head"):
        training.check_adapter(tmp_path / "policy", "reward")


def test_keeps_the_rules_of_commands():
    check_command(command)


def test_a_later_stage_needs_the_earlier_one(home, runs):
    with pytest.raises(ConfigError, match="adapter of writer/sft, which is not trained yet"):
        step(home, "writer", "dpo")
    step(home, "writer", "sft")
    with pytest.raises(ConfigError, match="needs the adapter of writer/reward"):
        step(home, "writer", "ppo")
    assert len(runs.ran) == 1


def test_isolation_looks_into_columns_of_other_names(home, runs):
    path = home / "data" / "odd.jsonl"
    row = (home / "data" / "data_insight_sft.jsonl").read_text().splitlines()[3]
    path.write_text(row.replace('"prompt"', '"ask"').replace('"response"', '"say"') + "\n")
    step(home, "data_insight", "sft")
    mapped = ["--dataset.columns", "{prompt: ask, response: say}"]
    with pytest.raises(DataError, match=r"odd\.jsonl:1\. Role 'data_insight' is isolated"):
        step(home, "writer", "sft", "--data", str(path), *mapped)

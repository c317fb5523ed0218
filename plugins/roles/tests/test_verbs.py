"""What is done with trained roles: pushing them, measuring them; and workspaces that are made."""

import re

import pytest

from hf_rlhf.errors import ConfigError, DataError, ModelError, PublishError, UnknownPlugin
from hf_rlhf_roles.command import command

pytestmark = pytest.mark.usefixtures("runs")


def train(home, *argv):
    return command(["train", "--workspace", str(home), *argv])


def step(home, role, stage, *argv):
    return train(home, "--role", role, "--stage", stage, *argv)


def test_the_index_card_lists_what_is_in_use(home, runs, capsys):
    train(home, "--all")
    capsys.readouterr()
    push = ["push", "--workspace", str(home), "--prefix", "you/team", "--dry_run"]
    with pytest.raises(ConfigError, match="nobody else can load"):
        command(push)
    assert command([*push, "--base_model", "you/base"]) == 0
    card = capsys.readouterr().out
    assert re.search(r"\| `writer` \| \[you/team-writer\]\(.*\) \| dpo \| 512 \|", card)
    assert "| `writer_reward` | [you/team-writer-reward]" in card
    assert "`data_insight` is isolated" in card
    base = 147_776
    assert f"| one base with all adapters | {base + 3 * 512 + 64:,} |" in card
    assert f"| as 3 merged models | {3 * base:,} |" in card


def test_chat_refuses_unknown_and_untrained_roles_before_a_model_loads(home):
    with pytest.raises(ConfigError, match="no such role.*did you mean 'writer'"):
        command(["chat", "--workspace", str(home), "--role", "write"])
    with pytest.raises(ModelError, match="role 'writer' has no adapter"):
        command(["chat", "--workspace", str(home), "--role", "writer"])


def evaluate(home, *argv):
    return command(["eval", "--workspace", str(home), *argv])


@pytest.mark.parametrize(
    ("row", "argv", "error", "message"),
    [
        ('{"prompt": "no evidence"}', [], DataError, "rows.jsonl:1: holds no prompt with evidence"),
        ('{"prompt": "[E1] a"}', [], ModelError, "Train it first"),
        ('{"prompt": "[E1] a"}', ["--references"], DataError, "has no text `response`"),
        ('{"prompt": "[E1] a"}', ["--judge", "{"], ConfigError, "is not JSON"),
        ('{"prompt": "[E1] a"}', ["--judge", '{"name": "lexicl"}'], UnknownPlugin, "lexical"),
        ('{"prompt": "[E1] a"}', ["--judge", '{"full": "x"}'], ConfigError, "has no `name`"),
        ('{"prompt": "[E1] a"}', ["--judge", '{"name": "lexical", "ful": 1}'], ConfigError, "ful"),
        ('{"prompt": "[E1] a"}', ["--role", "insight"], ConfigError, "no such role"),
    ],
)
def test_eval_refuses_bad_options_before_a_model_loads(home, row, argv, error, message):
    (home / "rows.jsonl").write_text(row + "\n")
    with pytest.raises(error, match=re.escape(message)):
        evaluate(home, "--data", str(home / "rows.jsonl"), *argv)


def test_eval_of_references_has_every_part_with_its_interval(home, capsys):
    data = str(home / "data" / "data_insight_sft.jsonl")
    options = ["--data", data, "--references", "--rows", "5"]
    assert evaluate(home, *options) == 0
    output = capsys.readouterr().out
    assert re.search(r"total +5 +1\.000 \(all 5 alike\)", output)
    assert "No judge: whether the evidence supports what is claimed was not checked" in output
    assert evaluate(home, *options, "--judge", '{"name": "lexical"}') == 0
    output = capsys.readouterr().out
    for name in ("total", "insights", "conclusion", "uncertainty", "well_formed"):
        assert re.search(
            rf"^ {name} +5 +[\d.]+ (\[[\d.]+, [\d.]+\]|\(all 5 alike\)) *$", output, re.M
        )
    assert "not judged: 0 of 5; judge: lexical" in output


def test_changed_weights_are_not_pushed(home, runs, monkeypatch):
    step(home, "data_insight", "sft")
    path = next(home.glob("runs/*/*/adapter/adapter_model.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    monkeypatch.setattr("hf_rlhf.hub.client.Hub.writable_repo", lambda hub, name: name)
    with pytest.raises(PublishError, match="is not as data_insight/sft left it"):
        command(["push", "--workspace", str(home), "--prefix", "a/b", "--base_model", "a/c"])


@pytest.mark.parametrize("base", ["/tmp/no such: place", "./nowhere"])
def test_a_base_that_is_no_folder_is_refused(tmp_path, base):
    with pytest.raises(ConfigError, match="there is no folder"):
        command(["init", str(tmp_path / "ws"), "--base", base])
    assert not (tmp_path / "ws").exists()

"""Roles as data, workspaces, and which rows may train whom. No model is loaded here."""

import json
from pathlib import Path

import pytest

from hf_rlhf.errors import ConfigError, DataError, RunFolderError
from hf_rlhf_roles.data import check_kind, inspect_data
from hf_rlhf_roles.role import read_role, shipped
from hf_rlhf_roles.workspace import make_workspace, read_workspace

TUTOR = """schema: 1
name: tutor
title: Tutor
description: Explains.
system: Explain it.
stages:
  sft: {trainer: sft, data: sft, run: {max_length: 512}}
  ppo: {trainer: ppo, data: prompts, continues: [sft], run: {reward_adapter: "{adapter:rm}"}}
  rm: {trainer: reward, data: preference, makes: reward, continues: [sft]}
"""


@pytest.fixture
def home(tmp_path):
    make_workspace(tmp_path / "ws", "package://hf_rlhf_classic/tiny_base")
    return tmp_path / "ws"


@pytest.mark.parametrize("name", shipped())
def test_shipped_roles_bring_all_four_stages_and_fitting_samples(name):
    role = read_role(shipped()[name])
    assert set(role.stages) == {"sft", "dpo", "reward", "ppo"}
    for sample in role.folder.glob(f"{name}_*.sample.jsonl"):
        data = inspect_data(str(sample))
        assert len(data.kinds) == 1
        assert data.rows >= 12


def test_the_samples_of_the_roles_share_no_row():
    files = [path for path in shipped()["writer"].parent.glob("*.sample.jsonl")]
    insight = next(path for path in files if path.name.startswith("data_insight"))
    marks = inspect_data(str(insight)).marks
    assert [inspect_data(str(f)).shares(marks) for f in files if f != insight] == [0, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 1", "schema: 2", "schema: should be 1, not `2`"),
        ("name: tutor", "name: Tutor", "is 'Tutor'. Use small letters"),
        ("system: Explain it.", "system: ' '", "is empty. Write the system prompt of the role."),
        ("data: sft", "data: sftt", "stages.sft.data"),
        ("continues: [sft]", "continues: [sftt]", "did you mean 'sft'?"),
        ("{adapter:rm}", "{adapter:reward}", "names the stage 'reward'"),
        ("max_length: 512", "output_dir: x", "is decided by the workspace. A workspace keeps"),
        ("data: sft,", "data: sft, dataset: {system: x},", "is set by the workspace"),
        ("title: Tutor\n", "", "title: is missing"),
        ("stages:", "stages: {}\nx:", "A role has at least one stage"),
    ],
)
def test_a_bad_role_file_says_where_and_what(tmp_path, old, new, message):
    assert old in TUTOR
    (tmp_path / "tutor.yaml").write_text(TUTOR.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        read_role(tmp_path / "tutor.yaml")
    assert message in str(caught.value)
    assert "tutor.yaml" in str(caught.value)


def test_all_problems_of_a_role_and_its_workspace_are_reported_at_once(home):
    bad = TUTOR.replace("title: Tutor", "titel: Tutor").replace("name: tutor", "name: other")
    (home / "roles" / "tutor.yaml").write_text(bad.replace("{adapter:rm}", "{adapter:reward}"))
    text = (home / "workspace.yaml").read_text().replace("writer]", "writer, tutor, nobody]")
    (home / "workspace.yaml").write_text(text.replace("stage: dpo", "stage: dpoo"))
    with pytest.raises(ConfigError) as caught:
        read_workspace(home)
    problems = {problem.where: problem for problem in caught.value.problems}
    assert list(problems) == [
        "workspace.yaml:4 roles.3",
        "tutor.yaml:3 titel",
        "tutor.yaml:1 title",
        "tutor.yaml:2 name",
        "tutor.yaml:8 stages.ppo.run",
        "workspace.yaml:9 order.2",
    ]
    assert "Did you mean `title`?" in str(problems["tutor.yaml:3 titel"])


def test_unknown_names_are_reported_with_near_ones(home):
    workspace = read_workspace(home)
    with pytest.raises(ConfigError, match=r"did you mean 'writer'\?.*data_insight, writer"):
        workspace.role("writter")
    with pytest.raises(ConfigError, match=r"did you mean 'sft'.*It has: sft, dpo, reward, ppo"):
        workspace.role("writer").stage("stf")
    with pytest.raises(ConfigError, match=r"no such stage.*It has: sft, dpo, reward, ppo"):
        workspace.role("writer").stage("grpo")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("role: writer, stage: sft", "role: writre, stage: sft", "order.1.role"),
        ("role: writer, stage: sft", "role: writer, stage: sftt", "did you mean 'sft'?"),
        ("stage: dpo", "stage: sft", "order.2: repeats writer/sft"),
        ("[data_insight, writer]", "[data_insight, writer, nobody]", "there is no such role"),
        ("base: package://hf_rlhf_classic/tiny_base\n", "", "base: is missing"),
    ],
)
def test_a_bad_workspace_file_says_where_and_what(home, old, new, message):
    text = (home / "workspace.yaml").read_text()
    assert old in text
    (home / "workspace.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_workspace(home)
    assert message in str(caught.value)


def test_a_folder_without_a_workspace_is_an_error(home):
    with pytest.raises(RunFolderError, match="hf-rlhf roles init"):
        read_workspace(home / "data")


def test_init_refuses_what_it_would_overwrite(home, tmp_path):
    with pytest.raises(RunFolderError, match="is a workspace already"):
        make_workspace(home, "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunFolderError, match="is not empty"):
        make_workspace(tmp_path / "full", "x")
    with pytest.raises(ConfigError, match="--base MODEL or --tiny"):
        make_workspace(tmp_path / "none", None)


def write(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


TALK = [{"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": "Yes."}]


def test_messages_may_be_json_text_and_bad_ones_are_reported(tmp_path):
    as_text = inspect_data(write(tmp_path / "a.jsonl", [{"messages": json.dumps(TALK)}]))
    one = inspect_data(write(tmp_path / "b.jsonl", [{"prompt": "Is it so?", "response": "No."}]))
    assert as_text.shares(one.marks) >= 1
    rows = [{"messages": TALK}] * 2 + [{"messages": TALK[:1]}]
    role = read_role(next(iter(shipped().values())))
    data = inspect_data(write(tmp_path / "c.jsonl", rows))
    with pytest.raises(DataError) as caught:
        check_kind(data, role, "sft", role.stage("sft"))
    assert "The first: " in str(caught.value)
    assert "c.jsonl:3" in str(caught.value)


def test_a_row_is_known_again_however_it_is_written(tmp_path):
    one = inspect_data(write(tmp_path / "a.jsonl", [{"prompt": "Is it so?", "response": "Yes."}]))
    for row in (
        {"response": "Another answer.", "prompt": "is it  SO?"},
        {"prompt": "Another question?", "response": "yes."},
        {"question": "Is it so?", "answer": "No."},
        {"prompt": "Is it so?", "chosen": "A", "rejected": "B"},
        {"messages": [{"role": "user", "content": "Is it so?"}, {"role": "assistant"}]},
    ):
        assert inspect_data(write(tmp_path / "b.jsonl", [row])).shares(one.marks) >= 1, row
    other = [{"prompt": "Yes.", "response": "Is it so?"}]  # prompt and response swapped
    assert inspect_data(write(tmp_path / "c.jsonl", other)).shares(one.marks) == 0


QUESTION = "How did the sales of the bakery develop in this year?"
ANSWER = "They grew by a tenth, and nobody can say exactly why."


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": QUESTION}]},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": QUESTION}]},
        {"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": QUESTION}]},
        {"instruction": "Write a brief.", "input": QUESTION, "output": "No."},
        {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": "No."}]},
        {"chosen": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "Y"}]},
        {"chosen": f"\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: {QUESTION}\n\nAssistant: No."},
        {"chosen": f"\n\nHuman: Hi\n\nAssistant: {ANSWER}", "rejected": "\n\nHuman: Hi"},
        {"messages": [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Hm"}]},
        {"messages": json.dumps([{"role": "user", "content": c} for c in ("Hi", QUESTION, "Hm")])},
        {"prompt": [{"role": "developer", "content": "S"}, {"role": "user", "content": QUESTION}]},
    ],
)
def test_a_row_is_known_again_within_a_conversation(tmp_path, row):
    own = inspect_data(write(tmp_path / "a.jsonl", [{"prompt": QUESTION, "response": ANSWER}]))
    assert inspect_data(write(tmp_path / "b.jsonl", [row])).shares(own.marks) >= 1

"""What stands behind the names in a run file, which may change while the names stay."""

from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import OfflineModeIsEnabled

from hf_rlhf.models import contents as module
from hf_rlhf.models.contents import WRITTEN_BY_RUN, commits, contents, with_written

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"):
        (tmp_path / "model" / name).write_bytes(bytes(100))
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics" / "one.yaml").write_text("a")
    (tmp_path / "prompt.txt").write_text("a")
    (tmp_path / "answers.sqlite").write_text("a")
    return tmp_path


VALUES = {
    "base_name_or_path": "model",
    "judges": {"j": {"prompt": "prompt.txt", "cache_path": "answers.sqlite"}},
    "rewards": [{"name": "rubrics", "files": ["./rubrics"], "models": ["model"]}],
}


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("model/tokenizer.json", {"base_name_or_path", "rewards.0.models.0"}),
        ("model/model.safetensors", {"base_name_or_path", "rewards.0.models.0"}),
        ("model/README.md", set()),
        ("prompt.txt", {"judges.j.prompt"}),
        ("rubrics/one.yaml", {"rewards.0.files.0"}),
        ("rubrics/two.yaml", {"rewards.0.files.0"}),
        ("answers.sqlite", set()),  # it is written while the run goes on
    ],
)
@pytest.mark.parametrize("whole", [2**30, 10])
def test_a_change_of_one_byte_is_seen_where_the_file_is_named(
    folder, monkeypatch, file, keys, whole
):
    monkeypatch.setattr(module, "_WHOLE", whole)
    monkeypatch.setattr(module, "_PIECE", 2)
    before = contents(VALUES)
    content = (folder / file).read_bytes() if (folder / file).exists() else bytes(100)
    (folder / file).write_bytes(content[:-1] + b"z")
    after = contents(VALUES)
    assert {key for key in after if before.get(key) != after[key]} == keys
    assert before.keys() == after.keys()


def test_what_a_reward_writes_is_marked_and_the_rest_is_compared(folder):
    values = {**VALUES, "rewards": [{"notes": "./prompt.txt", "saves": "./rubrics", "m": "model"}]}
    before = contents(values)
    assert with_written(before, values) == before
    for name in ("prompt.txt", "rubrics/new.wav", "model/config.json"):
        (folder / name).write_text("more")
    after = with_written(before, values)
    written = {key for key in after if after[key] == WRITTEN_BY_RUN}
    assert written == {"judges.j.prompt", "rewards.0.notes", "rewards.0.saves"}
    assert with_written(after, values) == after


def test_of_models_on_the_hub_it_is_the_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for branch, commit in (("main", OLD), ("dev", NEW)):
        refs = tmp_path / "models--me--it" / "refs"
        refs.mkdir(parents=True, exist_ok=True)
        (refs / branch).write_text(commit)
    reward = {"name": "grpo", "model": "me/it", "revision": "dev"}
    pinned = {"teacher_model_name_or_path": "me/it", "teacher_model_revision": OLD}
    values = {"model_name_or_path": "me/it", "adapter": "me/other", **pinned, "rewards": [reward]}
    expected = {
        **{"model_name_or_path": OLD, "teacher_model_name_or_path": OLD},
        **{"rewards.0.model": NEW},
    }
    assert commits(values) == expected
    there = SimpleNamespace(sha="c" * 40)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: there)
    moved = {"model_name_or_path": "c" * 40, "rewards.0.model": "c" * 40}
    assert commits(values, ask=True) == {**expected, **moved}

    def offline(*_, **__):
        raise OfflineModeIsEnabled

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)
    assert commits(values, ask=True) == expected  # what is in the cache is what is loaded


@pytest.mark.parametrize("text", ["---", "./new", "a--b", "x.git", "a" * 97])
def test_a_text_that_names_no_repository_has_no_commit(text):
    assert commits({"rewards": [{"separator": text}]}, ask=True) == {}

"""Which weights a name stands for, and at which revision of what."""

import json
import shutil
from pathlib import Path

import pytest

from hf_rlhf.errors import ModelError
from hf_rlhf.evaluation import saved_models
from hf_rlhf.evaluation.saved_models import find_saved


@pytest.fixture(scope="module")
def adapter(tiny_policy, tmp_path_factory):
    """An adapter as far as resolving looks."""
    folder = tmp_path_factory.mktemp("adapter")
    config = {"base_model_name_or_path": str(tiny_policy), "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def hub(monkeypatch, adapter):
    """A Hub with one adapter; what was asked of it is listed."""
    source = []

    def config(repo, revision):
        source.append(("config", repo, revision))
        raise OSError("no such file")

    def find(name, revision):
        source.append(("adapter", name, revision))
        if not name.endswith("lora"):
            raise ModelError("none")
        return adapter

    monkeypatch.setattr("hf_rlhf.models.locate._ask_hub", lambda *_, **__: None)
    monkeypatch.setattr(saved_models, "_hub_config", config)
    monkeypatch.setattr(saved_models, "find_adapter", find)
    return source


def test_an_adapter_s_revision_is_not_that_of_its_base(hub, adapter, tiny_policy):
    other = find_saved("demo/lora@v2")
    assert ("adapter", "demo/lora", "v2") in hub
    assert (other.adapter, other.model, other.revision) == (str(adapter), str(tiny_policy), None)
    with pytest.raises(ModelError, match="'demo/nothing' is no folder here"):
        find_saved("demo/nothing")
    pair = find_saved({"base": "demo/base", "adapter": "demo/lora@v2", "revision": "v1"})
    assert hub[-1] == ("adapter", "demo/lora", "v2")
    assert (pair.model, pair.revision) == ("demo/base", "v1")


def test_what_an_adapter_says_of_its_base_is_not_said_of_another(adapter, tiny_policy, tmp_path):
    pinned = shutil.copytree(adapter, tmp_path / "pinned")
    config = {"base_model_name_or_path": str(tiny_policy), "revision": "v7"}
    (pinned / "adapter_config.json").write_text(json.dumps(config))
    assert find_saved(str(pinned)).revision == "v7"
    assert find_saved({"base": str(tiny_policy), "adapter": str(pinned)}).revision is None


def test_a_reward_model_generates_no_text_wherever_it_is(monkeypatch, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["LlamaForSequenceClassification"]}))
    monkeypatch.setattr("hf_rlhf.models.locate._ask_hub", lambda *_, **__: None)
    monkeypatch.setattr(saved_models, "_hub_config", lambda repo, revision: path)
    for source in (str(tmp_path), "demo/rm", {"base": "demo/rm", "revision": "main"}):
        with pytest.raises(ModelError) as error:
            find_saved(source)
        assert "generates no text" in str(error.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"base": 5}, "its keys are base, adapter, revision, each with a text"),
        ({"base": "FOLDER", "revision": "v1"}, "`revision` is of a model on the Hub"),
        ({"revision": "v1"}, "names neither `base` nor `adapter`"),
    ],
)
def test_pairs_that_cannot_be_meant(tiny_policy, source, message):
    given = {key: str(tiny_policy) if other == "FOLDER" else other for key, other in source.items()}
    with pytest.raises(ModelError) as error:
        find_saved(given)
    assert message in str(error.value)


def test_other_end_tokens_are_another_checkpoint(tiny_policy, tmp_path):
    other = Path(shutil.copytree(tiny_policy, tmp_path / "other"))
    assert find_saved(str(other)).identity == find_saved(str(tiny_policy)).identity
    (other / "generation_config.json").write_text('{"eos_token_id": [0, 3]}')
    assert find_saved(str(other)).identity != find_saved(str(tiny_policy)).identity


def test_an_unfinished_run_has_nothing_to_measure(tmp_path):
    from hf_rlhf.storage.record import new_record, write_record

    write_record(new_record(plugin={"name": "ppo"}), tmp_path)
    with pytest.raises(ModelError) as error:
        find_saved(str(tmp_path))
    assert "has no weights in merged/" in str(error.value)


def test_what_was_pulled_has_its_weights_beside_the_record(tiny_policy, tmp_path):
    from hf_rlhf.storage.record import new_record, write_record

    pulled = Path(shutil.copytree(tiny_policy, tmp_path / "pulled"))
    write_record(new_record(plugin={"name": "sft"}), pulled)
    other = find_saved(str(pulled))
    assert (other.model, other.run_folder, other.training["plugin"]) == (str(pulled), None, "sft")


@pytest.mark.parametrize(
    "config",
    [{"base_model_name_or_path": 5}, {"revision": {}}, None],
)
def test_a_strange_configuration_of_an_adapter_is_an_error(adapter, tmp_path, config):
    strange = shutil.copytree(adapter, tmp_path / "strange")
    known = json.loads((adapter / "adapter_config.json").read_text())
    content = {**known, **config} if isinstance(config, dict) else config
    (strange / "adapter_config.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        find_saved(str(strange))

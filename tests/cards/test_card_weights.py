"""A card tells how to load what is there: in the run's folder, on the Hub, and of the base."""

import copy
import json
import re
from pathlib import Path

import pytest

from hf_rlhf.cards.folders import public_record, refresh_card, saved_weights
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.storage.record import RunRecord, load_record, write_record
from hf_rlhf.storage.record_schema import ModelSection
from hf_rlhf.training.model_record import licence_and_lineage
from tests.cards.from_json import render_card

GOLDEN = Path(__file__).parents[1] / "golden" / "cards"
EXAMPLE = json.loads((GOLDEN / "finished_lora.json").read_text(encoding="utf-8"))


def example(**model):
    """Return the record of a run that is not published."""
    record = copy.deepcopy(EXAMPLE)
    record["publish"] = None
    record["model"] |= model
    return record


def section(card, heading):
    return card.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def snippets(card):
    return re.findall(r"```python\n(.*?)```", section(card, "How to load"), re.S)


class TestOfTheFolder:
    def test_adapter_and_merged_weights(self):
        first, second = snippets(render_card(example(saved=["adapter", "merged"])))
        assert 'from_pretrained("merged"' in first
        assert 'PeftModel.from_pretrained(base, ".", subfolder="adapter")' in second

    @pytest.mark.parametrize("adapter", [EXAMPLE["model"]["adapter"], None])
    def test_of_a_run_that_was_interrupted(self, adapter):
        card = render_card(example(saved=[], adapter=adapter) | {"status": "interrupted"})
        assert snippets(card) == []
        assert "There is nothing to load: the run is interrupted" in card
        assert "here it is merged" not in card
        assert "All weights were trained" not in card

    def test_a_model_that_reads_sound_of_which_a_head_was_trained(self):
        model = {"auto_class": "AutoModelForAudioClassification", "trainable_parameters": 9}
        model |= {"auto_processor": "AutoFeatureExtractor", "parameters": 100}
        card = render_card(example(saved=["merged"], adapter=None, **model))
        (only,) = snippets(card)
        assert 'AutoFeatureExtractor.from_pretrained("merged")' in only
        assert "Tokenizer" not in only
        assert "Some of the weights were trained" in card
        assert "all weights" not in card.lower()

    def test_weights_that_are_taken_away_are_told_of_no_more(self, tmp_path):
        for name in ("adapter", "merged"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "model.safetensors").write_bytes(b"")
        write_record(RunRecord.from_json(example(saved=["adapter", "merged"])), tmp_path)
        (tmp_path / "merged" / "model.safetensors").unlink()
        assert saved_weights(tmp_path) == ["adapter"]
        refresh_card(tmp_path)
        assert load_record(tmp_path).model.saved == ["adapter"]
        assert '"merged"' not in section((tmp_path / "README.md").read_text(), "How to load")


def test_links_lead_to_the_hub_in_use():
    record = example(license="other", license_name="acme", license_link=None, base="acme/base")
    record["author"] |= {"license": None}
    card = render_card(record, repo_id="acme/tiny", endpoint="http://hub.example/")
    assert "[`acme/base`](http://hub.example/acme/base)" in card
    assert "license_link: http://hub.example/acme/base" in card
    assert "huggingface.co" not in card


def test_the_reproduction_says_which_repository_a_path_is():
    record = example(base="runs/sft/merged", base_is_hub_id=False, lineage=["runs/sft/merged"])
    record["command"] = ["hf-rlhf", "train", "--model_name_or_path=runs/sft/merged"]
    spec = PublishSpec(repo_id="acme/tiny", base_model="acme/base")
    shown = public_record(RunRecord.from_json(record), spec).to_json()
    told = "Here `runs/sft/merged` is the base model: on the Hub, [`acme/base`]"
    assert told in section(render_card(shown), "Reproduction")
    shown["command"] = ["hf-rlhf", "train"]
    assert "runs/sft/merged" not in render_card(shown), "said only where it stands"
    shown["config"]["model_name_or_path"] = "runs/sft/merged"
    assert told in section(render_card(shown), "Reproduction")
    on_it = public_record(RunRecord.from_json(example(base="acme/base")), spec)
    assert "is the base model: on the Hub" not in render_card(on_it.to_json())


class TestOfABase:
    def test_a_run_on_the_weights_of_a_run_has_its_licence_and_lineage(self, tmp_path):
        record = example(license="mit", lineage=["package://p/tiny"], base_is_hub_id=False)
        record["author"]["license"] = None
        write_record(RunRecord.from_json(record), tmp_path)
        found = licence_and_lineage(tmp_path)
        assert (found["license"], found["base_model"]) == ("mit", ["package://p/tiny"])
        record["author"]["license"] = "apache-2.0"
        record["model"]["lineage"] += ["sft/merged"]
        write_record(RunRecord.from_json(record), tmp_path)
        found = licence_and_lineage(tmp_path)
        assert found["license"] == "apache-2.0"
        assert found["base_model"][-1] == "./sft/merged", "not to be taken for a repository"
        (tmp_path / "run.json").write_text("{")
        assert licence_and_lineage(tmp_path) == {}


def test_the_public_lineage_names_no_folder_of_this_machine():
    lineage = ["/home/me/sft", "package://tiny/policy", "org/base", "./merged"]
    record = RunRecord(model=ModelSection(base="/home/me/sft", lineage=lineage))
    public = public_record(record, PublishSpec(repo_id="demo/chat", base_model="demo/sft"))
    assert public.model.lineage == ["demo/sft", "package://tiny/policy", "org/base"]
    assert record.model.lineage == lineage

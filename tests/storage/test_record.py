import dataclasses
import enum
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf.errors import RunFolderError
from hf_rlhf.runs import machine
from hf_rlhf.storage import record
from hf_rlhf.storage.pure_json import as_json, as_json_with_notes
from hf_rlhf.storage.record import RunRecord, load_record, new_record, write_record
from hf_rlhf.storage.record_schema import Estimate

EXAMPLE = Path(__file__).parents[1] / "golden" / "cards" / "finished_lora.json"


def example():
    return json.loads(EXAMPLE.read_text(encoding="utf-8"))


def complete(content):
    return RunRecord.from_json(content).to_json()


class TestNewRecord:
    def test_is_loadable_and_its_own(self, tmp_path):
        first, second = new_record(command=["train"]), new_record()
        assert first.run_id != second.run_id
        assert (first.status, first.schema_version) == ("running", 1)
        assert first.model.base is None
        assert first.evaluation is None
        first.model.lineage.append("acme/base")
        assert new_record().model.lineage == []
        write_record(first, tmp_path)
        assert load_record(tmp_path) == first


class TestFromJson:
    def test_missing_fields_are_null_or_empty(self):
        some = {"samples": [{"step": 1}], "evaluation": {"after": {"total": {"mean": 1.0}}}}
        record = RunRecord.from_json(some)
        assert record.samples[0].components is None
        assert record.evaluation.after["total"] == Estimate(mean=1.0)
        assert record.evaluation.estimate("before", "total").mean is None
        assert complete(record.to_json()) == record.to_json()

    def test_unknown_fields_are_preserved(self):
        model = complete({"model": {"quantised": True, "later": None}})["model"]
        assert model["quantised"] is True
        assert model["later"] is None


class TestWriteAndLoad:
    def test_round_trip(self, tmp_path):
        path = write_record(RunRecord.from_json(example()), tmp_path)
        assert path == tmp_path / "run.json"
        assert json.loads(path.read_text()) == example()
        assert load_record(tmp_path) == RunRecord.from_json(example())

    def test_secrets_do_not_reach_the_disk(self, tmp_path, monkeypatch):
        monkeypatch.setenv("JUDGE_TOKEN", "canary-1234")
        token = "hf_" + "x1" * 17
        dirty = example()
        dirty["command"] += ["--hub_token", "canary-5678"]
        dirty["config"]["judges"] = {"main": {"base_url": f"https://u:canary-1234@h/?k={token}"}}
        dirty["samples"][0]["completion"] = f"my key is {token}"
        dirty["reward"]["judges"][0][token] = 1
        text = write_record(RunRecord.from_json(dirty), tmp_path).read_text(encoding="utf-8")
        assert "canary" not in text
        assert token not in text

    def test_not_finite_becomes_null_with_a_note(self, tmp_path):
        dirty = RunRecord.from_json(example())
        for entry in dirty.training.history[:3]:
            entry["loss"] = float("nan")
        dirty.training.final["kl"] = float("-inf")
        write_record(dirty, tmp_path)
        loaded = load_record(tmp_path)
        assert loaded.training.history[0]["loss"] is None
        assert loaded.notes == [
            "training.final.kl: 1 not finite (-inf), written as null",
            "training.history[].loss: 3 not finite (nan), written as null",
        ]
        write_record(loaded, tmp_path)
        assert load_record(tmp_path) == loaded

    def test_a_folder_without_a_record(self, tmp_path):
        with pytest.raises(RunFolderError, match=r"run\.json is missing.*not a run folder"):
            load_record(tmp_path)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("", "is damaged"),
            ('{"schema": 2}', "schema 2; this hf-rlhf reads schema 1"),
            ('{"schema": 1, "status": "failed", "samples": [{"step": "3"}]}', r"samples\.0\.step"),
        ],
    )
    def test_a_record_that_is_not_one(self, tmp_path, content, said):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(RunFolderError, match=said):
            load_record(tmp_path)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Options:
    path: Path
    sizes: tuple[int, ...]


class TestAsJson:
    def test_plain_forms(self):
        value = {
            **{"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.arange(2)},
            **{"e": Colour.RED, "f": Options(Path("x"), (1, 2)), "g": {"z", "y"}, 4: None},
        }
        assert as_json_with_notes(value) == (
            {
                **{"a": 0.5, "b": 3, "c": True, "d": [0, 1], "e": "red"},
                **{"f": {"path": "x", "sizes": [1, 2]}, "g": ["y", "z"], "4": None},
            },
            [],
        )

    @settings(max_examples=15, deadline=None)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(),
            lambda item: st.lists(item) | st.dictionaries(st.text() | st.integers(), item),
        )
    )
    def test_the_result_is_always_json(self, value):
        json.dumps(as_json(value), allow_nan=False)


class TestEnvironment:
    def test_names_versions_and_plugins_and_no_host(self, monkeypatch):
        cuda = types.SimpleNamespace(
            is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda i: f"GPU {i}"
        )
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
        found = machine.environment()
        assert found.gpu == ["GPU 0", "GPU 1"]
        assert found.packages["hf-rlhf"]
        assert found.memory_gb > 0
        import socket

        assert socket.gethostname() not in found.model_dump_json()


def test_the_example_has_every_field():
    assert complete(example()) == example()
    assert list(complete(example())) == list(RunRecord().to_json())
    assert example()["schema"] == record.SCHEMA

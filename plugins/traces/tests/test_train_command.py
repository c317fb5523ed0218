"""The verb `train` and the datasets of the world: what is trained on, how, and what is kept."""

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, DataError, RunFolderError
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.lock import locked_folder
from hf_rlhf.training.recorder import Recorder
from hf_rlhf_traces import train_command
from hf_rlhf_traces.command import command
from hf_rlhf_traces.dataset import traces
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.synthetic import traces_multihop
from hf_rlhf_traces.train_command import run_values, train_main

BASE = "package://hf_rlhf_traces/tiny_base"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with all datasets of 24 traces of the world."""
    folder = tmp_path_factory.mktemp("store")
    file, out = folder / "traces.jsonl", folder / "made"
    assert command(["generate", "--out", str(file), "--traces", "24", "--seed", "5"]) == 0
    assert command(["build", str(file), "--out", str(out), "--workers", "1"]) == 0
    for verb in ("summarize", "split_summary"):
        assert command([verb, str(out)]) == 0
    return out


def chosen_options(store: Path, **values: Any) -> argparse.Namespace:
    usual = {"folder": store, "strategy": "progressive", "run": None, "model": None}
    return argparse.Namespace(**{**usual, **values})


@pytest.mark.parametrize("form", ["multiturn", "summary_prefix", "summary_only", "summary_both"])
def test_the_world_in_memory_is_what_the_verbs_build(form: Any, store: Path) -> None:
    from hf_rlhf.models.locate import load_tokenizer, resolve_model_path

    generated = traces_multihop(form=form, traces=24, seed=5)
    tokenizer = load_tokenizer(resolve_model_path(BASE), None)
    built = traces(str(store), form=form, tokenizer=tokenizer)
    for name in ("train", "test"):
        assert generated.dataset[name].to_list() == built.dataset[name].to_list()
        assert generated.report["splits"][name] == len(built.dataset[name]) > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hops": [3, 1]}, "hops"),
        ({"hops": [2]}, "two numbers"),
    ],
)
def test_sizes_that_no_world_has_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        traces_multihop(**values)


def test_a_run_file_is_the_shipped_one_on_the_data_of_the_store(store: Path) -> None:
    values = run_values(Store.open(store), chosen_options(store))
    length = values["max_length"]
    assert values["dataset"] == {"name": "traces", "path": str(store), "max_tokens": length}
    assert [phase["dataset"]["form"] for phase in values["phases"]] == [
        "multiturn",
        "summary_only",
        "summary_both",
    ]
    assert values["output_dir"] == str(store / "runs/progressive")
    assert "card" not in values
    options = chosen_options(store, strategy="prefix", run="qwen2_5_7b")
    large = run_values(Store.open(store), options)
    assert large["model_name_or_path"] == "Qwen/Qwen2.5-7B-Instruct"
    assert large["dataset"]["form"] == "summary_prefix"
    assert large["dataset"]["max_tokens"] == large["max_length"]
    phases = run_values(Store.open(store), chosen_options(store, run="qwen2_5_7b"))["phases"]
    rates = [(each["num_train_epochs"], float(each["learning_rate"])) for each in phases]
    assert rates == [(10, 1e-5), (10, 1e-5), (5, 5e-6)]


@pytest.mark.parametrize("run", ["tiny", "qwen2_5_7b"])
def test_what_is_longer_than_the_length_asked_for_is_left_out_not_cut(
    run: str, store: Path
) -> None:
    def most(*overrides: str) -> Any:
        return run_values(Store.open(store), chosen_options(store, run=run), overrides)["dataset"][
            "max_tokens"
        ]

    assert most() == (2048 if run == "tiny" else 16384)
    assert most("--learning_rate", "1e-3") == most()
    assert most("--max_length", "100") == 100
    assert most("--max_length=99999") == 99999
    assert most("--max_length", "null") is None


@pytest.mark.parametrize("option", ["--output_dir", "--config", "--plugin"])
def test_options_that_would_lead_away_from_the_store_are_refused(option: str, store: Path) -> None:
    with pytest.raises(ConfigError, match=option):
        train_main([str(store), option, "x"])
    with pytest.raises(ConfigError, match=r"- --model: .*nosuch"):
        train_main([str(store), "--model", "./nosuch", "--dry_run"])
    assert not (store / "runs").exists()


@pytest.fixture
def begun(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a copy of the store with a run of `only` that has begun, and weights worth keeping."""
    copy = shutil.copytree(store, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    monkeypatch.setattr(train_command, "_launch", lambda *_: 0)
    file = RunFile.from_mapping(run_values(Store.open(copy), chosen_options(copy, strategy="only")))
    recorder = Recorder(resolve_run(file), PartialState())
    recorder.open(["train"])
    recorder.write()
    weights(copy).parent.mkdir()
    weights(copy).write_text("days of work")
    return copy


def trained(store: Path, *options: str) -> int:
    return train_main([str(store), "--strategy", "only", *options])


def weights(store: Path) -> Path:
    return store / "runs/only/checkpoints/weights"


def test_a_run_of_other_settings_is_only_deleted_if_told(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = ["--stop_grace", "9"]  # which make no other run
    assert trained(begun, "--overwrite", *same) == 0
    assert "runs/only: kept, since it is the same run" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match=r"learning_rate: .* -> 0\.01\nNothing was deleted"):
        trained(begun, "--learning_rate", "1e-2")
    with pytest.raises(ConfigError, match="did you mean `max_steps`|max_steps"):
        trained(begun, "--max_step", "2", "--overwrite")
    with (
        locked_folder(begun / "runs/only"),
        pytest.raises(RunFolderError, match=r"runs/only is in use by .* another --strategy"),
    ):
        trained(begun, "--learning_rate", "1e-2", "--overwrite")
    assert weights(begun).read_text() == "days of work"
    assert trained(begun, "--learning_rate", "1e-2", "--overwrite") == 0
    assert "deleted, and trained again" in capsys.readouterr().out
    assert not weights(begun).exists()


def test_a_launched_run_is_compared_as_if_on_the_machine_of_its_launch(begun: Path) -> None:
    launched = ("--launch", "accelerate launch", "--expect_world_size", "2")
    assert trained(begun, *launched) == 0
    with pytest.raises(RunFolderError, match=r"learning_rate: .* -> 0\.01\nNothing was deleted"):
        trained(begun, *launched, "--learning_rate", "1e-2")

"""What a folder must hold for a run to go on in it, and how the record says to repeat it."""

import os
import shutil
import sys
from dataclasses import replace

import pytest
from accelerate import PartialState
from datasets import DatasetDict
from huggingface_hub import constants
from transformers import AutoTokenizer

from hf_rlhf.config import RunFile
from hf_rlhf.config.packages import package_folder
from hf_rlhf.errors import RunFolderError
from hf_rlhf.models.contents import WRITTEN_BY_RUN
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.lock import OWNER_NAME, locked_folder
from hf_rlhf.storage.record import load_record, write_record
from hf_rlhf.training import model_record
from hf_rlhf.training.record_sections import (
    opening,
    reproduction,
)
from hf_rlhf.training.recorder import Recorder
from hf_rlhf.training.run_folder import differences, previous_record

TOLD = {"repo_id": "me/it", "base_model": "me/base"}


def resolved(run):
    return resolve_run(RunFile.from_mapping(run, name="my.yaml"))


def test_a_folder_has_one_owner_at_a_time(tmp_path):
    folder = tmp_path / "run"
    with locked_folder(folder):
        with (
            pytest.raises(RunFolderError, match=rf"run is in use by process {os.getpid()} on "),
            locked_folder(folder),
        ):
            pass
        with pytest.raises(RunFolderError), locked_folder(folder):
            pass  # who was refused has not let it go
    with pytest.raises(ZeroDivisionError), locked_folder(folder):
        raise ZeroDivisionError
    with locked_folder(folder):
        assert (folder / OWNER_NAME).exists()
    assert not (folder / OWNER_NAME).exists()


@pytest.mark.parametrize(
    ("processes", "settings", "same"),
    [
        (2, {"per_device_train_batch_size": 8}, True),
        (4, {"per_device_train_batch_size": 8}, False),
        (1, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, False),
        (1, {"per_device_train_batch_size": 2, "prompts_per_step": 4}, False),
        (2, {"per_device_train_batch_size": 8, "prompts_per_step": 8}, False),
    ],
)
def test_other_processes_may_divide_the_batch_otherwise(tiny_run, processes, settings, same):
    """On as many processes as before, other rows make a micro-batch: that is another run."""
    prompts = {"prompts_per_step": 4} if "prompts_per_step" in settings else {}
    del tiny_run["prompts_per_step"]
    begun = resolved({**tiny_run, **prompts, "per_device_train_batch_size": 4})
    record = opening(begun, [])
    record.training.world_size = processes
    lines = differences(record, resolved({**tiny_run, **settings}))
    names = ("per_device", "gradient", "prompts_per_step")
    assert (not [line for line in lines if line.startswith(names)]) == same


@pytest.mark.parametrize("name", ["README.md", "checkpoints"])
def test_a_folder_with_other_content_is_neither_overwritten_nor_taken_for_a_run(tiny_run, name):
    run = resolved(tiny_run)
    assert previous_record(run) is None
    run.folder.mkdir()
    (run.folder / "notes.txt").write_text("of no concern")
    assert previous_record(run) is None
    (run.folder / name).mkdir()
    with pytest.raises(RunFolderError, match=rf"no run.json, but holds {name}.*output_dir"):
        previous_record(run)


def test_other_weights_of_the_adapter_that_is_continued_are_another_run(tiny_run, monkeypatch):
    run = resolved(tiny_run)
    record = opening(run, [])
    record.model.continues = {"sha256": "0" * 64}
    write_record(record, run.folder)
    monkeypatch.setattr("hf_rlhf.training.run_folder.continued", lambda run: {"sha256": "1" * 64})
    with pytest.raises(RunFolderError, match="adapter's weights changed"):
        previous_record(run)


def test_options_of_publish_that_the_run_file_lacks_stand_when_it_resumes(tiny_run):
    run = resolved(tiny_run)
    record = opening(run, [])
    record.publish |= TOLD
    write_record(record, run.folder)
    recorder = Recorder(run, PartialState())
    recorder.open([])
    assert recorder.record.publish | TOLD == recorder.record.publish


def test_a_run_goes_on_unless_a_setting_or_the_rows_differ(tiny_run):
    run = resolved(tiny_run)
    run.folder.mkdir()
    write_record(opening(run, []), run.folder)
    same = resolved({**tiny_run, "card": {"title": "New"}, "publish": TOLD})
    assert previous_record(same).run_id == load_record(run.folder).run_id
    with pytest.raises(RunFolderError, match=r"learning_rate: 0.001 -> 0.5"):
        previous_record(resolved({**tiny_run, "learning_rate": 0.5}))
    backwards = run.dataset["train"].select(range(7, -1, -1))
    swapped = replace(run, dataset=DatasetDict({**run.dataset, "train": backwards}))
    with pytest.raises(RunFolderError) as refused:
        previous_record(swapped)
    assert "content of the rows in 'train' changed" in str(refused.value)
    assert "in 'test'" not in str(refused.value)
    run.dataset["train"] = run.dataset["train"].select(range(7))
    with pytest.raises(RunFolderError, match=r"rows.train: 8 -> 7"):
        previous_record(run)


@pytest.mark.parametrize(
    ("world", "distributed", "options"),
    [
        # Without a number accelerate would take every GPU of the reader's machine.
        (1, {"type": "NO"}, "--num_processes 1"),
        (2, {"type": "MULTI_CPU"}, "--num_processes 2 --multi_gpu"),
        # And without a stage, ZeRO-2.
        (
            8,
            {"type": "DEEPSPEED", "zero_stage": 3},
            "--num_processes 8 --use_deepspeed --zero_stage 3",
        ),
        (4, {"type": "FSDP"}, "--num_processes 4 --use_fsdp"),
    ],
)
def test_the_command_that_repeats_a_run_launches_it_alike(world, distributed, options):
    command = reproduction(["--plugin", "x"], world, distributed)
    assert " ".join(command) == f"accelerate launch {options} -m hf_rlhf.train --plugin x"


REWARD = """
from helpers import GOOD
def fn(completions, model="", **_):
    return [float(each in GOOD) for each in completions]
"""


@pytest.fixture
def begun(tiny_run, tmp_path, monkeypatch):
    """Return the values of a run that was begun, with a template, a reward and models in files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helpers", raising=False)
    base = package_folder("hf_rlhf_refiner") / "tiny_policy"
    for name in ("base", "reward_model"):
        shutil.copytree(base, tmp_path / name)
    (tmp_path / "helpers.py").write_text("GOOD = {'a'}\n")
    (tmp_path / "my.py").write_text(REWARD)
    template = AutoTokenizer.from_pretrained(base).chat_template
    (tmp_path / "t.jinja").write_text(template)
    reward = {"name": f"{tmp_path}/my.py:fn", "model": "reward_model"}
    values = {**tiny_run, "rewards": [*tiny_run["rewards"], reward]}
    values |= {"model_name_or_path": "base", "chat_template": "t.jinja"}
    recorder = Recorder(resolved(values), PartialState())
    recorder.open([])
    recorder.write()
    return values


def edited_weights(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights[max(weights)].mul_(-1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: edited_weights(p / "base"), "content of model_name_or_path.model.safetensors"),
        (lambda p: (p / "t.jinja").open("a").write("hello "), "content of chat_template changed"),
        (lambda p: (p / "my.py").open("a").write("x = 1"), "code of fn changed: my.py"),
        (lambda p: (p / "helpers.py").write_text("GOOD = {'b'}"), "code of fn changed: helpers.py"),
    ],
)
def test_what_has_changed_under_its_name_is_another_run(begun, tmp_path, change, message):
    assert previous_record(resolved(begun)) is not None
    change(tmp_path)
    with pytest.raises(RunFolderError, match=message) as refused:
        previous_record(resolved(begun))
    assert "Undo the change to resume that run" in str(refused.value)


def test_what_need_not_change_the_training_is_recorded_and_printed(begun, tmp_path):
    run = resolved(begun)
    record = load_record(run.folder)
    by_label = {each.label: each for each in record.components}
    by_label["refiner"].version = "0.0.1"
    record.environment.python = "3.1.4"
    write_record(record, run.folder)
    recorder = Recorder(run, PartialState())
    recorder.open([])
    changed = "; ".join(recorder.record.sessions[-1].changed)
    assert "python: 3.1.4 -> 3." in changed
    assert 'hf-rlhf-refiner: "0.0.1" -> ' in changed
    assert "the code of fn could not be compared" in changed


def test_what_the_run_writes_itself_does_not_keep_it_from_resuming(tiny_run, monkeypatch):
    run = resolved(tiny_run)
    record = opening(run, [])
    record.contents = {"rewards.0.notes": WRITTEN_BY_RUN}
    write_record(record, run.folder)
    recorder = Recorder(run, PartialState())
    recorder.open([])
    changed = recorder.record.sessions[-1].changed
    assert "content of rewards.0.notes: written while the run went on, so it could" in changed[-1]


def test_a_base_at_the_same_commit_is_the_same_however_it_is_asked_for(tiny_run, monkeypatch):
    there = {"model_name_or_path": {"commit": "a" * 40}}
    monkeypatch.setattr("hf_rlhf.training.run_folder.found_contents", lambda run: {})
    commits = "hf_rlhf.training.run_folder.found_commits"
    monkeypatch.setattr(commits, lambda run, ask=False: there)
    run = resolved(tiny_run)
    record = opening(run, [])
    record.contents = dict(there)
    write_record(record, run.folder)
    pinned = replace(run, spec=replace(run.spec, plain={**run.spec.plain, "model_revision": "v1"}))
    assert previous_record(pinned) is not None
    monkeypatch.setattr(
        commits, lambda run, ask=False: {"model_name_or_path": {"commit": "b" * 40}}
    )
    with pytest.raises(RunFolderError, match=r"content of model_name_or_path.commit: .a{40}. -> "):
        previous_record(run)


def test_of_a_base_on_the_hub_without_a_revision_the_commit_is_recorded(
    tiny_run, tmp_path, monkeypatch
):
    run = resolved(tiny_run)
    config = model_record.model_config(run)
    monkeypatch.setattr(model_record, "model_config", lambda run: config)
    monkeypatch.setattr(model_record, "_base_card", lambda run, is_hub_id: {})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refs = tmp_path / "models--me--base" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    model = replace(run.model, model_name_or_path="me/base")
    assert model_record.model_section(replace(run, model=model)).revision == "a" * 40
    elsewhere = replace(run.model, model_name_or_path="me/other", model_revision="dev")
    assert model_record.model_section(replace(run, model=elsewhere)).revision == "dev"

"""DPO's setting `reference`: the same loss from each, what each costs, and what is refused."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerState

from hf_rlhf.distributed import planned
from hf_rlhf.errors import ConfigError
from hf_rlhf_classic.dpo import PreferenceTrainer
from hf_rlhf_classic.dpo_reference import blocks, describe_reference, offload_blocks, reference_kind
from hf_rlhf_classic.reference import DropComputed, rows_in_files

LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "lora_dropout": 0.0}
PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]


@pytest.fixture
def run(prepared):
    def make(**settings):
        common = {
            **{"plugin": "dpo", "model_name_or_path": "package://hf_rlhf_classic/tiny_sft"},
            **{"max_steps": 2, "per_device_train_batch_size": 4, "max_length": 64},
            **{"learning_rate": 1e-3, "use_cpu": True, "bf16": False, "save_strategy": "no"},
            **{"activation_checkpointing": False, "dataloader_pin_memory": False},
            **{"logging_steps": 1, "report_to": "none"},
        }
        return prepared(PAIRS, PAIRS[:4], **{**common, **settings})

    return make


def trained(run):
    trainer = PreferenceTrainer.from_run(run)
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return trainer, losses


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "model"),
        (LORA, "adapter_off"),
        ({"precompute_ref_log_probs": True}, "precomputed"),
        ({**LORA, "reference": "precomputed"}, "precomputed"),
        ({"reference": "cpu_offload", "precompute_ref_log_probs": False}, "cpu_offload"),
        ({"reference": "model", "sync_ref_model": True}, "model"),
    ],
)
def test_the_reference_is_what_is_set_or_what_trl_does(run, settings, kind):
    prepared = run(**settings)
    assert reference_kind(prepared) == kind
    assert prepared.training.precompute_ref_log_probs == (kind == "precomputed")
    by_default = "" if "reference" in settings else ", by default"
    assert describe_reference(prepared).startswith(f"{kind}{by_default}: ")
    assert PreferenceTrainer.planned_forms(prepared)["reference"] == describe_reference(prepared)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**LORA, "reference": "model"}, "model, but with LoRA .* adapter_off"),
        ({"reference": "adapter_off"}, "there is no adapter.* `use_peft: true`"),
        (
            {"reference": "model", "precompute_ref_log_probs": True},
            "precompute_ref_log_probs: is true, and `reference` is model",
        ),
        ({"reference": "precomputed", "sync_ref_model": True}, "is for a fixed reference"),
        ({"reference": "cpu_offload", "sync_ref_model": True}, "`reference: model`"),
        ({"reference": "cpu_offload", "torch_compile": True}, "torch_compile: would compile"),
    ],
)
def test_contradictions_are_refused_before_weights_load(run, settings, message):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        run(**settings)


@pytest.mark.parametrize("launch", ["FSDP", "DEEPSPEED"])
def test_a_sharded_launch_offloads_by_its_own_configuration(run, launch):
    with planned(2, elsewhere=True):
        with pytest.raises(ConfigError, match=f"{launch} distributes them.*fsdp2_offload"):
            run(reference="cpu_offload", expect_distributed=launch)
        assert f"distributed as {launch}" in describe_reference(run(expect_distributed=launch))
        run(reference="cpu_offload", expect_distributed="MULTI_GPU")


def test_a_model_without_known_blocks_cannot_be_offloaded(run, monkeypatch):
    monkeypatch.setattr("hf_rlhf_classic.dpo_reference.blocks", lambda _: [])
    with pytest.raises(ConfigError, match="no known blocks.*precomputed"):
        run(reference="cpu_offload")


def test_each_reference_gives_the_same_losses(run, capsys):
    expected = None
    for kind in ("model", "precomputed", "cpu_offload"):
        prepared = run(reference=kind)
        trainer, losses = trained(prepared)
        assert (trainer.ref_model is None) == (kind == "precomputed")
        assert f"reference: {kind}: " in capsys.readouterr().out
        expected = expected or losses
        assert losses == pytest.approx(expected, rel=1e-5)
    assert expected[1] < expected[0]


def test_only_the_block_that_computes_is_on_the_device(run):
    """Here the device is the CPU, so a copy of its own shows that a weight is there."""
    model = AutoModelForCausalLM.from_pretrained(run().model_path).requires_grad_(False)
    offload_blocks(model, torch.device("cpu"))
    layers, seen = blocks(model), []
    assert len(layers) == model.config.num_hidden_layers

    def addresses():
        return [[weight.data_ptr() for weight in layer.parameters()] for layer in layers]

    host = addresses()
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: seen.append(addresses()))
    model(torch.tensor([[1, 2, 3]]))
    for index, now in enumerate(seen):
        for other, (here, there) in enumerate(zip(now, host, strict=True)):
            assert (here == there) == (other != index)
    assert len(seen) == len(layers)
    assert addresses() == host


def test_weights_return_to_host_memory_after_an_error(run):
    model = AutoModelForCausalLM.from_pretrained(run().model_path).requires_grad_(False)
    offload_blocks(model, torch.device("cpu"))
    layer = blocks(model)[0]
    host = [weight.data_ptr() for weight in layer.parameters()]
    with pytest.raises(TypeError):
        layer()
    assert [weight.data_ptr() for weight in layer.parameters()] == host


def test_several_processes_find_precomputed_values_in_the_run_folder(run, monkeypatch):
    """TRL's main process writes them beside the rows; those in memory lie nowhere."""
    prepared = run(reference="precomputed")
    rows = prepared.dataset["train"]
    assert rows_in_files(prepared, rows, "train") is rows  # one process
    monkeypatch.setattr("hf_rlhf_classic.reference.processes", lambda: 2)
    assert rows_in_files(prepared, None, "eval") is None
    assert rows_in_files(run(), rows, "train") is rows  # nothing is computed before training
    for _ in range(2):  # again when the run resumes
        found = rows_in_files(prepared, rows, "train")
        assert found.to_list() == rows.to_list()
    folder = prepared.folder / "evaluation" / "reference_rows"
    assert found.cache_files
    assert all(Path(each["filename"]).is_relative_to(folder) for each in found.cache_files)
    state = TrainerState(is_world_process_zero=False)
    DropComputed(prepared).on_train_end(None, state, None)
    assert folder.exists()
    state.is_world_process_zero = True
    DropComputed(prepared).on_train_end(None, state, None)
    assert not folder.exists()
    assert found[0] == rows[0]

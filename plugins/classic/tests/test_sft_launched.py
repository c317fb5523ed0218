"""Two processes train SFT, reward model and DPO as one does: DDP, and DeepSpeed ZeRO-2 and -3."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from hf_rlhf.cli.launch import launch_configs
from tests.launched.environment import lacking, launch_environment

# On a busy machine two processes wait for each other much longer than they compute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COMMON = {
    "schema": 1,
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    **{"max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1, "max_length": 96},
    **{"save_strategy": "no", "use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "learning_rate": 1e-3},
    "evaluation": {"rows": 7, "batch_size": 4, "samples": 0},
}
LORA = {
    **{"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]},
    "lora_dropout": 0.0,  # each process draws its own
}
WORLD = {"name": "tastes", "train_rows": 64, "test_rows": 16}
RUNS = {
    "sft": {"plugin": "sft", "dataset": {**WORLD, "form": "sft"}},
    "reward": {"plugin": "reward", "dataset": {**WORLD, "form": "preference"}},
    "reward_lora": {"plugin": "reward", "dataset": {**WORLD, "form": "preference"}, **LORA},
    "dpo": {"plugin": "dpo", "dataset": {**WORLD, "form": "preference"}, **LORA},
}
LAUNCHES = {
    "cpu_ddp": (),
    "deepspeed_zero2": ("--num_processes", "2", "--mixed_precision", "no"),
    "deepspeed_zero3": ("--num_processes", "2", "--mixed_precision", "no"),
}
SCRIPT = """
import sys
from hf_rlhf import train
for path in sys.argv[1:]:
    train(config=path)
"""


def needs(name: str) -> None:
    if reason := lacking(name):
        pytest.skip(reason)


def trained(folder: Path, processes: int, launch: tuple[str, ...] = ()) -> Path:
    """Train each of RUNS, with the same global batch on one process and on two."""
    script = folder / "train_each.py"
    script.write_text(SCRIPT)
    for name, run in RUNS.items():
        content = {
            **{**COMMON, **run, "output_dir": str(folder / name)},
            "gradient_accumulation_steps": 2 // processes,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    start = ("-m", "accelerate.commands.launch", "--main_process_port", "0", *launch)
    done = subprocess.run(
        [
            *(sys.executable, *(start if launch else ()), str(script)),
            *(str(folder / f"{name}.yaml") for name in RUNS),
        ],
        env=launch_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("alone"), 1)


@pytest.mark.parametrize("name", LAUNCHES)
def test_two_processes_train_as_one_does(name, alone, tmp_path):
    needs(name)
    trained(tmp_path, 2, ("--config_file", str(launch_configs()[name]), *LAUNCHES[name]))
    for run in RUNS:
        one, two = (json.loads((at / run / "run.json").read_text()) for at in (alone, tmp_path))
        assert two["training"]["world_size"] == 2
        assert two["model"] == one["model"]
        assert losses(two) == pytest.approx(losses(one), rel=1e-4), run
        for metric, before in one["evaluation"]["before"].items():
            assert two["evaluation"]["before"][metric] == pytest.approx(before), (run, metric)
        for file in ("adapter/adapter_model.safetensors", "merged/model.safetensors"):
            assert_same_weights(alone / run / file, tmp_path / run / file)


def losses(record) -> list[float]:
    return [entry["loss"] for entry in record["training"]["history"] if "loss" in entry]


def assert_same_weights(one: Path, two: Path) -> None:
    """No tensor is missing, empty or other."""
    assert one.exists() == two.exists()
    if not one.exists():
        return
    expected, found = load_file(one), load_file(two)
    # ZeRO-2 writes the tied output embedding beside the input's.
    assert found.keys() - expected.keys() <= {"lm_head.weight"}
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape
        assert (found[name] - tensor).abs().max() < 2e-5, name

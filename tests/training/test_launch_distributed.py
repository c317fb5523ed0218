"""Two processes give what one gives, and whole weights, under each shipped launch configuration.

On the CPU, with gloo. The completions of the GRPO run are given, so that it too can be compared.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from hf_rlhf.cli.launch import launch_configs
from tests.launched.environment import lacking, launch_environment

# On a busy machine two processes wait for each other much longer than they compute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parents[1] / "launched"
ENTRY_POINTS = """
[hf_rlhf.trainers]
plain_sft = launched_trainers:PlainSFT
fixed_grpo = launched_trainers:FixedGRPO
[hf_rlhf.datasets]
towns = launched_trainers:towns
pairs = launched_trainers:pairs
[hf_rlhf.rewards]
words = launched_trainers:Words
"""
COMMON = {
    "schema": 1,
    "model_name_or_path": "package://hf_rlhf_refiner/tiny_policy",
    "dataset": {"name": "towns"},
    "max_steps": 3,
    "logging_steps": 1,
    "save_strategy": "no",
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    "dataloader_pin_memory": False,
}
LORA = {
    **{"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]},
    "lora_dropout": 0.0,  # each process draws its own
}
SFT = {"plugin": "plain_sft", "per_device_train_batch_size": 4, "max_length": 64}
DPO = {**SFT, "plugin": "dpo", "dataset": {"name": "pairs"}}
RUNS: dict[str, dict[str, Any]] = {
    "sft": {**COMMON, **LORA, **SFT, "learning_rate": 1e-3},
    "full": {
        **{**COMMON, **SFT, "learning_rate": 1e-4},
        **{"activation_checkpointing": True, "callbacks": ["launched_trainers:Shards"]},
    },
    "grpo": {
        **{**COMMON, **LORA, "plugin": "fixed_grpo", "rewards": [{"name": "words"}]},
        **{"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16},
        **{"learning_rate": 1e-3, "beta": 0.01},
        "evaluation": {"split": "test", "rows": 3, "max_new_tokens": 4},
    },
    "dpo": {**COMMON, **LORA, **DPO, "learning_rate": 1e-3},
    "dpo_full": {**COMMON, **DPO, "learning_rate": 1e-4},
    "dpo_precomputed": {**COMMON, **DPO, "learning_rate": 1e-4, "reference": "precomputed"},
    "dpo_offload": {**COMMON, **DPO, "learning_rate": 1e-4, "reference": "cpu_offload"},
}
TWO = ("--num_processes", "2", "--mixed_precision", "no")
LAUNCHES = {
    "cpu_ddp": (),
    "deepspeed_zero2": TWO,
    "deepspeed_zero3": TWO,
    **dict.fromkeys(("fsdp2", "fsdp2_grad_op", "fsdp2_offload"), TWO),
    "fsdp2_hybrid": (
        *("--num_processes", "4", "--mixed_precision", "no", "--num_machines", "1"),
        *("--machine_rank", "0", "--parallelism_config_dp_shard_size", "2"),
    ),
}
TYPES = {"cpu_ddp": "MULTI_CPU"}


def needs(name: str) -> None:
    if reason := lacking(name):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an installed package that offers the trainers of these tests."""
    folder = tmp_path_factory.mktemp("package")
    for path in HERE.glob("*.py"):
        shutil.copy(path, folder)
    info = folder / "launched_trainers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launched-trainers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def python(package: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=launch_environment(PYTHONPATH=str(package), **environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def launched(package: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    launch = ("-m", "accelerate.commands.launch", "--main_process_port", "0")
    return python(package, *launch, *words, **environment)


def trained(
    package: Path, folder: Path, processes: int, launch: Sequence[str] = (), **environment: str
) -> Path:
    """Train each of RUNS, with the same global batch on one process, on two and on four."""
    for name, run in RUNS.items():
        rows = 2 * run["per_device_train_batch_size"] // processes
        batch = {
            "gradient_accumulation_steps": 2 if processes == 1 else 1,
            "per_device_train_batch_size": min(rows, run["per_device_train_batch_size"]),
        }
        content = {**run, **batch, "output_dir": str(folder / name)}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    script = [str(package / "train_each.py"), *(str(folder / f"{name}.yaml") for name in RUNS)]
    start = launched if launch else python
    done = start(package, *launch, *script, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def record(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return content


@pytest.fixture(scope="module")
def alone(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(package, tmp_path_factory.mktemp("alone"), 1)


@pytest.mark.parametrize("name", LAUNCHES)
def test_two_processes_train_as_one_does(name, package, alone, tmp_path, monkeypatch):
    needs(name)
    config = ("--config_file", str(launch_configs()[name]), *LAUNCHES[name])
    sharded, processes = name.startswith("fsdp2"), 4 if "4" in LAUNCHES[name] else 2
    if name != "cpu_ddp":  # refused there
        monkeypatch.delitem(RUNS, "dpo_offload")
    trained(package, tmp_path, processes, config, **({"FSDP_ON_CPU": "1"} if sharded else {}))
    for run in RUNS:
        one, two = record(alone / run), record(tmp_path / run)
        assert two["training"]["distributed"]["type"] == TYPES.get(
            name, "FSDP" if sharded else "DEEPSPEED"
        )
        assert two["training"]["world_size"] == processes
        assert two["model"] == one["model"]
        # Not the KL that TRL logs: a mean of the means of micro-batches, which differ.
        for key in {"loss", "grad_norm", "reward"} & one["training"]["history"][0].keys():
            assert logged(two, key) == pytest.approx(logged(one, key), rel=1e-4), (run, key)
        assert two["evaluation"] == one["evaluation"]
        assert_same_weights(alone / run, tmp_path / run)
    if sharded:
        found = json.loads((tmp_path / "full" / "shards.json").read_text())
        blocks = found.pop("blocks")
        placements = ["R", "S(0)"] if name == "fsdp2_hybrid" else ["S(0)"]
        freed = name != "fsdp2_grad_op"
        assert found == {"wrapped": blocks, "placements": placements, "freed": freed}


def logged(content: dict[str, Any], key: str) -> list[float]:
    return [entry[key] for entry in content["training"]["history"] if key in entry]


def assert_same_weights(one: Path, two: Path) -> None:
    """No tensor is missing, empty or other: adapter, and merged or fully trained weights."""
    for path in ("adapter/adapter_model.safetensors", "merged/model.safetensors"):
        if not (one / path).exists():
            assert not (two / path).exists()
            continue
        expected, found = load_file(one / path), load_file(two / path)
        if beside := found.keys() - expected.keys():
            # ZeRO-2 and FSDP2 write the tied output embedding beside the input's.
            assert beside == {"lm_head.weight"}
            assert found["lm_head.weight"].equal(found["model.embed_tokens.weight"])
        for name, tensor in expected.items():
            assert found[name].shape == tensor.shape
            assert (found[name] - tensor).abs().max() < 1e-5, name


def cut_after(step: int, folder: Path) -> None:
    """Leave what a crash after `step` leaves, of three steps that are each saved."""
    content = record(folder)
    (folder / "run.json").write_text(json.dumps({**content, "status": "failed"}))
    for path in (*(folder / "checkpoints").glob("checkpoint-*"), folder / "adapter"):
        if path.name == "adapter" or int(path.name.rpartition("-")[2]) > step:
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(folder / "merged")


@pytest.mark.parametrize("name", ["cpu_ddp", "fsdp2"])
def test_what_two_processes_saved_is_resumed_by_one(name, package, tmp_path, monkeypatch):
    """On the same global batch. FSDP on one process is one, though it shards nothing."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    names = ("sft", "full", "dpo")
    monkeypatch.setitem(globals(), "RUNS", {each: {**RUNS[each], **saving} for each in names})
    config = ("--config_file", str(launch_configs()[name]), *LAUNCHES[name])
    environment = {"FSDP_ON_CPU": "1"} if name == "fsdp2" else {}
    trained(package, tmp_path, 2, config, **environment)
    shutil.copytree(tmp_path, tmp_path / "two", ignore=shutil.ignore_patterns("two"))
    for run in names:
        cut_after(2, tmp_path / run)
    one = ("--config_file", str(launch_configs()[name]), "--num_processes", "1")
    trained(
        package,
        tmp_path,
        1,
        (*one, "--mixed_precision", "no") if environment else (),
        **environment,
    )
    for run in names:
        assert record(tmp_path / run)["training"]["world_size"] == 1
        whole, resumed = record(tmp_path / "two" / run), record(tmp_path / run)
        assert [each["from_step"] for each in resumed["sessions"]] == [0, 2]
        assert logged(resumed, "loss") == pytest.approx(logged(whole, "loss"), rel=1e-4)
        assert_same_weights(tmp_path / run, tmp_path / "two" / run)


def test_torchrun_restarts_a_run_that_lost_a_process(package, tmp_path):
    """It ends with exactly the weights of a run that nothing disturbed."""
    run = {**RUNS["sft"], "save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    killed = {**run, "callbacks": ["launched_trainers:KillOnce"]}
    restarts = ("--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    for name, content in (("whole", run), ("killed_once", killed)):
        content["output_dir"] = str(tmp_path / name)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
        words = ("-m", "hf_rlhf.train", "--config", str(tmp_path / f"{name}.yaml"))
        done = python(
            package,
            *("-m", "torch.distributed.run", "--nproc_per_node", "2", *restarts, *words),
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )
        assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "killed").exists()
    sessions = record(tmp_path / "killed_once")["sessions"]
    assert [each["from_step"] for each in sessions] == [0, 2]
    for path in ("adapter/adapter_model.safetensors", "merged/model.safetensors"):
        whole, resumed = (load_file(tmp_path / n / path) for n in ("whole", "killed_once"))
        assert all(resumed[name].equal(tensor) for name, tensor in whole.items())


def test_a_whole_run_under_zero3(package, tmp_path):
    """The command of the docs: evaluate, train, save, merge, evaluate, record."""
    needs("deepspeed_zero3")
    folder = tmp_path / "run"
    config = ("--config_file", str(launch_configs()["deepspeed_zero3"]))
    words = (
        *(*config, *LAUNCHES["deepspeed_zero3"], "-m", "hf_rlhf.train", "--plugin", "refiner_grpo"),
        *("--output_dir", str(folder), "--max_steps", "2", "--save_steps", "1"),
        *("--prompts_per_step", "4", "--num_generations", "4"),
        *("--per_device_train_batch_size", "8", "--dataset.train_rows", "16"),
        *("--dataset.test_rows", "8", "--evaluation.rows", "8"),
        *("--expect_world_size", "2", "--expect_distributed", "DEEPSPEED"),
    )
    done = launched(package, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    content = record(folder)
    assert content["status"] == "finished"
    assert content["training"]["distributed"] == {"type": "DEEPSPEED", "zero_stage": 3}
    assert "deepspeed_zero3.yaml --num_processes 2" in " ".join(content["command"])
    assert (content["training"]["steps"], content["evaluation"]["rows"]) == (2, 8)
    assert {"before", "after", "difference"} <= content["evaluation"].keys()
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert sum(one.numel() for one in adapter.values()) == content["model"]["trainable_parameters"]
    assert all(one.abs().max() > 0 for one in adapter.values())
    merged = load_file(folder / "merged" / "model.safetensors")
    assert sum(one.numel() for one in merged.values()) == content["model"]["parameters"]

    # As after a crash between the two steps: the same command goes on from the first.
    (folder / "run.json").write_text(json.dumps({**content, "status": "failed"}))
    for left in ("checkpoints/checkpoint-2", "adapter", "merged"):
        shutil.rmtree(folder / left)
    done = launched(package, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "checkpoint-1" in done.stdout
    resumed = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert max((resumed[name] - adapter[name]).abs().max().item() for name in adapter) == 0


def said(done: subprocess.CompletedProcess[str]) -> list[list[Any]]:
    """Return rank, world size, type and problems that each process of a launch said."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    return sorted(json.loads(line.removeprefix("SAID ")) for line in lines)

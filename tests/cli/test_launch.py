"""A launch that is not what was asked for is refused, and the shipped ones are what they say."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate import DistributedType

from hf_rlhf.cli import main
from hf_rlhf.cli.launch import command, launch_configs, launch_words, summary
from hf_rlhf.distributed import planned
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.preflight_launch import launch_problems

LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
CONFIGS = {name: path for name, path in launch_configs().items() if path.suffix == ".yaml"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts the tests may itself have been launched."""
    for name in [*LAUNCHER, *os.environ]:
        if name in LAUNCHER or name.startswith(
            ("ACCELERATE_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_")
        ):
            monkeypatch.delenv(name, raising=False)


def message(
    kind: str = "NO",
    world: int = 1,
    *,
    expect: tuple[int | None, str | None] = (None, None),
    **training: Any,
) -> str:
    """Return what is said of a launch of `world` processes that accelerate calls `kind`."""
    state = SimpleNamespace(distributed_type=DistributedType(kind))
    settings = {"deepspeed": None, "fsdp": None, "n_gpu": 1, **training}
    arguments = SimpleNamespace(distributed_state=state, world_size=world, **settings)
    spec = SimpleNamespace(expect_world_size=expect[0], expect_distributed=expect[1])
    run: Any = SimpleNamespace(training=arguments, spec=spec)
    return "\n".join(str(problem) for problem in launch_problems(run, lambda key: key))


def test_ranks_that_train_alone_are_refused(monkeypatch):
    """torchrun without GPUs and without `use_cpu`: each rank has a world of its own."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "2 processes were launched, and each would train alone" in message("NO", 1)
    assert "use_cpu: true" in message("NO", 1, expect=(1, "NO"))
    assert message("MULTI_CPU", 2) == ""


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_tasks_that_do_not_know_of_each_other_are_refused(monkeypatch, variable):
    monkeypatch.setenv(variable, "4")
    assert "4 tasks were started with 4 processes in all, but only 1 train together" in message()
    assert message(expect=(1, None)) == ""  # four runs
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert "32 processes in all, but only 8 train together" in message("MULTI_GPU", 8)
    monkeypatch.setenv("WORLD_SIZE", "32")
    assert message("MULTI_GPU", 32) == ""


def test_fsdp_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "FSDP was requested, but accelerate would silently make it MULTI_CPU" in message(
        "MULTI_CPU", 2
    )
    assert "FSDP was requested, but accelerate would silently make it NO" in message()
    assert message("MULTI_GPU", 8, expect=(8, "FSDP")) == ""
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    assert "FSDP was requested" in message("MULTI_CPU", 2, fsdp=["full_shard"])


def test_deepspeed_is_known_before_accelerate_says_so(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert message("MULTI_CPU", 2, expect=(2, "DEEPSPEED")) == ""
    assert message("MULTI_GPU", 8, expect=(8, "deepspeed")) == ""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert "DEEPSPEED was requested, but accelerate would silently make it MULTI_CPU" in message(
        "MULTI_CPU", 2
    )


def test_a_launch_that_is_not_the_expected_one_is_refused():
    assert message("MULTI_GPU", 4, expect=(8, None)).startswith(
        "expect_world_size: 8 processes were expected, 4 were launched."
    )
    assert "DEEPSPEED was expected, but the launch is MULTI_GPU" in message(
        "MULTI_GPU", 8, expect=(8, "DEEPSPEED")
    )
    assert "One of NO, MULTI_CPU, MULTI_GPU" in message(expect=(None, "pipeline"))
    with planned(8):  # which has no launch
        assert message(expect=(8, "DEEPSPEED"), n_gpu=8) == ""


def test_one_process_on_several_gpus_is_refused():
    assert "one process sees 8 GPUs" in message(n_gpu=8)


@pytest.mark.parametrize("initialized", [True, False])
def test_a_trained_process_leaves_its_group(monkeypatch, initialized):
    """Otherwise it may abort, and the launcher stops the one that still publishes."""
    left = []
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        destroy_process_group=lambda: left.append("group"),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    main = importlib.import_module("hf_rlhf.train")
    monkeypatch.setattr(main, "train", lambda *_, **__: left.append("trained"))
    assert main.main([]) == 0
    assert left == ["trained", "group"][: 1 + initialized]


def test_restarts_need_a_store_of_their_own(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert message("MULTI_CPU", 2) == ""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in message("MULTI_CPU", 2)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert message("MULTI_CPU", 2) == ""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_says_which_launch_to_expect(name):
    """What the command expects is what accelerate makes of the file."""
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(CONFIGS[name]))
    words = shlex.split(command(CONFIGS[name]))
    expected = dict(zip(words, words[1:], strict=False))
    assert int(expected["--expect_world_size"]) == config.num_processes
    kind = DistributedType("MULTI_CPU" if name == "cpu_ddp" else config.distributed_type)
    assert DistributedType(expected["--expect_distributed"]) == kind
    assert words[:4] == ["accelerate", "launch", "--config_file", f"{name}.yaml"]
    if name == "deepspeed_zero3":  # or what is saved would not be whole
        assert config.deepspeed_config["zero3_save_16bit_model"] is True
    if name == "fsdp2":
        assert config.fsdp_config["fsdp_state_dict_type"] == "FULL_STATE_DICT"


def test_every_configuration_is_listed_and_copied_with_its_command(tmp_path, capsys):
    assert main(["launch-configs"]) == 0
    listed = capsys.readouterr().out
    for name, path in launch_configs().items():
        assert f"{name} " in listed
        assert summary(path) in listed
        assert main(["launch-configs", name, str(tmp_path)]) == 0
        assert str(tmp_path / path.name) in capsys.readouterr().out.splitlines()[1]
        assert (tmp_path / path.name).read_text() == path.read_text()
    assert main(["launch-configs", "zero3"]) == 2
    assert "No configuration is named 'zero3'" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["slurm", "hf_jobs", "one_node", "two_nodes"])
def test_a_script_is_bash(script):
    subprocess.run(["bash", "-n", launch_configs()[script]], check=True)


def _program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def test_the_slurm_script_starts_a_launcher_on_each_machine(tmp_path):
    """Run with a Slurm that is two loops: what each machine would start is written down."""
    _program(tmp_path, "scontrol", "echo node1; echo node2")
    _program(
        tmp_path,
        "srun",
        f'echo "$SRUN_CPUS_PER_TASK cores" >> {tmp_path}/started\n'
        'nodes=2; [[ "$*" == *--nodes=1* ]] && nodes=1\n'
        'while [[ "$1" == -* ]]; do shift; done\n'
        'for ((node = 0; node < nodes; node++)); do SLURM_NODEID=$node "$@"; done',
    )
    for name in ("hf-rlhf", "accelerate"):
        _program(tmp_path, name, f'echo "{name} $*" >> {tmp_path}/started')
    main(["launch-configs", "deepspeed_zero3", str(tmp_path)])
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        **{"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1234567"},
        **{"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_GPUS_ON_NODE": "4"},
        "SLURM_CPUS_PER_TASK": "64",
    }
    script = launch_configs()["slurm"]
    arguments = ["--config", "my run.yaml"]
    subprocess.run(["bash", script, *arguments], cwd=tmp_path, env=environment, check=True)
    cores, first, same, *launched = (tmp_path / "started").read_text().splitlines()
    assert cores == same == "64 cores"  # srun does not take them from sbatch by itself
    expected = "--config my run.yaml --expect_world_size 8 --expect_distributed DEEPSPEED"
    assert first == f"hf-rlhf check {expected}"
    assert launched == [
        "accelerate launch --config_file deepspeed_zero3.yaml --enable_cpu_affinity "
        f"--num_machines 2 --num_processes 8 --machine_rank {node} --main_process_ip node1 "
        "--main_process_port 34567 "
        f"-m hf_rlhf.train {expected}"
        for node in (0, 1)
    ]


@pytest.mark.parametrize(
    ("given", "problems"), [(["--config_file", "mine.yaml"], "mine.yaml"), (["--cpu"], None)]
)
def test_the_launchers_own_configuration_is_in_the_command_that_repeats_a_run(given, problems):
    """Seen from a process that a launcher has started, as accelerate's is."""
    child = "from hf_rlhf.distributed import config_file; print(config_file())"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    launcher = [sys.executable, "-c", parent, "accelerate", "launch", *given]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(problems)


def test_a_launch_is_a_configuration_its_name_or_a_command(tmp_path: Path) -> None:
    start = [sys.executable, "-m", "accelerate.commands.launch"]
    assert launch_words("cpu_ddp") == [*start, "--config_file", str(launch_configs()["cpu_ddp"])]
    file = tmp_path / "own.yaml"
    file.touch()
    assert launch_words(str(file)) == [*start, "--config_file", str(file)]
    assert launch_words("accelerate launch --num_processes 2") == [*start, "--num_processes", "2"]
    assert launch_words("env python") == ["env", "python"]
    with pytest.raises(ConfigError, match=r"By name: .*cpu_ddp"):
        launch_words("other.yaml")
    with pytest.raises(ConfigError, match=r"--launch: `cpu_dpd`.*mean 'cpu_ddp'.*By name: "):
        launch_words("cpu_dpd")
    with pytest.raises(ConfigError, match="is no program"):
        launch_words("env 'open")

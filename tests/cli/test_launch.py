"""A launch that is not what was asked for is refused, and the shipped ones are what they say."""

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from accelerate import DistributedType

from hf_rlhf.cli import main
from hf_rlhf.cli.launch import command, launch_configs, summary
from hf_rlhf.cli.launcher import launch_words
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.distributed import planned, processes
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.preflight_launch import launch_problems
from hf_rlhf.runs.preflight_vllm import vllm_problems
from hf_rlhf.runs.resolve import resolve_run

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


def test_one_process_where_several_were_asked_for_is_refused(monkeypatch):
    """`accelerate launch --cpu --num_processes 2` sets MASTER_PORT and starts one process."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_PORT", "29500")
    parent: dict[str, str] = {}
    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(environ=lambda: parent))
    assert "was asked for several processes, but started one" in message()
    assert message(expect=(1, None)) == ""
    parent["MASTER_PORT"] = "29500"  # the user's own, exported before the launch
    assert message() == ""


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
    assert "Did you mean `DEEPSPEED`?" in message(expect=(None, "DEEPSPED"))
    assert "One of NO, MULTI_CPU, MULTI_GPU" in message(expect=(None, "pipeline"))


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


def test_a_dry_run_has_no_launch_to_look_at():
    with planned(8):
        assert message(expect=(8, "DEEPSPEED"), n_gpu=8) == ""
        assert "Did you mean `DEEPSPEED`?" in message(expect=(8, "DEEPSPED"))
        assert processes() == 8
    assert processes() == 1


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


def test_what_is_saved_from_shards_is_whole():
    zero3 = yaml.safe_load(CONFIGS["deepspeed_zero3"].read_text())["deepspeed_config"]
    assert zero3["zero3_save_16bit_model"] is True
    fsdp = yaml.safe_load(CONFIGS["fsdp2"].read_text())["fsdp_config"]
    assert (fsdp["fsdp_version"], fsdp["fsdp_state_dict_type"]) == (2, "FULL_STATE_DICT")


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
    assert "No launch configuration is named 'zero3'" in capsys.readouterr().err


PUBLISHED = (
    *("--model_name_or_path", "package://hf_rlhf_refiner/tiny_policy", "--use_cpu", "true"),
    *("--attn_implementation", "sdpa", "--bf16", "false", "--dtype", "float32"),
    *("--dataset", "{name: tiny_world, train_rows: 32, test_rows: 64}"),
    *("--max_completion_length", "64"),
)
"""The published run on what is at hand here; its batch is its own."""


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
def test_the_global_batch_is_the_same_on_any_number_of_processes(world, tmp_path):
    here = (*PUBLISHED, "--output_dir", str(tmp_path / "run"))
    file = choose_run_file("refiner_grpo", "published", None).override(here)
    with planned(world):
        training = resolve_run(file).training
    micro = training.per_device_train_batch_size * training.gradient_accumulation_steps
    assert micro * world == 32 * 8
    assert training.generation_batch_size * world == 32 * 8  # TRL sees one process here


def test_a_batch_that_does_not_divide_is_an_error(tmp_path):
    here = (*PUBLISHED, "--output_dir", str(tmp_path / "run"))
    file = choose_run_file("refiner_grpo", "published", None).override(here)
    with planned(3), pytest.raises(ConfigError, match=r"256 completions do not divide into 3 proc"):
        resolve_run(file)


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


def _job(folder: Path, *words: str, **variables: str) -> str:
    """Return what the real client prints of the script's job; nothing is submitted."""
    client = Path(sys.executable).with_name("hf")
    _program(folder, "hf", f'[[ $1 == auth ]] && exit 0; exec {client} "$@"')
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        **{"HOME": str(folder), "HF_TOKEN": "a-token", "JOB_OPTIONS": "--dry-run"},
    }
    done = subprocess.run(
        ["bash", launch_configs()["hf_jobs"], "you/refiner", "--plugin", "refiner_grpo", *words],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_jobs_script_asks_for_time_and_pushes_checkpoints(tmp_path):
    job = _job(tmp_path)
    for part in (
        "'hf-rlhf[deepspeed] hf-rlhf-refiner' deepspeed_zero3 8 --plugin refiner_grpo",
        "--publish.repo_id you/refiner --publish.checkpoints true",
        "--expect_world_size 8 --expect_distributed DEEPSPEED",
        "flavor   a100x8",
        "timeout  24h",
        "secrets  HF_TOKEN=***",
        "Job not submitted",
    ):
        assert part in job
    assert "base_url" not in job
    assert "one_node" not in job


@pytest.mark.slow
def test_a_job_starts_its_judge_or_uses_another(tmp_path):
    assert "--judges.judge.base_url https://judge.example/v1" in _job(
        tmp_path, JUDGE="https://judge.example/v1"
    )
    job = _job(tmp_path, JUDGE="start")
    assert "hf-rlhf launch-configs one_node .; CONFIG=$1.yaml exec bash one_node.sh" in job
    assert "'hf-rlhf[deepspeed,vllm] hf-rlhf-refiner'" in job
    assert "--expect_world_size" not in job  # one_node.sh knows how many train


@pytest.fixture
def vllm_server() -> Iterator[Any]:
    """A server that answers as vLLM's does; `config` is what it says of itself."""
    config: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"vllm_config": config}).encode()
            known = self.path == "/health" or (self.path.startswith("/server_info") and config)
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", config=config)
    server.shutdown()
    server.server_close()


def said_of_vllm(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> str:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    given = {
        **{"use_vllm": True, "vllm_mode": "server", "vllm_tensor_parallel_size": 1},
        **{"vllm_server_base_url": None, "vllm_server_host": "127.0.0.1"},
        **{"vllm_server_port": 9, "vllm_server_timeout": 0.0, **settings},
    }
    run: Any = SimpleNamespace(training=SimpleNamespace(**given))
    return "\n".join(str(problem) for problem in vllm_problems(run))


def test_a_vllm_server_is_looked_at_before_weights_load(monkeypatch, vllm_server):
    """Up, and able to take new weights: without a transfer it would answer with the old ones."""
    assert "no vLLM server answers at http://127.0.0.1:9" in said_of_vllm(monkeypatch)
    there = {"vllm_server_base_url": vllm_server.url}
    assert "accepts no new weights" in said_of_vllm(monkeypatch, **there)  # not in dev mode
    vllm_server.config |= {"weight_transfer_config": None, "model_config": {}}
    assert "accepts no new weights" in said_of_vllm(monkeypatch, **there)
    vllm_server.config["weight_transfer_config"] = {"backend": "nccl"}
    assert said_of_vllm(monkeypatch, **there) == ""
    assert said_of_vllm(monkeypatch, use_vllm=False) == ""


def test_a_dry_run_does_not_wait_for_the_server(monkeypatch):
    began = time.monotonic()
    with planned(8):
        assert "no vLLM server" in said_of_vllm(monkeypatch, vllm_server_timeout=60.0)
        assert "3 does not divide 8" in said_of_vllm(
            monkeypatch, vllm_mode="colocate", vllm_tensor_parallel_size=3
        )
    assert time.monotonic() - began < 50


def test_the_mode_and_the_package_are_looked_at(monkeypatch):
    assert "'serve' is neither" in said_of_vllm(monkeypatch, vllm_mode="serve")
    monkeypatch.undo()
    run: Any = SimpleNamespace(
        training=SimpleNamespace(use_vllm=True, vllm_mode="colocate", vllm_tensor_parallel_size=1)
    )
    assert "use_vllm: the package vllm is not installed" in str(*vllm_problems(run))


def test_flash_attention_is_looked_for_before_weights_load(monkeypatch):
    from hf_rlhf.runs import preflight

    device = SimpleNamespace(type="cpu")
    run: Any = SimpleNamespace(
        model=SimpleNamespace(attn_implementation="flash_attention_2"),
        training=SimpleNamespace(device=device),
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "package flash_attn is not installed" in str(*preflight._attention(run))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert "runs on GPUs, and this run is on the CPU" in str(*preflight._attention(run))
    device.type = "cuda"
    assert list(preflight._attention(run)) == []


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

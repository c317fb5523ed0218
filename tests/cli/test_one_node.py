"""The scripts that also serve the judge and generate, on one machine and on two.

`vllm` is a stand-in that answers on the port it is started with.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hf_rlhf.cli.launch import launch_configs
from tests.launched.environment import launch_environment

VLLM = """
import json, os, sys, threading, time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
words, folder = sys.argv[1:], Path(__file__).parent
names = ("CUDA_VISIBLE_DEVICES", "VLLM_SERVER_DEV_MODE")
environment = {name: os.environ.get(name, "") for name in names}
with (folder / "served").open("a") as file:
    file.write(json.dumps([environment, words]) + "\\n")
(folder / "health").touch()  # which it serves
port = int(words[words.index("--port") + 1])
with ThreadingHTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not (folder / "stop").exists():
        time.sleep(0.1)
"""


def program(folder: Path, name: str, text: str, interpreter: str = "/usr/bin/env bash") -> None:
    path = folder / name
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name in ("one_node", "two_nodes", "deepspeed_zero3", "cpu_ddp"):
        shutil.copy(launch_configs()[name], tmp_path)
    program(tmp_path, "vllm", VLLM, sys.executable)
    for name in ("hf-rlhf", "accelerate"):
        text = f'echo "$CUDA_VISIBLE_DEVICES {name} $*" >> {tmp_path}/started'
        program(tmp_path, name, text)
    yield tmp_path
    (tmp_path / "stop").touch()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, **variables: str) -> dict[str, str]:
    plain = launch_environment()
    ports = {"JUDGE_PORT": str(free_port()), "GENERATION_PORT": str(free_port())}
    return {**plain, "PATH": f"{folder}:{plain['PATH']}", **ports, **variables}


def served(folder: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Return by model the environment and the options that it was served with."""
    lines = [json.loads(line) for line in (folder / "served").read_text().splitlines()]
    return {words[1]: (variables, " ".join(words[2:])) for variables, words in lines}


RUN = ("--plugin", "refiner_grpo", "--run", "published")
POLICY, JUDGE = "lihaoxin2020/qwen3-4b-refiner-gpt54-ep2", "Qwen/Qwen3.5-35B-A3B"


def test_one_machine_trains_generates_and_judges(folder):
    variables = environment(folder)
    subprocess.run(["bash", "one_node.sh", *RUN], cwd=folder, env=variables, check=True)
    judge, generation = variables["JUDGE_PORT"], variables["GENERATION_PORT"]
    run = (
        "--plugin refiner_grpo --run published --expect_world_size 4 --expect_distributed DEEPSPEED"
        f" --judges.judge.base_url http://localhost:{judge}/v1 --use_vllm true --vllm_mode server"
        f" --vllm_server_base_url http://localhost:{generation}"
    )
    assert (folder / "started").read_text().splitlines() == [
        f"0,1,2,3 hf-rlhf check {run}",
        "0,1,2,3 accelerate launch --config_file deepspeed_zero3.yaml --num_processes 4 "
        f"--enable_cpu_affinity --main_process_port 29500 -m hf_rlhf.train {run}",
    ]
    assert served(folder) == {
        JUDGE: (
            {"CUDA_VISIBLE_DEVICES": "6,7", "VLLM_SERVER_DEV_MODE": ""},
            f"--host 127.0.0.1 --port {judge} --tensor-parallel-size 2 --max-model-len 32768",
        ),
        POLICY: (
            {"CUDA_VISIBLE_DEVICES": "4,5", "VLLM_SERVER_DEV_MODE": "1"},
            f"--host 127.0.0.1 --port {generation} --tensor-parallel-size 2 --max-model-len 8192 "
            '--weight-transfer-config {"backend": "nccl"} --logprobs-mode processed_logprobs '
            "--max-logprobs -1",
        ),
    }
    assert not running(folder)


def running(folder: Path) -> list[int]:
    """Return the servers of this test that still run, after a minute in which they may end."""
    end = time.monotonic() + 60
    while True:
        processes = psutil.process_iter(["pid", "cmdline"])
        own = [
            each.info["pid"]
            for each in processes
            if str(folder / "vllm") in (each.info["cmdline"] or ())
        ]
        if not own or time.monotonic() > end:
            return own
        time.sleep(0.1)


@pytest.mark.slow
def test_of_two_machines_one_trains_and_one_serves(folder):
    """Run with a Slurm that starts each step in the background of this machine."""
    program(folder, "scontrol", "echo first; echo localhost")
    program(
        folder,
        "srun",
        f'echo "$SRUN_CPUS_PER_TASK $PART $*" >> {folder}/steps\n'
        'while [[ "$1" == -* ]]; do shift; done\nexec "$@"',
    )
    variables = environment(folder, SLURM_JOB_NODELIST="node[1-2]", SLURM_CPUS_PER_TASK="64")
    subprocess.run(["bash", "two_nodes.sbatch", *RUN], cwd=folder, env=variables, check=True)
    steps = sorted((folder / "steps").read_text().splitlines())
    assert [step.split(" bash ")[0] for step in steps] == [
        "64 serve --nodes=1 --ntasks=1 --nodelist=localhost",
        "64 train --nodes=1 --ntasks=1 --nodelist=first",
    ]
    _, launched = (folder / "started").read_text().splitlines()
    assert launched.startswith("0,1,2,3,4,5,6,7 accelerate launch")
    assert f"base_url http://localhost:{variables['JUDGE_PORT']}/v1" in launched
    assert "--expect_world_size 8 --expect_distributed DEEPSPEED" in launched
    gpus = {model: found["CUDA_VISIBLE_DEVICES"] for model, (found, _) in served(folder).items()}
    assert gpus == {JUDGE: "4,5,6,7", POLICY: "0,1,2,3"}
    assert all("--host 0.0.0.0" in options for _, options in served(folder).values())

"""`hf-rlhf eval` as a process: killed and repeated, launched twice at once, and from a Hub."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = "package://hf_rlhf_classic"
SUMS = [
    *("--dataset.name", "arithmetic", "--rewards.0.name", "arithmetic_correct"),
    *("--eval.use_cpu", "--evaluation.temperature", "1", "--evaluation.max_new_tokens", "12"),
    *("--evaluation.rows", "40", "--evaluation.batch_size", "2"),
]
MODELS = ["--model", f"base={ROOT}/tiny_base", "--model", f"sft={ROOT}/tiny_sft"]
ALONE = [sys.executable, "-m", "hf_rlhf.cli"]


def _command(out, *, launcher=ALONE, models=MODELS):
    return [*launcher, "eval", *SUMS, *models, "--out", str(out)]


def _run(command, **environment):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _results(out):
    task = json.loads((out / "results.json").read_text())["tasks"]["prompts"]
    return task["results"], task["rows"]


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory):
    out = tmp_path_factory.mktemp("unharmed")
    _run(_command(out))
    return _results(out)


def test_killed_and_repeated(unharmed, tmp_path):
    process = subprocess.Popen(_command(tmp_path), stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    files: list[Path] = []
    while not any(file.stat().st_size for file in files) and time.monotonic() < until:
        time.sleep(0.01)
        files = list(tmp_path.glob("*/completions.jsonl"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    completions = max(files, key=lambda file: file.stat().st_mtime)
    saved = completions.read_bytes()
    saved = saved[: saved.rfind(b"\n") + 1]
    assert 0 < saved.count(b"\n") < 40
    assert not (tmp_path / "results.json").exists()
    _run(_command(tmp_path))
    assert completions.read_bytes().startswith(saved)
    assert _results(tmp_path) == unharmed


def test_two_processes_share_the_prompts(unharmed, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    launcher += ["--standalone", "-m", "hf_rlhf.cli"]
    output = _run(_command(tmp_path, launcher=launcher))
    assert output.count("written:") == 1
    assert _results(tmp_path) == unharmed


@pytest.mark.smoke
def test_models_and_adapters_of_a_hub(tmp_path):
    serve = pytest.importorskip("hf_rlhf_local_hub.server").serve
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from hf_rlhf.models.locate import resolve_model_path

    base = Path(resolve_model_path(f"{ROOT}/tiny_sft"))
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(model, lora).save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "README.md").unlink()  # peft's card names a folder of this machine
    config = tmp_path / "adapter" / "adapter_config.json"
    renamed = {**json.loads(config.read_text()), "base_model_name_or_path": "demo/tiny-sft"}
    config.write_text(json.dumps(renamed))
    push = (
        "import sys, huggingface_hub as h\n"
        "for repo, folder in (('demo/tiny-sft', sys.argv[1]), ('demo/lora', sys.argv[2])):\n"
        "    h.create_repo(repo)\n"
        "    h.upload_folder(repo_id=repo, folder_path=folder)\n"
    )
    with serve(tmp_path / "hub") as hub:
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": "any",
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": "0",
        }
        _run([sys.executable, "-c", push, str(base), str(tmp_path / "adapter")], **environment)
        models = ["--model", f"here={base}", "--model", "sft=demo/tiny-sft"]
        models += ["--model", "lora=demo/lora@main"]
        _run(_command(tmp_path / "out", models=models), **environment)
    results, rows = _results(tmp_path / "out")
    assert rows["sft"]["values"]["total"] == rows["here"]["values"]["total"]
    assert results["sft"]["means"]["kl_k1"]["mean"] == 0.0
    assert results["lora"]["means"]["kl_k3"]["mean"] > 0

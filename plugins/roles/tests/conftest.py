"""A tiny workspace, and runs of the core that are replaced by what they leave."""

import json
import shutil

import pytest
from safetensors.torch import save_file

from hf_rlhf import RunRecord
from hf_rlhf.config import RunFile
from hf_rlhf.models.fingerprint import identify, write_identity
from hf_rlhf_roles import training
from hf_rlhf_roles.workspace import make_workspace


@pytest.fixture(scope="session")
def _made(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("steps") / "ws", None, tiny=True).folder


@pytest.fixture
def home(_made, tmp_path):
    shutil.copytree(_made, tmp_path / "ws")
    return tmp_path / "ws"


@pytest.fixture
def runs(monkeypatch):
    """Leave an adapter and a record as the core does; return the run files that were run."""
    ran = []

    def run(workspace, file):
        values = RunFile.read(file).values
        ran.append(values)
        folder = workspace.folder / values["output_dir"]
        make_adapter(workspace.folder / "base", folder / "adapter", values["plugin"], len(ran))
        (folder / "merged").mkdir(exist_ok=True)
        (folder / "run.json").write_text("{}")
        for spoil in spoilers:
            spoil(workspace.folder)

    spoilers = []
    monkeypatch.setattr(training, "_run", run)
    monkeypatch.setattr(training, "check_steps", lambda *_: None)  # test_dry_run.py has the real
    monkeypatch.setattr(
        training, "load_record", lambda folder: RunRecord(status="finished", run_id="r")
    )
    monkeypatch.setattr(training, "refresh_card", lambda folder: None)
    run.spoilers, run.ran = spoilers, ran
    return run


@pytest.fixture(name="make_adapter")
def _make_adapter():
    """Write an adapter as a trainer leaves it, with random weights."""
    return make_adapter


def make_adapter(base, folder, trainer, seed, head=True):
    import torch

    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(4, 64),
        f"{name}.lora_B.weight": torch.randn(64, 4),
    }
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"]}
    config |= {"task_type": "CAUSAL_LM", "base_model_name_or_path": "./base"}
    if trainer == "reward":
        config |= {"task_type": "SEQ_CLS", "modules_to_save": ["score"]}
        if head:
            tensors["base_model.model.score.weight"] = torch.randn(1, 64)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_identity(folder, identify(base, name="./base"))

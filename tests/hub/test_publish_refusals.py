"""What is not pushed, what is not pulled, and what is tried again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ModelError
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.download import pull
from hf_rlhf.models.adapter import check_adapter, check_tensors

local_hub = pytest.importorskip("hf_rlhf_local_hub")
Fault = local_hub.Fault
PREFIX = "base_model.model.model.layers.{}.self_attn.{}"
Tensors = dict[str, Any]


def adapter(
    folder: Path, change: Callable[[Tensors], Any] = lambda tensors: None, **config: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tensors: Tensors = {}
    for layer in range(2):
        for module in ("q_proj", "v_proj"):
            name = PREFIX.format(layer, module)
            tensors[f"{name}.lora_A.weight"] = np.ones((2, 8), np.float32)
            tensors[f"{name}.lora_B.weight"] = np.ones((8, 2), np.float32)
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "v_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


Q0 = PREFIX.format(0, "q_proj")


def empty_all(tensors: Tensors) -> None:
    for name in tensors:
        tensors[name] = np.ones((0,), np.float32)


def wrap(tensors: Tensors) -> None:
    for name in list(tensors):
        tensors[name.replace("model.layers", "_fsdp_wrapped_module.layers")] = tensors.pop(name)


def only_base(tensors: Tensors) -> None:
    tensors.clear()
    tensors["base_model.model.lm_head.weight"] = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (empty_all, r"has shape \[0\]: empty.*ZeRO-3"),
        (lambda t: t.pop(f"{Q0}.lora_B.weight"), "has no lora_B"),
        (wrap, "_fsdp_wrapped_module"),
        (only_base, "has no LoRA weights"),
    ],
    ids=["empty", "no-B", "wrapped", "no-lora"],
)
def test_an_adapter_that_is_not_whole_is_refused(
    change: Callable[[Tensors], Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=said):
        check_adapter(adapter(tmp_path, change))


def test_an_adapter_of_other_modules_than_its_configuration_says(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not of one adapter"):
        check_adapter(adapter(tmp_path, target_modules=["up_proj"]))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"target_modules": r"model\.layers\.\d+\.self_attn\.(q|v)_proj"},
        {"target_modules": None, "target_parameters": ["x"]},
    ],
)
def test_a_whole_adapter_passes(config: dict[str, Any], tmp_path: Path) -> None:
    assert check_adapter(adapter(tmp_path, **config)) == []


def test_an_adapter_that_changes_nothing_is_noted(tmp_path: Path) -> None:
    def zero(tensors: Tensors) -> None:
        for name, value in tensors.items():
            if "lora_B" in name:
                tensors[name] = value * -0.0

    (note,) = check_adapter(adapter(tmp_path, zero))
    assert "leaves the base model as it was" in note


def test_full_weights_that_were_not_gathered_are_refused(tmp_path: Path) -> None:
    save_file({"model.embed_tokens.weight": np.ones((0,), np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="empty"):
        check_tensors(tmp_path / "m.safetensors")


def upload(**files: bytes) -> str:
    api = connect().api
    repo_id = str(api.create_repo("demo/half", exist_ok=True).repo_id)
    for name, content in files.items():
        path = name.replace("__", ".").replace("_of_", "-of-")
        api.upload_file(path_or_fileobj=content, path_in_repo=path, repo_id=repo_id)
    return repo_id


def test_what_was_made_but_not_published_yet(empty_hub: Any, tmp_path: Path) -> None:
    repo_id = upload()
    with pytest.raises(ModelError, match="nothing was published there yet"):
        pull(repo_id, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pull_compares_what_came_with_the_hashes(empty_hub: Any, tmp_path: Path) -> None:
    repo_id = upload(config__json=b"{}")
    empty_hub.faults.add(Fault("GET .*/resolve/.*config.json", 200, body="[]"))
    with pytest.raises(ModelError, match=r"config\.json \(1 files\) did not arrive as the Hub"):
        pull(repo_id, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checkpoints_need_a_repository() -> None:
    content = {
        **{"schema": 1, "plugin": "refiner_grpo", "dataset": {"name": "tiny_world"}},
        **{"rewards": [{"name": "answer_format"}], "publish": {"checkpoints": True}},
    }
    _, problems = RunFile.from_mapping(content).spec(allowed_settings={})
    assert any("publish.repo_id" in str(problem) for problem in problems)

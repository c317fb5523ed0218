"""A plan for the GPUs of another machine: what is refused here is listed, and memory is counted."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

from hf_rlhf import dry_run
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf.models.lengths import prompt_lengths
from hf_rlhf.runs.devices import DEVICES, parse_machine
from hf_rlhf.runs.memory import memory_need
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.disk import optimizer_bytes

without_gpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")


@pytest.fixture
def gpu_run(tiny_run: dict[str, Any]) -> dict[str, Any]:
    """Return a run that this machine refuses: bf16 and FlashAttention, and a judge elsewhere."""
    judges = {"words": {"name": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}}
    changes = {"bf16": True, "attn_implementation": "flash_attention_2", "judges": judges}
    changes |= {"use_peft": False, "per_device_train_batch_size": 1, "dtype": "bfloat16"}
    kept = {
        key: value for key, value in tiny_run.items() if not key.startswith(("lora", "use_cpu"))
    }
    return {**kept, **changes}


@without_gpu
def test_a_gpu_run_is_planned_where_there_is_no_gpu(gpu_run, tmp_path, capsys):
    with pytest.raises(ConfigError, match="hf-rlhf check --for 8xH100"):
        dry_run(config=gpu_run)
    (plan,) = dry_run(config=gpu_run, machine="4xH100")
    found = {(row["check"], row["text"].split(",")[0]): row for row in plan["findings"]}
    by_check = {row["check"]: row for row in plan["findings"]}
    assert "FAIL" not in {row["status"] for row in plan["findings"]}
    assert by_check["steps"]["text"].startswith("2 optimizer steps of 4 prompts x 2")
    assert "GPU hours" in by_check["time"]["text"]
    assert "a third of H100's 989 TFLOP/s" in by_check["time"]["text"]
    assert "sharded over 4 by ZeRO-3 or FSDP; H100 has 74.5 GiB" in by_check["memory"]["text"]
    assert "flash_attn is not installed" in found["not checked", "attn_implementation"]["text"]
    assert by_check["judge words"]["text"].startswith("not checked from here: The judge at")
    assert by_check["reward refiner"]["text"].startswith("not tried")
    assert "on 4 processes, planned for another machine" in " ".join(
        capsys.readouterr().out.split()
    )
    assert not list(tmp_path.iterdir())


@without_gpu
def test_expected_processes_plan_without_hours(gpu_run):
    (plan,) = dry_run(config=gpu_run, expect_world_size=4)
    by_check = {row["check"]: row for row in plan["findings"]}
    assert by_check["time"]["text"].startswith("not estimated: `--for 8xH100`")
    assert plan["seconds"] is None
    with pytest.raises(HfRlhfError, match="expect_world_size is 4"):
        dry_run(config=gpu_run, expect_world_size=4, machine="8xH100")


@pytest.mark.parametrize("text", ["8xH10", "0xH100", "8x", "H100x8"])
def test_what_is_no_machine_is_refused(text):
    with pytest.raises(HfRlhfError, match="such as 8xH100, of A10, A100"):
        parse_machine(text)
    assert parse_machine("8xh100") == (8, DEVICES["H100"])


def test_memory_is_that_of_the_models_own_tensors(tiny_run, tmp_path):
    """Weights, gradients, moments and the cache of generation are measured on the tiny policy."""
    run = resolve_run(RunFile.from_mapping({**tiny_run, "use_peft": False}))
    need = memory_need(run)
    model = AutoModelForCausalLM.from_pretrained(run.model_path, dtype=torch.float32)
    longest = max(prompt_lengths(run))
    assert need.tokens == longest + 8
    rows = 8  # of one generation on this process
    out = model(torch.ones(rows, need.tokens, dtype=torch.long), use_cache=True)
    cache = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
    assert need.generation == cache // 2, "in bf16"
    out.logits.sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    tensors = list(model.parameters())
    assert need.weights == need.reference == sum(each.nbytes for each in tensors)
    assert need.gradients == sum(each.grad.nbytes for each in tensors)
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert need.optimizer == sum(value.nbytes for value in states if value.dim())
    numbers = sum(each.numel() for each in tensors)
    kept = need.weights + need.reference + need.gradients
    assert need.per_device() == kept + need.optimizer + max(need.step, need.generation)
    assert need.per_device(2) == (kept + 12 * numbers) // 2 + max(need.step, need.generation)
    assert optimizer_bytes(model, TrainingArguments(str(tmp_path), optim="sgd")) == 4 * numbers


def test_lora_and_recomputed_activations_take_less(tiny_run):
    def need(**settings: Any) -> Any:
        return memory_need(resolve_run(RunFile.from_mapping({**tiny_run, **settings})))

    lora = need()
    assert lora.reference == 0
    assert lora.gradients < lora.weights / 4
    assert need(activation_checkpointing=True).step < lora.step

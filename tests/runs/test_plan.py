"""A plan for the GPUs of another machine: what is refused here is listed, and memory is counted."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_rlhf import dry_run
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.distributed import planned
from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf.models.loading import skeleton
from hf_rlhf.runs.devices import DEVICES, parse_machine
from hf_rlhf.runs.estimate import disk_need
from hf_rlhf.runs.preflight_launch import master_copy_problems
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.disk import small_bytes
from hf_rlhf.testing import make_tiny_policy

without_gpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")


@pytest.fixture
def gpu_run(tiny_run: dict[str, Any]) -> dict[str, Any]:
    """Return a run that this machine refuses: bf16 and FlashAttention, and a judge elsewhere."""
    judges = {"words": {"name": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1"}}
    changes = {"bf16": True, "attn_implementation": "flash_attention_2", "judges": judges}
    changes |= {"use_peft": False, "per_device_train_batch_size": 1, "dtype": "bfloat16"}
    changes |= {"max_completion_length": 16, "evaluation": None}
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
    assert plan["seconds"] is None
    assert "time" not in by_check
    memory = by_check["memory"]["text"]
    assert memory.startswith("counted, of 74.5 GiB on a H100: ")
    assert "per GPU with ZeRO-3 over 4 (weights" in memory
    assert memory.count("): fits") == 3, "one for each stage of ZeRO"
    assert "DDP" not in memory
    assert by_check["advice"]["text"].startswith("every weight is trained in bfloat16, so that a")
    assert (
        "the package for FlashAttention2 doesn"
        in found["not checked", "attn_implementation"]["text"]
    )
    assert by_check["judge words"]["text"].startswith("not checked from here: The judge m at")
    assert by_check["reward refiner"]["text"].startswith("not tried")
    assert "on 4 processes, planned for another machine" in " ".join(
        capsys.readouterr().out.split()
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["8xH10", "0xH100", "8x", "H100x8"])
def test_what_is_no_machine_is_refused(text):
    with pytest.raises(HfRlhfError, match="such as 8xH100, of A10, A100"):
        parse_machine(text)
    assert parse_machine("8xh100") == (8, DEVICES["H100"])


@without_gpu
@pytest.mark.parametrize("kind", [None, "deepspeed", "FSDP"])
def test_a_plan_counts_the_checkpoints_of_its_launch(gpu_run, kind):
    given = {} if kind is None else {"expect_distributed": kind}
    with planned(4, elsewhere=True):
        run = resolve_run(RunFile.from_mapping({**gpu_run, **given}))
        need = disk_need(run, 2)
    a_number = 12 if kind == "FSDP" else 2 + 2 + 12
    size = skeleton(run).num_parameters() * a_number
    assert need.checkpoint == size + small_bytes(run.tokenizer)


def problems(settings):
    try:
        return resolve_run(RunFile.from_mapping(settings)), ""
    except ConfigError as error:
        return None, str(error)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, False),
        ({"dtype": "bfloat16"}, True),
        ({"dtype": "float16"}, True),
        ({"dtype": "bfloat16", "optim_args": "use_kahan_summation=True"}, True),
        ({"dtype": "bfloat16", "use_peft": True, "lora_r": 4}, False),
        (
            {
                **{"dtype": "bfloat16", "optim": "adamw_anyprecision"},
                "optim_args": "use_kahan_summation=True",
            },
            None,
        ),
    ],
)
def test_training_every_weight_in_16_bit_is_refused(tiny_run, settings, refused):
    tiny_run = {name: value for name, value in tiny_run.items() if not name.startswith("lora")}
    _, message = problems({**tiny_run, "use_peft": False, **settings})
    assert ("dtype: " in message) == bool(refused)
    if refused:
        assert "Write `dtype: float32` with `bf16: true`, train a LoRA" in message


def test_the_checkpoints_own_dtype_is_known(tiny_run, tmp_path):
    folder = make_tiny_policy(tmp_path / "policy")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tiny_run = {name: value for name, value in tiny_run.items() if not name.startswith("lora")}
    tiny_run |= {"model_name_or_path": str(folder), "use_peft": False}
    assert "dtype: bfloat16: every weight" in problems({**tiny_run, "dtype": "auto"})[1]
    # TRL reads null as float32, transformers as the checkpoint's.
    run, _ = problems({**tiny_run, "dtype": None})
    assert run.model_kwargs()["dtype"] == "float32"
    assert {each.dtype for each in skeleton(run).parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("environment", "settings", "kept"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, {}, True),
        ({"ACCELERATE_USE_FSDP": "true"}, {"bf16": True}, True),
        ({"ACCELERATE_USE_FSDP": "true"}, {}, False),
        ({}, {"bf16": True}, False),
    ],
)
def test_sharded_launches_keep_a_copy_in_float32(
    tiny_run, monkeypatch, environment, settings, kept
):
    run, _ = problems({**tiny_run, "use_peft": False})
    run.model.dtype = "bfloat16"
    run.training.bf16 = bool(settings)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (not list(master_copy_problems(run))) == kept

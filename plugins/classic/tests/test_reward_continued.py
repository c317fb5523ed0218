"""A reward adapter that goes on from an adapter of SFT."""

import json

from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_rlhf.models.fingerprint import identify, write_identity
from hf_rlhf_classic.reward import RewardModelTrainer

PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]
SETTINGS = {
    "plugin": "reward",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_base",
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no"},
}


def test_an_adapter_with_an_output_layer_is_gone_on_with_by_a_score_head(prepared, tmp_path):
    """SFT by `lora_modules_to_save: [lm_head]` leaves one; the head takes its place."""
    base = prepared(PAIRS, PAIRS[:4], **SETTINGS).model_path
    asked = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"], r=2)
    policy = get_peft_model(AutoModelForCausalLM.from_pretrained(base), asked)
    for value in policy.parameters():
        value.data += 0.01 * value.requires_grad
    policy.save_pretrained(tmp_path / "sft")
    write_identity(tmp_path / "sft", identify(base, name=str(base)))
    there = load_file(tmp_path / "sft" / "adapter_model.safetensors")
    assert any("lm_head" in name for name in there)
    settings = {**SETTINGS, "use_peft": True, "adapter": str(tmp_path / "sft")}
    trainer = RewardModelTrainer.from_run(prepared(PAIRS, PAIRS[:4], **settings))
    held = dict(trainer.model.named_parameters())
    for name, value in there.items():
        if "lm_head" not in name:
            assert held[name.replace(".weight", ".default.weight")].equal(value)
    trainer.train()
    trainer.save_model(str(tmp_path / "reward"))
    config = json.loads((tmp_path / "reward" / "adapter_config.json").read_text())
    assert "score" in config["modules_to_save"]
    assert "lm_head" not in config["modules_to_save"]
    saved = load_file(tmp_path / "reward" / "adapter_model.safetensors")
    assert not any("lm_head" in name for name in saved)

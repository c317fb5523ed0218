"""What is said of a PPO run before its weights load."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import save_file
from transformers import AutoTokenizer

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.testing.offering import offering
from hf_rlhf.testing.tiny import make_tiny_policy

LORA = {"use_peft": True, "lora_r": 2, "lora_target_modules": ["q_proj"]}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 500}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ppo")
    make_tiny_policy(made / "policy")
    return made


@pytest.fixture
def problems(folder, tmp_path):
    """Return what stands against a run, one text."""
    rows = DatasetDict(train=Dataset.from_dict({"prompt": ["a", "b", "c", "d"]}))

    def say(**settings):
        content = {
            "schema": 1,
            "plugin": "ppo",
            "model_name_or_path": str(folder / "policy"),
            "output_dir": str(tmp_path / "run"),
            "dataset": {"name": "rows"},
            "rewards": [{"name": "constant"}],
            "evaluation": None,
            "rollout_batch_size": 4,
            "use_cpu": True,
            "bf16": False,
            **settings,
        }
        content = {key: value for key, value in content.items() if value != "absent"}
        offered = {
            "datasets": {"rows": lambda: rows},
            "rewards": {"constant": lambda: lambda completions, **_: [1.0] * len(completions)},
        }
        with offering(offered):
            try:
                resolve_run(RunFile.from_mapping(content))
            except ConfigError as error:
                return str(error)
        return ""

    return say


def reward_adapter(folder, width=32, head=True, labels=1):
    """Write a LoRA of the tiny policy's q_proj, as peft does."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 2, "lora_alpha": 4}
    config |= {"target_modules": ["q_proj"], "modules_to_save": ["score"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    tensors = {}
    for layer in range(2):
        tensors[name.format(layer, "A")] = torch.zeros(2, width)
        tensors[name.format(layer, "B")] = torch.zeros(32, 2)
    if head:
        tensors["base_model.model.score.weight"] = torch.ones(labels, width)
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def test_a_good_run_has_none(problems, folder, tmp_path):
    assert problems(**LORA) == ""
    assert (
        problems(**LORA, reward_adapter=reward_adapter(tmp_path / "good"), rewards="absent") == ""
    )
    assert problems(reference_model_path=str(folder / "policy")) == ""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "reference: the KL is to be measured against the weights that full fine-tuning"),
        ({**LORA, "rewards": "absent"}, "no reward has a weight other than 0"),
        ({**LORA, "rollout_batch_size": 5}, "4 training rows, but one step takes 5 prompts"),
        ({**LORA, "lora_dropout": 0.1}, "PPO trains without dropout"),
        ({**LORA, "num_mini_batches": 3}, "num_mini_batches 3 does not divide the 4"),
        ({**LORA, "gradient_accumulation_steps": 2}, "gradient_accumulation_steps: is not used"),
        ({**LORA, "per_device_train_batch_size": 3}, "is not the 4 that rollout_batch_size 4"),
        ({**LORA, "temperature": 0.0}, "temperature: should be greater than 0"),
        ({**LORA, "kl_coef": 0.0, "kl_target": 6.0}, "leaves 0 at 0"),
        ({**LORA, "kl_target": 6.0, "kl_horizon": 0.8}, "kl_horizon 0.8 is short for steps of 4"),
        ({**LORA, "gamma": 1.1}, "gamma: should be "),
        ({**LORA, "reference": "none"}, "reference none needs kl_coef 0"),
        ({**LORA, "fp16": True}, "use bf16"),
        (
            {**LORA, **EVALUATED, "metric_for_best_model": "loss"},
            "is the loss, which this trainer does not have",
        ),
        ({**LORA, "torch_empty_cache_steps": 5}, "torch_empty_cache_steps: has no effect"),
        ({**LORA, "train_sampling_strategy": "group_by_length"}, "needs rows with `input_ids`"),
        ({**LORA, "optim": "schedule_free_adamw"}, "optim: schedule_free_adamw cannot be built"),
        ({"value": "own_adapter", "reference": "none", "kl_coef": 0.0}, "value: own_adapter"),
        ({**LORA, "reference_model_path": "./nowhere"}, "'./nowhere' does not load"),
        ({**LORA, "reward_adapter": "./nowhere"}, "there is no folder './nowhere'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_is_said(problems, settings, said):
    assert said in problems(**settings)


def test_adapters_that_do_not_fit(problems, folder, tmp_path):
    headless = reward_adapter(tmp_path / "headless", head=False)
    assert "has no score head" in problems(**LORA, reward_adapter=headless)
    wide = reward_adapter(tmp_path / "wide", width=48)
    assert "and one of [1, 32] is read" in problems(**LORA, reward_adapter=wide)
    classes = reward_adapter(tmp_path / "classes", labels=3)
    assert "and one of [1, 32] is read" in problems(**LORA, reward_adapter=classes)
    good = reward_adapter(tmp_path / "good")
    assert "needs the base as it was trained on" in problems(
        reward_adapter=good, reference="none", kl_coef=0.0
    )
    both = problems(**LORA, reward_adapter=good, reward_model_path=str(folder / "policy"))
    assert "are both given" in both
    without = {"rewards": "absent", "learned_reward_weight": 0}
    assert "no reward has a weight" in problems(**LORA, **without, reward_adapter=good)
    AutoTokenizer.from_pretrained(folder / "policy").save_pretrained(good)
    assert problems(**LORA, reward_adapter=good) == ""
    other = AutoTokenizer.from_pretrained(folder / "policy")
    other.pad_token = other.eos_token
    other.save_pretrained(good)
    assert "another tokenizer or chat template" in problems(**LORA, reward_adapter=good)
    AutoTokenizer.from_pretrained(folder / "policy").save_pretrained(good)
    _swap_two_tokens(Path(good))
    assert "another tokenizer or chat template" in problems(**LORA, reward_adapter=good)
    identity = {"schema": 1, "base": "other/base", "hidden_size": 32, "fingerprint": "0" * 64}
    Path(good, "base_identity.json").write_text(json.dumps(identity))
    assert "was made for another base, 'other/base'" in problems(**LORA, reward_adapter=good)


def _swap_two_tokens(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(content))


def test_a_reference_with_another_tokenizer(problems, folder, tmp_path):
    other = make_tiny_policy(tmp_path / "other")
    _swap_two_tokens(other)
    assert "has another vocabulary" in problems(**LORA, reference_model_path=str(other))

"""No setting is without effect, or has another than it says, unless the user is told."""

import re
import shutil
from typing import Any

import pytest
from transformers import AutoTokenizer

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.prepare import prepare
from hf_rlhf.run import find_model


def problems(run: dict[str, Any]) -> str:
    """Return what is wrong with a run, one text; nothing is an empty one."""
    try:
        prepare(RunFile.from_mapping(run, name="my.yaml"))
    except ConfigError as error:
        return str(error)
    return ""


REFUSED = [
    # What the run itself, or the composed reward, decides.
    ({"reward_weights": [-1.0]}, r"reward_weights: .*rewards\.<label>\.weight"),
    ({"reward_weights": [1.0, 1.0]}, r"reward_weights: .*rewards\.<label>\.weight"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation: "),
    ({"metric_for_best_model": "loss"}, "metric_for_best_model: .*`evaluation` section"),
    ({"load_best_model_at_end": True}, "load_best_model_at_end: .*`evaluation` section"),
    ({"eval_steps": 5}, "eval_steps: .*`evaluation` section"),
    ({"do_eval": True}, "do_eval: .*`evaluation` section"),
    ({"eval_on_start": True}, "eval_on_start: .*`evaluation` section"),
    ({"per_device_eval_batch_size": 2}, r"per_device_eval_batch_size: .*evaluation\.batch_size"),
    ({"num_generations_eval": 4}, r"num_generations_eval: .*completions_per_prompt"),
    ({"save_strategy": "best"}, "save_strategy: "),
    ({"auto_find_batch_size": True}, "auto_find_batch_size: "),
    ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint: .*stop_grace"),
    ({"disable_tqdm": True}, "disable_tqdm: "),
    ({"log_completions_hub_repo": "a/b", "log_completions": True}, "log_completions_hub_repo: "),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor: "),
    ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy: "),
    ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha: "),
    # The start model's own settings.
    ({"model_init_kwargs": {"revision": "abc"}}, "model_init_kwargs: .*`model_revision: abc`"),
    ({"model_init_kwargs": {"dtype": "bfloat16"}}, "model_init_kwargs: .*`dtype: bfloat16`"),
    (
        {"model_init_kwargs": {"attn_implementation": "eager"}},
        "model_init_kwargs: .*`attn_implementation: eager`",
    ),
    # Numbers.
    ({"temperature": 0.0}, r"temperature: is 0\. .*above 0"),
    ({"max_completion_length": 0}, r"max_completion_length: is 0\. .*1 or more"),
    ({"top_k": -5}, r"top_k: is -5\. .*0 or more"),
    ({"top_p": 0.0}, r"top_p: is 0\. "),
    ({"min_p": 1.5}, r"min_p: is 1.5\. "),
    ({"repetition_penalty": 0.0}, r"repetition_penalty: is 0\. "),
    ({"lora_r": 0}, r"lora_r: is 0\. .*1 or more"),
    ({"lora_alpha": 0}, r"lora_alpha: is 0\. .*1 or more"),
    ({"lora_dropout": 2.0}, r"lora_dropout: is 2\. "),
    ({"adam_beta1": 2.0}, r"adam_beta1: is 2\. "),
    ({"epsilon": -0.2}, r"epsilon: is -0.2\. "),
    ({"beta": -1.0}, r"beta: is -1\. "),
    ({"num_iterations": 0}, r"num_iterations: is 0\. "),
    ({"max_steps": 0}, r"max_steps: is 0\. .*-1"),
    ({"max_steps": -5}, r"max_steps: is -5\. "),
    ({"seed": -1}, r"seed: is -1\. "),
    ({"save_total_limit": 0}, r"save_total_limit: is 0\. "),
    ({"warmup_steps": 1.5}, r"warmup_steps: is 1.5\. .*whole number"),
    ({"logging_steps": -1}, r"logging_steps: is -1\. "),
    ({"save_steps": 0}, r"save_steps: is 0\. "),
    ({"pad_to_multiple_of": 0}, r"pad_to_multiple_of: is 0\. "),
    # Words that are looked at only once the weights are loaded.
    ({"scale_rewards": "bogus"}, "scale_rewards: 'bogus' .*group, batch, none"),
    ({"importance_sampling_level": "bogus"}, "importance_sampling_level: 'bogus' .*token"),
    ({"dtype": "int8"}, "dtype: 'int8' .*bfloat16"),
    ({"attn_implementation": "bogus"}, "attn_implementation: .*bogus"),
    ({"lora_modules_to_save": ["bogus"]}, "lora_modules_to_save: names bogus"),
    ({"lora_target_modules": ["lm_head"]}, "lora_target_modules: .*lm_head"),
    ({"router_aux_loss_coef": 0.1}, "router_aux_loss_coef: .*Mixture-of-Experts"),
    ({"sync_ref_model": True}, "sync_ref_model: .*LoRA"),
    ({"generation_kwargs": {"temperature": 0.5}}, "generation_kwargs: .*temperature"),
    ({"generation_kwargs": {"bogus": 1}}, "generation_kwargs: .*bogus"),
    ({"cache_implementation": "bogus"}, "cache_implementation: .*bogus"),
    # Optimizer and schedule are built as transformers builds them.
    ({"optim": "lomo"}, "optim: .*lomo"),
    ({"optim": "adamw_8bit"}, "optim: .*bitsandbytes"),
    ({"optim": "galore_adamw"}, "optim: .*galore"),
    ({"optim_args": "momentum=0.9"}, "optim_args: .*no effect.*adamw_torch"),
    ({"optim": "sgd", "optim_args": "momentum"}, "optim_args: "),
    ({"optim": "sgd", "adam_beta1": 0.8}, "adam_beta1: .*no effect.*sgd"),
    ({"optim_target_modules": ["q_proj"]}, "optim_target_modules: .*no effect"),
    ({"lr_scheduler_kwargs": {"bogus": 1}}, "lr_scheduler_kwargs: .*bogus"),
    (
        {"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {"bogus": 1}},
        "lr_scheduler_kwargs: .*no effect.*constant",
    ),
    (
        {"lr_scheduler_type": "constant", "warmup_steps": 1},
        "warmup_steps: .*no effect.*constant_with_warmup",
    ),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type: .*min_lr"),
    ({"dataloader_persistent_workers": True}, "dataloader_persistent_workers: "),
    ({"accelerator_config": {"split_batches": True}}, "accelerator_config: .*split_batches"),
]


@pytest.mark.parametrize(
    ("settings", "said"), REFUSED, ids=[" ".join(map(str, one.items())) for one, _ in REFUSED]
)
def test_each_is_refused_before_weights_load(tiny_run, settings, said):
    found = problems(tiny_run | settings)
    assert re.search(said, found, re.S), found or "nothing is said"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system turns') }}",
        "{{ messages[9].content + 1 }}",
    ],
)
def test_a_chat_template_that_raises_is_said_with_its_row(tiny_run, tmp_path, template):
    shutil.copytree(find_model(tiny_run["model_name_or_path"]), tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(tmp_path / "model")
    tiny_run["model_name_or_path"] = str(tmp_path / "model")
    found = problems(tiny_run)
    assert re.search(r"model_name_or_path: its chat template raises on .* row 0 of train", found)

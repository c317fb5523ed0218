"""Fixes for unknown names: what to write instead."""

from collections.abc import Mapping

_DERIVE = "Derive a trainer and name it, `plugin: FILE.py:CLASS` (docs/how-to/write-a-trainer.md)."
TRL_ARGUMENTS: Mapping[str, str] = {
    "formatting_func": (
        "The trainer expects finished rows. As the `dataset`, name a function that returns them "
        "(`{name: FILE.py:FUNCTION}`), or map a Dataset before you pass it."
    ),
    "rollout_func": f"Name an `environment` or `tools`, which the model calls. Or: {_DERIVE}",
    **dict.fromkeys(
        ("compute_metrics", "preprocess_logits_for_metrics"),
        "To measure something on held-out rows, write a reward, with `weight: 0` if it is not "
        f"trained on, or the trainer's own `held_out`. {_DERIVE}",
    ),
    **dict.fromkeys(("data_collator", "compute_loss_func"), f"The trainer has its own. {_DERIVE}"),
    **dict.fromkeys(
        ("optimizers", "optimizer_cls_and_kwargs"),
        "Write `optim`, `optim_args`, `lr_scheduler_type` and `lr_scheduler_kwargs`. For an "
        f"optimizer of your own: {_DERIVE}",
    ),
    "ref_model": (
        "The reference is where training starts: the base, or the adapter that is continued. "
        "`sync_ref_model` moves it."
    ),
    "model_init": "Name the model, `model_name_or_path`.",
    "teacher_model": "Write `teacher_model_name_or_path`.",
    "quantization_config": "Write `load_in_4bit: true`, `bnb_4bit_quant_type: nf4` and the like.",
    "reward_processing_classes": "The reward `reward_model` loads the tokenizer of its model.",
}
"""Argument of TRL's or transformers' trainers that no run file can hold -> what to write."""
KNOWN_CURES: Mapping[str, str] = {
    **TRL_ARGUMENTS,
    "warmup_ratio": "Write `warmup_steps`: a number below 1 is a share of all steps.",
    "max_prompt_length": (
        "TRL no longer cuts prompts; let the dataset adapter leave out long prompts "
        "(`hf-rlhf describe ADAPTER` lists its limits)."
    ),
    **dict.fromkeys(
        ("streaming", "dataset_streaming"),
        "Rows are counted, checked and held out before training, and a resumed run finds its place "
        "among them, so all are read first: piece by piece into files on disk, not into memory.",
    ),
    "resume_from": (
        "The same command resumes a folder. The Hub has the weights of a checkpoint but not its "
        "optimizer: to begin a new run with these weights, write `adapter: REPO` and "
        "`adapter_revision: step-STEP`; for full weights `model_name_or_path` and `model_revision`."
    ),
}
"""Unknown setting that is often written -> the cure; settings of older versions, for instance."""
OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("lora_rank", "lora_dim"), "lora_r"),
    **dict.fromkeys(("lora_target", "target_modules"), "lora_target_modules"),
    "lr": "learning_rate",
    **dict.fromkeys(("epochs", "num_epochs"), "num_train_epochs"),
    **dict.fromkeys(("batch_size", "micro_batch_size"), "per_device_train_batch_size"),
    "gradient_accumulation": "gradient_accumulation_steps",
    **{"torch_dtype": "dtype", "evaluation_strategy": "eval_strategy"},
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    **dict.fromkeys(("cutoff_len", "sequence_len", "max_seq_length"), "max_length"),
}
"""Name of a setting in another framework -> its name here."""

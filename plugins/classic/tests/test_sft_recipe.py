"""The classic recipe for GPT-2: its run files, on a tiny GPT-2 and rows shaped like hh-rlhf's."""

import pytest

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.testing.rows import write_rows

ON_THIS_MACHINE = {
    **{"use_cpu": True, "bf16": False, "dataloader_pin_memory": False, "max_steps": 2},
    **{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "save_steps": 1},
    "logging_steps": 1,
}


@pytest.fixture
def transcripts(tmp_path):
    """Return a file of pairs in hh-rlhf's form: whole transcripts that part at the last answer."""
    rows = []
    for number in range(60):
        start = f"\n\nHuman: Is {number} even?\n\nAssistant: Do you mean the number?"
        start += f"\n\nHuman: Yes, {number}.\n\nAssistant:"
        right, wrong = ("Yes.", "No.") if number % 2 == 0 else ("No.", "Yes, it is.")
        rows.append({"chosen": f"{start} {right}", "rejected": f"{start} {wrong}"})
    return write_rows(tmp_path, rows, "pairs.jsonl")


def run_of(trainer, model, path, folder, **settings):
    """Return the recipe's run file of a trainer, on this model and these rows."""
    values = dict(choose_run_file(trainer, "gpt2_hh", None).values)
    values["dataset"] = {**values["dataset"], "path": str(path), "test_rows": 8}
    values |= {**ON_THIS_MACHINE, "model_name_or_path": model, "output_dir": str(folder)}
    values["evaluation"] = {**values["evaluation"], "rows": 4, "batch_size": 4}
    if trainer != "reward":
        values["evaluation"]["max_new_tokens"] = 8
    if trainer == "grpo":
        values["max_completion_length"] = 8
        values["prompts_per_step"] = 1
    if trainer == "ppo":
        values |= {"max_completion_length": 8, "rollout_batch_size": 8, "micro_batch_size": 1}
        del values["per_device_train_batch_size"]
    return RunFile.from_mapping({**values, **settings})


@pytest.fixture
def go(transcripts, tmp_path):
    """Return a function that trains a stage of the recipe, and returns its record."""
    from hf_rlhf import train

    def make(trainer, model, **settings):
        file = run_of(trainer, model, transcripts, tmp_path / trainer, **settings)
        return train(config=dict(file.values))

    return make


def assert_rewarded(record):
    """A finished run was measured by the reward model, and shows what it wrote."""
    assert record.status == "finished"
    assert {"reward", "total"} <= record.evaluation.after.keys()
    assert "after" in {row.stage for row in record.samples}


@pytest.mark.slow
def test_the_whole_recipe_runs_on_one_base_with_an_adapter_for_each_stage(go, plain_gpt2, tmp_path):
    """All others go on with the SFT's LoRA; the reward is the base with a LoRA."""
    lora = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4}
    pad = {"pad_token": "<|endoftext|>", "use_peft": True}
    go("sft", plain_gpt2, **lora)
    start = {**pad, "adapter": str(tmp_path / "sft" / "adapter")}
    go("reward", plain_gpt2, **start)
    scorer = {"model": plain_gpt2, "adapter": str(tmp_path / "reward" / "adapter")}
    by_model = [{"name": "reward_model", "label": "reward", **scorer}]
    for trainer in ("dpo", "grpo"):
        record = go(trainer, plain_gpt2, **start, rewards=by_model)
        assert_rewarded(record)
        assert not list((tmp_path / trainer).rglob("ref/adapter_model.safetensors"))
    adapter = {"reward_adapter": scorer["adapter"], "rewards": by_model}
    record = go("ppo", plain_gpt2, **start, **adapter, lora_r=4)
    assert_rewarded(record)
    # The adapter that PPO switches to on its base says what the model of its own does.
    measured = record.evaluation.after
    assert measured["reward_adapter"].mean == pytest.approx(measured["reward"].mean, abs=1e-4)
    logged = record.training.history[0]
    assert logged["rewards/reward_adapter/mean"] == pytest.approx(
        logged["rewards/reward/mean"], abs=1e-4
    )

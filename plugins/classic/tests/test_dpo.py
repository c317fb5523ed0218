"""Direct preference optimization: the reference, what is measured, what is refused."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_rlhf.errors import ConfigError
from hf_rlhf_classic.dpo import SIDES, PreferenceTrainer
from hf_rlhf_classic.encoding import encode_pair

MODEL = "package://hf_rlhf_classic/tiny_sft"
SETTINGS = {
    "plugin": "dpo",
    "model_name_or_path": MODEL,
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    "learning_rate": 1e-2,
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no", "logging_steps": 1},
}
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "lora_dropout": 0.0}
PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]


@pytest.fixture
def run(prepared):
    """Return a function from rows and settings to a prepared run."""

    def make(rows=PAIRS, **settings):
        return prepared(rows, rows[:4], **{**SETTINGS, **settings})

    return make


@pytest.fixture
def adapter(run, tmp_path):
    """Return the folder of a LoRA adapter that is not 0."""
    trainer = PreferenceTrainer.from_run(run(**LORA))
    for name, value in trainer.model.named_parameters():
        value.data += 0.02 * ("lora_B" in name)
    trainer.save_model(str(tmp_path / "adapter"))
    return tmp_path / "adapter"


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def test_the_reference_of_a_continued_adapter_is_that_adapter(run, adapter):
    prepared = run(max_steps=2, adapter=str(adapter), use_peft=True)
    trainer = PreferenceTrainer.from_run(prepared)
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(0.6931, abs=1e-4)
    model = trainer.model
    start = load_file(adapter / "adapter_model.safetensors")
    moved = 0.0
    for name, value in start.items():
        reference = model.get_parameter(name.replace(".weight", ".ref.weight"))
        policy = model.get_parameter(name.replace(".weight", ".default.weight"))
        assert reference.equal(value)
        assert not reference.requires_grad
        moved = max(moved, (policy - value).abs().max().item())
    assert moved > 0


def test_a_continued_adapter_resumes_exactly(run, adapter, tmp_path):
    """Killed after the first of two steps, it ends with the very same weights."""
    settings = {
        **{"max_steps": 2, "save_strategy": "steps", "save_steps": 1},
        **{"adapter": str(adapter), "use_peft": True},
    }
    whole = PreferenceTrainer.from_run(run(**settings))
    whole.train()
    whole.save_model(str(tmp_path / "whole"))
    shutil.copytree(f"{whole.args.output_dir}/checkpoint-1", tmp_path / "checkpoint-1")
    for folder in (tmp_path / "whole", tmp_path / "checkpoint-1"):  # without the reference
        assert [path.parent for path in folder.rglob("adapter_model.safetensors")] == [folder]
    resumed = PreferenceTrainer.from_run(run(**settings))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    resumed.save_model(str(tmp_path / "resumed"))
    one, other = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "resumed")
    )
    assert max((one[name] - other[name]).abs().max().item() for name in one) == 0
    assert logged(whole, "loss")[-1] == logged(resumed, "loss")[-1]


def test_held_out_margins_are_differences_of_log_likelihood(run):
    prepared = run(evaluation={"rows": 4, "batch_size": 3})
    found = PreferenceTrainer.held_out(prepared, prepared.model_path, {})
    model = AutoModelForCausalLM.from_pretrained(prepared.model_path).eval()

    def log_prob(row, side):
        start = len(prepared.tokenizer(row["prompt"])["input_ids"])
        ids = torch.tensor([prepared.tokenizer(f"{row['prompt']}{row[side]}<end>")["input_ids"]])
        with torch.no_grad():
            logs = model(ids).logits[0, :-1].log_softmax(-1)
        return logs.gather(1, ids[0, 1:, None])[start - 1 :].sum().item()

    for row, metrics in zip(PAIRS[:4], found.rows, strict=True):
        chosen, rejected = (log_prob(row, side) for side in ("chosen", "rejected"))
        assert metrics["chosen_log_prob"] == pytest.approx(chosen, abs=1e-4)
        assert metrics["preference_margin"] == pytest.approx(chosen - rejected, abs=1e-4)
        assert metrics["preference_accuracy"] == float(chosen > rejected)


LOOKS_AHEAD = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>2{% endif %}"
)


def test_both_responses_are_measured_from_where_trl_has_them_begin(run, gpt2):
    """The prompt's rendering ends as one of the two begins: what that adds counts in both."""
    model = gpt2(chat_template=LOOKS_AHEAD)
    rows = [
        {
            "prompt": [{"role": "user", "content": "1+1="}],
            "chosen": [{"role": "assistant", "content": chosen}],
            "rejected": [{"role": "assistant", "content": rejected}],
        }
        for chosen, rejected in (("2", "3"), ("4", "2"), ("2", "25"), ("3", "4"))
    ]
    prepared = run(rows, model_name_or_path=model)
    trainer = PreferenceTrainer.from_run(prepared)
    starts = []
    for row, trained in zip(rows, trainer.train_dataset, strict=True):
        for side, one in zip(SIDES, encode_pair(prepared.tokenizer, row, SIDES), strict=True):
            assert list(one.ids) == trained["prompt_ids"] + trained[f"{side}_ids"]
            assert sum(one.counted) == len(trained[f"{side}_ids"])
        starts.append(len(trained["prompt_ids"]))
    assert len(set(starts)) == 2


def test_rows_that_are_cut_or_left_out_are_counted(run):
    rows = [
        *PAIRS,
        {"prompt": "1" * 70, "chosen": "2", "rejected": "3"},
        {"prompt": "1+1=", "chosen": "2", "rejected": "3" * 70},
    ]
    prepared = run(rows, max_dropped_share=0.1)
    trainer = PreferenceTrainer.from_run(prepared)
    assert str(PreferenceTrainer.row_counts(prepared)["train"]) == (
        "9 of 10 rows kept (dropped: the prompt alone fills `max_length` 64: 1; "
        "cut: a response is cut at `max_length` 64: 1)"
    )
    assert len(trainer.train_dataset) == 9


@pytest.mark.parametrize("most", [4, 7, 11])
def test_rows_at_every_length_are_counted_as_trl_has_them(run, most):
    rows = [
        {"prompt": "1" * length, "chosen": "2" * more, "rejected": "3"}
        for length in range(1, 9)
        for more in (1, 3)
    ]
    prepared = run(rows, max_length=most, max_dropped_share=0.9, max_cut_share=1)
    counts = PreferenceTrainer.row_counts(prepared)["train"]
    trained = PreferenceTrainer.from_run(prepared).train_dataset
    longest = [
        len(row["prompt_ids"]) + max(len(row[f"{side}_ids"]) for side in SIDES) for row in trained
    ]
    assert counts.used == len(trained)
    assert sum(counts.cut.values()) == sum(length > most for length in longest)


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([{"prompt": "a", "completion": "b"}], {}, "chosen, rejected are missing"),
        (PAIRS, {"max_length": 5}, "would be cut, more than `max_cut_share` (50%) allows"),
        (PAIRS, {"truncation_mode": "middle"}, "'middle' is unknown"),
        (PAIRS, {"padding_free": True}, "is not done by this version of TRL"),
        (PAIRS, {"loss_type": ["sigmoidal"]}, "'sigmoidal' is unknown"),
        (PAIRS, {"loss_type": []}, "[] is unknown"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_load(run, rows, settings, said):
    with pytest.raises(ConfigError) as refused:
        run(rows, **settings)
    assert said in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_it_keeps_the_contract_and_resumes_exactly(lora):
    from datasets import Dataset, DatasetDict

    from hf_rlhf.testing import check_trainer

    peft = {**LORA, "lora_dropout": 0.1}
    rows = DatasetDict(train=Dataset.from_list(PAIRS), test=Dataset.from_list(PAIRS[:4]))
    check_trainer(
        PreferenceTrainer,
        dataset=rows,
        settings={"activation_checkpointing": False, "max_length": 128, **(peft if lora else {})},
    )

"""Reward models: the head, what is read, what is left out, what is said of length."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from hf_rlhf.errors import ConfigError
from hf_rlhf_classic.pairs import Pair, calibration, row_metrics, scores
from hf_rlhf_classic.reward import RewardModelTrainer

MODEL = "package://hf_rlhf_classic/tiny_sft"
SETTINGS = {
    "plugin": "reward",
    "model_name_or_path": MODEL,
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no"},
}
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4}
PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]


@pytest.fixture
def run(prepared):
    """Return a function from rows and settings to a prepared run."""

    def make(rows=PAIRS, **settings):
        return prepared(rows, rows[:4], **{**SETTINGS, **settings})

    return make


def head_of(trainer):
    model = trainer.accelerator.unwrap_model(trainer.model)
    return next(value for name, value in model.named_parameters() if name.endswith("score.weight"))


def test_a_new_head_has_no_bias_and_is_the_seeds(run):
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(torch.seed())  # whatever came before does not count
        trainer = RewardModelTrainer.from_run(run(seed=seed))
        model = trainer.model
        assert model.score.bias is None
        assert model.score.weight.shape == (1, model.config.hidden_size)
        heads.append(head_of(trainer).detach().clone())
    assert heads[0].equal(heads[1])
    assert not heads[0].equal(heads[2])


def test_before_training_it_is_measured_with_the_head_that_training_starts_from(run):
    prepared = run(evaluation={"rows": 4})
    trainer = RewardModelTrainer.from_run(prepared)
    trained = RewardModelTrainer.held_out(prepared, trainer.model, {})
    assert RewardModelTrainer.held_out(prepared, prepared.model_path, {}).rows == trained.rows
    assert trainer.tables_at_end().keys() == {"Scores", "Calibration"}


def test_the_loss_is_bradley_and_terrys_with_margins(run):
    rows = [{**row, "margin": 0.5 * place} for place, row in enumerate(PAIRS[:4])]
    trainer = RewardModelTrainer.from_run(run(rows, center_rewards_coefficient=0.1))
    trainer.model.eval()
    batch = next(iter(trainer.get_train_dataloader()))
    assert sorted(batch["margin"].tolist()) == [0.0, 0.5, 1.0, 1.5]
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch)).item()
        both = trainer.model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits.squeeze(-1)
    chosen, rejected = both.chunk(2)
    expected = -torch.nn.functional.logsigmoid(chosen - rejected - batch["margin"]).mean()
    expected += 0.1 * ((chosen + rejected) ** 2).mean()
    assert loss == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("pad", ["<pad>", "<end>"])
def test_the_score_is_read_off_the_last_token_that_is_not_padding(gpt2, pad):
    """On either side; where the end is the pad token too, off the one before the end."""
    folder = gpt2()
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = pad
    model.config.pad_token_id = tokenizer.pad_token_id
    texts = ["1+1=2<end>", "12+13=25<end>"]
    sequences = [tokenizer(text)["input_ids"] for text in texts]
    with torch.no_grad():
        alone = []
        for ids in sequences:
            states = model.transformer(torch.tensor([ids])).last_hidden_state
            last = -2 if pad == "<end>" else -1
            alone.append(model.score(states[0, last]).item())
    assert scores(model, sequences, tokenizer.pad_token_id, 2) == pytest.approx(alone, abs=1e-5)
    left = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    positions = (left["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        found = model(**left, position_ids=positions).logits.squeeze(-1)
    assert found.tolist() == pytest.approx(alone, abs=1e-5)


def test_a_lora_is_saved_with_its_head(run, tmp_path):
    trainer = RewardModelTrainer.from_run(run(**LORA))
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    head = next(value for name, value in saved.items() if name.endswith("score.weight"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["task_type"], "score" in config["modules_to_save"]) == ("SEQ_CLS", True)
    assert not any("score.lora" in name for name in saved)
    wrapper = trainer.model.base_model.model.score
    assert head.equal(wrapper.modules_to_save["default"].weight)
    assert not head.equal(wrapper.original_module.weight)  # it was trained


def test_pairs_that_are_too_long_are_left_out_and_counted(run):
    long = {"prompt": "1+1=", "chosen": "2", "rejected": "3" * 80}
    prepared = run([*PAIRS, long], evaluation={"rows": 4}, max_dropped_share=1)
    trainer = RewardModelTrainer.from_run(prepared)
    assert str(RewardModelTrainer.row_counts(prepared)["train"]) == (
        "8 of 9 rows kept (dropped: a text over `max_length` 64: 1)"
    )
    assert len(trainer.train_dataset) == 8
    held_out = run([long, *PAIRS], evaluation={"rows": 2}, max_dropped_share=0.2)
    assert RewardModelTrainer.row_counts(held_out)["test"].used == 1
    found = RewardModelTrainer.held_out(held_out, held_out.model_path, {})
    assert set(found.rows[0].values()) == {None}
    assert found.rows[1]["pair_accuracy"] in (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([{"prompt": "a", "completion": "b"}], {}, "chosen, rejected are missing"),
        (
            [{**row, "margin": math.inf if place == 1 else 1.0} for place, row in enumerate(PAIRS)],
            {},
            "row 1 of train has the margin inf",
        ),
        (
            [{**PAIRS[0], "chosen": "1" * 600}, *PAIRS],
            {"max_length": None},
            "over the model's 512 positions",
        ),
        (
            PAIRS,
            {**LORA, "lora_task_type": "CAUSAL_LM"},
            "lora_task_type: is 'CAUSAL_LM', and what reward trains is text-classification",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_load(run, rows, settings, said):
    with pytest.raises(ConfigError) as refused:
        run(rows, **settings)
    assert said in str(refused.value)


def test_a_row_says_what_length_has_to_do_with_it():
    longer_right = row_metrics(Pair(2.0, 1.0, chosen_tokens=9, rejected_tokens=4))
    assert longer_right == {
        "pair_accuracy": 1.0,
        "margin": 1.0,
        "pair_loss": pytest.approx(-math.log(1 / (1 + math.exp(-1)))),
        "accuracy_longer_chosen": 1.0,
        "accuracy_longer_rejected": None,
    }
    shorter_wrong = row_metrics(Pair(-800.0, 1.0, chosen_tokens=3, rejected_tokens=4))
    assert shorter_wrong["accuracy_longer_rejected"] == 0.0
    assert shorter_wrong["pair_loss"] == pytest.approx(801)  # no overflow
    tie = row_metrics(Pair(1.0, 1.0, 4, 4))
    assert tie["pair_accuracy"] == 0.5
    assert tie["accuracy_longer_chosen"] is tie["accuracy_longer_rejected"] is None


def test_calibration_by_hand():
    """Four pairs at a confidence of 0.8, three of them right: off by 0.05."""
    margin = math.log(0.8 / 0.2)
    pairs = [Pair(margin, 0, 2, 2)] * 3 + [Pair(0, margin, 2, 2)]
    found = calibration(pairs)
    assert found["expected calibration error"] == pytest.approx(0.05)
    assert found["mean confidence"] == pytest.approx(0.8)
    sure = [Pair(50.0, 0.0, 2, 2)] * 4
    assert calibration(sure)["expected calibration error"] == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_it_keeps_the_contract_and_resumes_exactly(lora):
    from datasets import Dataset, DatasetDict

    from hf_rlhf.testing import check_trainer

    peft = {**LORA, "lora_dropout": 0.1}
    rows = DatasetDict(train=Dataset.from_list(PAIRS), test=Dataset.from_list(PAIRS[:4]))
    check_trainer(
        RewardModelTrainer,
        dataset=rows,
        settings={
            **{"activation_checkpointing": False, "max_length": 128, "rewards": []},
            **(peft if lora else {}),
        },
    )

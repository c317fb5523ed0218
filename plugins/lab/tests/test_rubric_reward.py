"""`--plugin rubric_reward`: its loss, what it refuses and leaves out, and the model it saves."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from scipy.stats import spearmanr

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError
from hf_rlhf.runs import resolve_run
from hf_rlhf.train import train
from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_lab.rubric.grades import row_metrics
from hf_rlhf_lab.rubric.trainer import RubricRewardTrainer

NAMES = ("helpfulness", "honesty", "harmlessness", "conciseness", "specificity")
SETTINGS = {
    "plugin": "rubric_reward",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    **{"use_cpu": True, "dataloader_pin_memory": False, "save_strategy": "no"},
}
ROWS = [
    {
        "prompt": f"{n}+{n}=",
        "completion": str(2 * n),
        "grades": {name: 1 + (n + k) % 5 for k, name in enumerate(NAMES)},
    }
    for n in range(1, 9)
]


@pytest.fixture
def settings(offer, tmp_path):
    """Return a function from rows and settings to a run file's values."""

    splits = {}
    offer("datasets", graded_rows=lambda: DatasetDict(splits))

    def make(rows=ROWS, **changes):
        splits.update(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:4]))
        folder = {"output_dir": str(tmp_path / "run")}
        return {"dataset": {"name": "graded_rows"}, **SETTINGS, **folder, **changes}

    return make


@pytest.fixture
def run(settings):
    return lambda *args, **changes: resolve_run(RunFile.from_mapping(settings(*args, **changes)))


def test_the_loss_is_the_squared_error_of_the_mean_grade(run):
    trainer = RubricRewardTrainer.from_run(run())
    batch = next(iter(trainer.get_train_dataloader()))
    grades = batch["labels"]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    score = trainer.model.eval()(**inputs).logits.squeeze(-1)
    expected = ((score - grades.mean(dim=1)) ** 2).mean()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    assert loss.item() == pytest.approx(expected.item(), 1e-5)
    assert 0.2 <= grades.min() <= grades.max() <= 1


@pytest.mark.parametrize(
    ("grades", "message"),
    [
        (lambda row: {**row, "honesty": 6}, "row 0 of train: the grade of 'honesty' is 6"),
        (lambda row: {**row, "honesty": None}, "row 0 of train: the grade of 'honesty' is None"),
        (lambda row: [1, 2], r"not \{criterion: grade\}.*rubric_grades"),
    ],
)
def test_a_grade_off_the_scale_is_refused_with_its_row(run, grades, message):
    with pytest.raises(ConfigError, match=message):
        run([{**row, "grades": grades(row["grades"])} for row in ROWS])


@pytest.mark.slow
def test_accumulated_batches_count_as_one(run):
    weights = []
    for size, accumulated in ((8, 1), (2, 4)):
        changes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        trainer = RubricRewardTrainer.from_run(run(learning_rate=0.1, optim="sgd", **changes))
        trainer.train()
        weights.append(trainer.model.score.weight.detach().clone())
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


def test_long_rows_are_left_out_and_counted(run):
    rows = [*ROWS[:-1], {**ROWS[-1], "completion": "1 " * 200}]
    trainer = RubricRewardTrainer.from_run(run(rows, max_dropped_share=0.5))
    assert len(trainer.train_dataset) == 7
    assert trainer.report()["Graded responses"]["over max_length, left out"] == 1
    counts = RubricRewardTrainer.row_counts(run(rows, max_dropped_share=0.5))
    assert counts["train"].dropped == {"over `max_length` 64": 1}


def test_means_of_the_rows_are_those_of_all_rows():
    scores, grades = [0.1, 0.5, 0.5, 0.9], np.array([0.2, 0.4, 1.0, 0.8])
    rows = row_metrics(scores, grades)
    means = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
    assert means["rank_agreement"] == pytest.approx(spearmanr(scores, grades).statistic)
    assert means["pair_accuracy"] == pytest.approx((4 + 0.5) / 6)
    assert means["squared_error"] == pytest.approx(np.mean((np.array(scores) - grades) ** 2))
    assert [row["pair_accuracy"] for row in rows] == pytest.approx([1, 5 / 6, 1 / 2, 2 / 3])
    assert row_metrics([1.0, 1.0], np.array([0.2, 0.4]))[0]["rank_agreement"] is None


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"use_peft": True, "lora_target_modules": ["all-linear"]}])
def test_the_saved_model_is_a_reward_model(settings, tmp_path, changes):
    few = {"max_steps": 30, "learning_rate": 3e-3, "evaluation": {"rows": 4, "samples": 0}}
    train(config=settings(**few, **changes))
    folder = tmp_path / "run"
    record = json.loads((folder / "run.json").read_text())
    errors = {
        stage: record["evaluation"][stage]["squared_error"]["mean"] for stage in ("before", "after")
    }
    assert errors["after"] < errors["before"] / 2
    reward = RewardModel(str(folder / "merged"))
    scores = reward([row["prompt"] for row in ROWS[:4]], [row["completion"] for row in ROWS[:4]])
    wanted = [sum(row["grades"].values()) / 25 for row in ROWS[:4]]
    measured = np.mean((np.array(scores) - wanted) ** 2)
    assert measured == pytest.approx(errors["after"], rel=1e-3)

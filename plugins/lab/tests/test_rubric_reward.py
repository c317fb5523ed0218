"""`--plugin rubric_reward`: its loss, what it refuses and leaves out, and the model it saves."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
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


def with_grade(grade):
    return [*ROWS[:2], {**ROWS[2], "grades": {**ROWS[2]["grades"], "honesty": grade}}, *ROWS[3:]]


@pytest.mark.parametrize("heads", ["sum", "per_criterion"])
def test_the_loss_is_the_squared_error_of_the_mean_grade_and_of_the_deviations(run, heads):
    trainer = RubricRewardTrainer.from_run(run(heads=heads))
    batch = next(iter(trainer.get_train_dataloader()))
    grades = batch["labels"]
    model = trainer.model.eval()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    output = model(**inputs, output_hidden_states=True)
    score = output.logits.squeeze(-1)
    expected = ((score - grades.mean(dim=1)) ** 2).mean()
    if heads == "per_criterion":
        last = batch["attention_mask"].sum(dim=1) - 1
        hidden = output.hidden_states[-1][torch.arange(4), last]
        assert torch.allclose(model.score(hidden).squeeze(-1), score, atol=1e-6)
        deviation = model.criteria(hidden)
        deviation = deviation - deviation.mean(dim=1, keepdim=True)
        wanted = grades - grades.mean(dim=1, keepdim=True)
        expected = expected + ((deviation - wanted) ** 2).mean()
    assert trainer.compute_loss(model, dict(batch)).item() == pytest.approx(expected.item(), 1e-5)
    assert grades.min() >= 0.2
    assert grades.max() <= 1


def test_held_out_rows_do_not_count_in_the_errors_of_training(run):
    trainer = RubricRewardTrainer.from_run(run(heads="per_criterion", use_peft=False))
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.compute_loss(trainer.model.eval(), dict(batch))
    assert not trainer.errors
    trainer.compute_loss(trainer.model.train(), dict(batch))
    assert set(trainer.errors) == set(NAMES)


@pytest.mark.slow
def test_accumulated_batches_count_as_one(run):
    weights = []
    for size, accumulated in ((8, 1), (2, 4)):
        changes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        trainer = RubricRewardTrainer.from_run(run(learning_rate=0.1, optim="sgd", **changes))
        trainer.train()
        weights.append(trainer.model.score.weight.detach().clone())
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


@pytest.mark.parametrize("grade", [0, 6, None])
def test_a_grade_off_the_scale_is_refused_with_its_row(run, grade):
    with pytest.raises(ConfigError, match=rf"row 2 of train: the grade of 'honesty' is {grade}"):
        run(with_grade(grade))


def test_grades_that_are_no_mapping_are_refused(run):
    rows = [{**row, "grades": [1, 2]} for row in ROWS]
    with pytest.raises(ConfigError, match=r"not \{criterion: grade\}.*rubric_grades"):
        run(rows)


def test_heads_that_an_adapter_would_lose_are_refused(run):
    with pytest.raises(ConfigError, match=r"heads: per_criterion trains a head"):
        run(heads="per_criterion", use_peft=True)


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
def test_a_resumed_training_ends_as_the_unbroken_one_with_its_head(run):
    changes = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    prepared = run(heads="per_criterion", per_device_train_batch_size=2, **changes)
    heads = []
    for checkpoint in (None, f"{prepared.training.output_dir}/checkpoint-2"):
        trainer = RubricRewardTrainer.from_run(prepared)
        trainer.train(checkpoint)
        heads.append(trainer.model.criteria.weight.detach().clone())
    assert torch.equal(*heads)


def test_it_is_evaluated_during_training(run):
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "evaluation": {"rows": 2}}
    trainer = RubricRewardTrainer.from_run(run(heads="per_criterion", logging_steps=1, **evaluated))
    trainer.train()
    (evaluated,) = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    (trained,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert trained["loss"] == pytest.approx(
        np.mean([trained[f"squared_error/{name}"] for name in NAMES]), rel=1e-3
    )
    assert not any(name.startswith("squared_error") for name in evaluated)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"heads": "per_criterion"}, {"use_peft": True, "lora_target_modules": ["all-linear"]}],
)
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
    saved = load_file(folder / "merged" / "model.safetensors")
    assert ("criteria.weight" in saved) == ("heads" in changes)


@pytest.mark.slow
def test_it_trains_on_what_rubric_grades_writes(tmp_path, settings):
    lines = [json.dumps({**row, "grade": 0.5, "reason": "r"}) for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    dataset = {"name": "sft", "path": str(tmp_path / "rows.jsonl"), "test_rows": 2}
    train(config={**settings(), "dataset": dataset})
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "finished"

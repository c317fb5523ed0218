"""The reward `reward_ensemble`: members alone, what they add up to, and what is refused."""

import pickle
from statistics import fmean, pstdev

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_rlhf.errors import ModelError
from hf_rlhf.models import resolve_model_path
from hf_rlhf.testing import check_reward
from hf_rlhf.testing.modules import light_import
from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_lab.ensemble import RewardEnsemble

BASE = "package://hf_rlhf_classic/tiny_sft"
PROMPTS, ANSWERS = ["1+1=", "2+2=", "3+3=", "4+4="], ["2", "five", "6 and more", ""]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return two reward models with heads drawn by different seeds."""
    folders = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp(f"model{seed}")
        torch.manual_seed(seed)
        base = resolve_model_path(BASE)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(base).save_pretrained(folder)
        folders.append(str(folder))
    return folders


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Return two LoRA reward adapters, each with its head, none of which is zero."""
    from peft import LoraConfig, get_peft_model

    folders = []
    for seed in range(2):
        torch.manual_seed(seed)
        base = AutoModelForSequenceClassification.from_pretrained(
            resolve_model_path(BASE), num_labels=1
        )
        config = LoraConfig(
            r=4,
            target_modules="all-linear",
            task_type="SEQ_CLS",
            modules_to_save=["score"],
            init_lora_weights=False,
        )
        folder = tmp_path_factory.mktemp(f"adapter{seed}")
        get_peft_model(base, config).save_pretrained(folder)
        folders.append(str(folder))
    return folders


def alone(**members):
    return [RewardModel(**member)(PROMPTS, ANSWERS) for member in members["each"]]


def test_the_mean_less_the_penalty_and_the_lowest(models):
    rows = list(zip(*alone(each=[{"model": model} for model in models]), strict=True))
    scored = RewardEnsemble(models=tuple(models), penalty=0.5)(PROMPTS, ANSWERS)
    assert scored == pytest.approx([fmean(row) - 0.5 * pstdev(row) for row in rows], abs=1e-5)
    assert min(map(pstdev, rows)) > 0.01
    lowest = RewardEnsemble(models=tuple(models), aggregate="min")(PROMPTS, ANSWERS)
    assert lowest == pytest.approx([min(row) for row in rows], abs=1e-5)


def test_adapters_on_one_base_score_as_each_does_alone_on_one_scale_and_after_pickling(adapters):
    logged = {}
    scaled = {"means": (0, 1), "stds": (1, 2), "penalty": 1.0}
    ensemble = RewardEnsemble(base=BASE, adapters=tuple(adapters), **scaled)
    apart = alone(each=[{"model": BASE, "adapter": adapter} for adapter in adapters])
    rows = [(first, (second - 1) / 2) for first, second in zip(*apart, strict=True)]
    expected = pytest.approx([fmean(row) - pstdev(row) for row in rows], abs=1e-5)
    assert ensemble(PROMPTS, ANSWERS, log_metric=logged.__setitem__) == expected
    mean = fmean(second for _, second in rows)
    assert logged["reward_ensemble/member_2"] == pytest.approx(mean, abs=1e-5)
    disagreement = fmean(map(pstdev, rows))
    assert logged["reward_ensemble/disagreement"] == pytest.approx(disagreement, abs=1e-5)
    first, second = (member._loaded[0].model for member in ensemble.members)
    assert first is second
    assert pickle.loads(pickle.dumps(ensemble))(PROMPTS, ANSWERS) == expected


@pytest.mark.slow
def test_it_keeps_the_rules_of_a_reward(models):
    check_reward(
        RewardEnsemble(models=tuple(models[:2]), batch_size=1, max_length=200),
        skip=["both_shapes"],  # messages are other texts, by the chat template
    )


def test_its_module_imports_nothing_heavy():
    light_import("hf_rlhf_lab.ensemble")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either `models`, or `adapters` and their `base`"),
        ({"adapters": ("a", "b")}, "either `models`, or `adapters`"),
        ({"models": ("a",)}, "has 1 member. Name at least 2"),
        ({"models": ("a", "b"), "penalty": -0.1}, "penalty is -0.1, which would pay"),
        ({"models": ("a", "b"), "aggregate": "min", "penalty": 1}, "has no penalty"),
        ({"models": ("a", "b"), "means": (1.0,)}, "one for each of its 2 members"),
        ({"models": ("./a", "./b")}, "no folder"),
    ],
)
def test_settings_that_are_refused_before_weights_load(settings, message):
    with pytest.raises(ModelError, match=message):
        RewardEnsemble(**settings)


def test_members_that_are_refused_before_weights_load(models):
    with pytest.raises(ModelError, match="is a member twice"):
        RewardEnsemble(models=(models[0], f"{models[0]}/"))
    with pytest.raises(ModelError, match="without a score head"):
        RewardEnsemble(models=(models[0], BASE))

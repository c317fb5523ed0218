"""GRPO: rewards that tell completions apart are what it learns from."""

import pytest
from transformers import AutoModelForCausalLM, TrainerState

from hf_rlhf import contracts
from hf_rlhf.errors import ConfigError, ModelError, RewardError
from hf_rlhf.evaluation.held_out import measure_in_training
from hf_rlhf.storage.record import load_record
from hf_rlhf.training import open_session
from hf_rlhf.training.trial import try_rewards
from hf_rlhf_classic.grpo import FLAT, GroupTrainer
from hf_rlhf_classic.rloo import LeaveOneOutTrainer

SETTINGS = {
    "plugin": "grpo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "rewards": [{"name": "constant"}],
    **{"max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4},
    **{"max_completion_length": 4, "logging_steps": 1, "learning_rate": 1e-3},
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no"},
}
PROMPTS = [{"prompt": f"{n}+{n}="} for n in range(1, 9)]


class Constant:
    """The same for all."""

    def __call__(self, prompts, completions, **_):
        return [1.0] * len(completions)


class Alternating:
    """0 and 1 in turn."""

    def __call__(self, prompts, completions, **_):
        return [float(place % 2) for place in range(len(completions))]


class Silent:
    """Abstains."""

    def __call__(self, prompts, completions, **_):
        return [None] * len(completions)


@pytest.fixture
def run(prepared, offer):
    offer("rewards", constant=Constant, alternating=Alternating, silent=Silent)

    def make(rows=PROMPTS, **settings):
        return prepared(rows, rows[:4], **{**SETTINGS, **settings})

    return make


def test_rewards_that_never_differ_are_told_at_the_first_step(run, capsys):
    trainer = GroupTrainer.from_run(run())
    trainer.train()
    assert capsys.readouterr().out.count("so nothing is learned") == 1


def test_steps_without_any_reward_stop_training(run, capsys):
    silent = run(rewards=[{"name": "silent"}], max_steps=9, max_steps_without_reward=2)
    trainer = GroupTrainer.from_run(silent)
    with pytest.raises(RewardError, match="2 consecutive steps without a reward"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert "silent on 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plugin", "cls"),
    [("grpo", GroupTrainer), pytest.param("rloo", LeaveOneOutTrainer, marks=pytest.mark.slow)],
)
def test_steps_in_which_every_completion_was_cut_and_masked_stop_training(run, capsys, plugin, cls):
    settings = {"plugin": plugin, "mask_truncated_completions": True, "max_completion_length": 1}
    cut = run(
        rewards=[{"name": "alternating"}], max_steps=9, max_steps_without_reward=2, **settings
    )
    trainer = cls.from_run(cut)
    with pytest.raises(RewardError, match="consecutive steps without a whole completion"):
        trainer.train()
    assert "completions were cut, and masked" in capsys.readouterr().out


class Everything:
    """Scores 1.0 where what TRL passes beside prompts and completions is of the documented type."""

    def __call__(self, completions, completion_ids, trainer_state, log_metric, log_extra):
        log_metric("seen", 1.0)
        log_extra("lengths", [len(ids) for ids in completion_ids])
        assert isinstance(trainer_state, TrainerState)
        assert trainer_state.global_step <= trainer_state.max_steps == 2
        assert {type(token) for ids in completion_ids for token in ids} == {int}
        assert all(0 < len(ids) <= 24 for ids in completion_ids)
        return [float(type(ids) is list) for ids in completion_ids]


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("grpo", {"num_generations": 4, "max_completion_length": 4}),
        pytest.param("online_dpo", {"max_new_tokens": 4, "max_length": 64}, marks=pytest.mark.slow),
    ],
)
def test_a_reward_gets_the_same_arguments_in_trial_evaluation_and_training(
    prepared, offer, plugin, settings
):
    offer("rewards", everything=Everything)
    sampling = ("num_generations", "max_completion_length")
    common = {name: value for name, value in SETTINGS.items() if name not in sampling}
    settings |= {"plugin": plugin, "evaluation": {"rows": 2}, "rewards": [{"name": "everything"}]}
    prepared = prepared(PROMPTS, PROMPTS[:2], **{**common, **settings})
    assert [each.status for each in try_rewards(prepared, {}).findings] == ["note", "note"]
    model = AutoModelForCausalLM.from_pretrained(prepared.model_path)
    measured = measure_in_training(prepared, model).text
    assert [row["everything"] for row in measured.rows] == [1.0, 1.0]
    trainer = prepared.trainer_class.from_run(prepared)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rewards/everything/mean" in entry]
    assert {entry["rewards/everything/mean"] for entry in logged} == {1.0}


def test_a_column_that_no_trainer_passes_to_rewards_is_refused(run, offer):
    def agrees(completions, completion, **_):
        return [0.0] * len(completions)

    offer("rewards", agrees=agrees)
    rows = [{**row, "completion": "2"} for row in PROMPTS]
    with pytest.raises(ConfigError, match=r"`completion`, which 'agrees' reads.* to `reference`"):
        run(rows, rewards=[{"name": "agrees"}])
    with pytest.raises(ConfigError, match="has a column 'completion_ids', the name of an argument"):
        run([{**row, "completion_ids": [1]} for row in PROMPTS])


def test_rewards_that_differ_are_not(run, capsys):
    trainer = GroupTrainer.from_run(run(rewards=[{"name": "alternating"}], beta=0.1))
    trainer.train()
    assert "so nothing is learned" not in capsys.readouterr().out
    first, second, *_ = trainer.state.log_history
    assert (first[FLAT], first["kl"]) == (0.0, pytest.approx(0, abs=1e-5))
    assert min(first["entropy"], second["kl"], second["reward_std"]) > 0


def test_the_batch_is_said_in_prompts(run):
    assert run(prompts_per_step=4).training.gradient_accumulation_steps == 2
    with pytest.raises(ConfigError, match="prompts_per_step 3 x num_generations 4 = 12"):
        run(prompts_per_step=3)


def test_a_row_of_gpt2_is_trained_as_if_it_were_alone(run, padding_error):
    rows = [{"prompt": f"{n}" * n} for n in range(1, 9)]
    settings = {"rewards": [{"name": "alternating"}], "beta": 0.1}
    errors = padding_error(GroupTrainer, lambda **more: run(rows, **settings, **more))
    assert set(errors) == {"model", "ref_model"}
    assert max(errors.values()) < 1e-5


def test_a_model_that_depends_on_its_batch_is_not_trained(run, gpt2, monkeypatch, capsys):
    """GPT-2 as TRL alone would train it."""
    monkeypatch.setattr(contracts, "add_positions", lambda models: None)
    prepared = run(model_name_or_path=gpt2())
    with pytest.raises(ModelError, match="exactness: .*padded on the left"):
        open_session(prepared).go([])
    record = load_record(prepared.folder)
    assert (record.status, record.training.steps) == ("failed", None)
    assert "padded on the left" in record.exactness.comparisons[0].exceeding
    assert "| padded on the left |" in (prepared.folder / "README.md").read_text(encoding="utf-8")
    assert "exactness: log-probabilities of 3 rows alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "settings", "said"),
    [
        ([{"question": "1+1="}], {}, "so prompt is missing"),
        (PROMPTS, {"rewards": []}, "no reward has a weight other than 0"),
        (PROMPTS[:1], {}, "one generation batch takes 2 prompts"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_load(run, rows, settings, said):
    with pytest.raises(ConfigError) as refused:
        run(rows, **settings)
    assert said in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_it_keeps_the_contract_and_resumes_exactly(lora):
    from hf_rlhf.testing import check_trainer

    peft = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_dropout": 0.1}
    settings = {"activation_checkpointing": False, "beta": 0.1, **(peft if lora else {})}
    check_trainer(GroupTrainer, settings=settings)

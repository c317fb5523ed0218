"""The thin trainers of TRL: the contract, what is refused or left out, and that each one learns."""

import math
from statistics import fmean

import pytest
from datasets import Dataset, DatasetDict

from hf_rlhf import train
from hf_rlhf.errors import ConfigError
from hf_rlhf.testing import check_trainer
from hf_rlhf.testing.tiny import make_tiny_policy
from hf_rlhf_classic.distillation import DistilledTrainer
from hf_rlhf_classic.kto import JudgedResponseTrainer
from hf_rlhf_classic.online_dpo import OnlinePreferenceTrainer
from hf_rlhf_classic.reference_free import ContrastiveTrainer, OddsRatioTrainer
from hf_rlhf_classic.rloo import LeaveOneOutTrainer

CPU = {
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no", "logging_steps": 1},
}
SETTINGS = {
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    **CPU,
}
PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]
JUDGED = [
    {"prompt": f"{n}+{n}=", "completion": str(2 * n + n % 2), "label": n % 2 == 0}
    for n in range(1, 9)
]
CLASSES = {
    "kto": JudgedResponseTrainer,
    "orpo": OddsRatioTrainer,
    "cpo": ContrastiveTrainer,
    "rloo": LeaveOneOutTrainer,
    "online_dpo": OnlinePreferenceTrainer,
    "distillation": DistilledTrainer,
}
PROMPTS = [{"prompt": row["prompt"]} for row in PAIRS]
TEACHER = {"teacher_model_name_or_path": "package://hf_rlhf_classic/tiny_sft"}


@pytest.fixture
def run(prepared):
    """Return a function from a trainer, rows and settings to a prepared run."""

    def make(plugin, rows=None, **settings):
        rows = rows or (JUDGED if plugin == "kto" else PAIRS)
        return prepared(rows, rows[:4], **{"plugin": plugin, **SETTINGS, **settings})

    return make


@pytest.mark.slow
@pytest.mark.parametrize("plugin", sorted(CLASSES))
def test_trainers_keep_the_contract(plugin, tmp_path):
    rows = {"kto": JUDGED, "orpo": PAIRS, "cpo": PAIRS}.get(plugin)
    data, settings = None, {"activation_checkpointing": False}
    if rows:
        data = DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:4]))
        settings |= {"max_length": 128, "rewards": []}
        # The checks set it wherever there is such a setting; these trainers refuse it.
        settings |= {} if plugin == "kto" else {"max_completion_length": None}
    if plugin == "online_dpo":
        settings |= {"max_new_tokens": 8, "max_length": 256}
    if plugin == "distillation":
        teacher = make_tiny_policy(tmp_path / "teacher", seed=1)
        settings["teacher_model_name_or_path"] = str(teacher)
    check_trainer(CLASSES[plugin], dataset=data, settings=settings)


class Longest:
    """The length of the completion; of odd prompts the second completion has none."""

    def __call__(self, prompts, completions, **_):
        pairs = zip(prompts, completions, range(len(prompts)), strict=True)
        odd = {PAIRS[0]["prompt"], PAIRS[2]["prompt"]}
        return [None if n % 2 and p in odd else float(len(c)) for p, c, n in pairs]


def test_completions_are_compared_in_pairs_and_failures_are_no_numbers(run, offer):
    offer("rewards", longest=Longest)
    prepared = run(
        "online_dpo",
        PROMPTS,
        rewards=[{"name": "longest"}],
        **SAMPLED,
        beta=[0.1, 0.3],
        max_steps=1,
    )
    trainer = OnlinePreferenceTrainer.from_run(prepared)
    prompts = [row["prompt"] for row in PROMPTS[:3]] * 2
    scores = trainer.pairs(prompts, ["a", "bb", "c", "ddd", "e", "ff"])
    assert scores == [None, 2.0, None, None, 1.0, None]
    counts = trainer.report()["Sampled pairs of the first process, since it began"]
    assert counts == {"compared": 1, "of equal reward": 0, "without a reward": 2}
    metrics = trainer.pairs.take_metrics()
    assert metrics["rewards/total/none"] == 2
    assert metrics["rewards/total/mean"] == metrics["reward"] == 1.25  # of the four that scored
    trainer.state.epoch = 1.5  # each epoch has its own
    assert trainer.beta == 0.3
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "rewards/longest/mean" in entry]
    assert len(logged) == 1


SAMPLED = {"max_new_tokens": 4, "max_length": 64}


@pytest.mark.parametrize("plugin", ["online_dpo", "distillation"])
def test_a_row_of_gpt2_is_trained_as_if_it_were_alone(plugin, run, offer, padding_error, gpt2):
    offer("rewards", longest=Longest)
    settings = {
        "online_dpo": {**SAMPLED},
        "distillation": {"teacher_model_name_or_path": gpt2("teacher"), "max_completion_length": 4},
    }[plugin]
    settings["rewards"] = [{"name": "longest"}]
    rows = [{"prompt": f"{n}" * n} for n in range(1, 9)]
    errors = padding_error(CLASSES[plugin], lambda **more: run(plugin, rows, **settings, **more))
    assert set(errors) == {"model", "teacher_model" if plugin == "distillation" else "ref_model"}
    assert max(errors.values()) < 1e-5


def test_a_loss_on_cut_prompts_is_refused(run, offer):
    offer("rewards", fixed=Fixed)
    lengths = {"max_length": 8, "max_new_tokens": 5}
    with pytest.raises(ConfigError, match="the loss would cut them.*max_length: 9"):
        run("online_dpo", PROMPTS, rewards=[{"name": "fixed"}], **lengths)


def test_rloo_is_not_taken_for_grpo(run, offer):
    """It has no `loss_type`, and GRPO's own settings are unknown to it."""
    offer("rewards", fixed=Fixed)
    trainer = LeaveOneOutTrainer.from_run(run_of_prompts(run, max_steps=1))
    trainer.train()
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == 1.0
    with pytest.raises(ConfigError, match="scale_rewards"):
        run_of_prompts(run, scale_rewards="group")


@pytest.mark.parametrize("plugin", ["kto", "orpo", "rloo"])
@pytest.mark.parametrize("setting", [{"label_smoothing_factor": 0.1}])
def test_a_setting_that_its_loss_ignores_is_refused(run, offer, plugin, setting):
    """TRL computes these losses itself, without what transformers' loss reads."""
    offer("rewards", fixed=Fixed)
    with pytest.raises(ConfigError, match=f"{next(iter(setting))}: has no effect"):
        run_of_prompts(run, **setting) if plugin == "rloo" else run(plugin, **setting)


class Fixed:
    """The same for all."""

    def __call__(self, prompts, completions, **_):
        return [1.0] * len(completions)


def run_of_prompts(run, **settings):
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 4}
    rows = [{"prompt": row["prompt"]} for row in PAIRS]
    return run("rloo", rows, rewards=[{"name": "fixed"}], **sizes, **settings)


def test_a_pair_whose_prompt_fills_max_length_is_left_out_and_counted(run):
    """TRL would keep it with an empty response, and its loss would not be a number."""
    long = {"prompt": "1+" * 30 + "1=", "chosen": "31", "rejected": "32"}
    prepared = run("cpo", [*PAIRS, long], max_length=24, max_dropped_share=0.5, max_steps=1)
    trainer = ContrastiveTrainer.from_run(prepared)
    counts = trainer.report()["Training pairs"]
    assert (counts["given"], counts["prompt over max_length, left out"]) == (9, 1)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [math.isfinite(loss) for loss in losses] == [True]


def test_judged_responses_are_counted_and_shuffled_by_the_seed(run):
    """TRL reads them in order, so a file sorted by label would give batches of one label."""
    rows = sorted(JUDGED, key=lambda row: row["label"])
    trainers = [JudgedResponseTrainer.from_run(run("kto", rows, seed=seed)) for seed in (1, 2)]
    labels = [trainer.train_dataset["label"] for trainer in trainers]
    assert labels[0] != labels[1]
    assert labels[0] != [row["label"] for row in rows]
    assert trainers[0].report() == {"Training responses": {"good": 4, "bad": 4}}


@pytest.mark.parametrize(
    ("plugin", "rows", "settings", "message"),
    [
        ("kto", None, {"per_device_train_batch_size": 1}, "must be at least 2"),
        ("kto", None, {"train_sampling_strategy": "random"}, "must be sequential"),
        ("kto", None, {"beta": 0.0}, "no response has an effect"),
        ("kto", [row for row in JUDGED if row["label"]], {}, "only responses with label true"),
        ("cpo", None, {"loss_type": "dpo"}, "Known: sigmoid, hinge, ipo, simpo"),
        ("cpo", None, {"loss_type": "ipo", "label_smoothing": 0.1}, "label_smoothing.*no effect"),
        ("orpo", None, {"max_length": None}, "reads as 512"),
        ("orpo", None, {"is_encoder_decoder": True}, "is for encoder-decoder models"),
        ("online_dpo", PROMPTS, {"reward_model_path": "x"}, "Add the reward `reward_model`"),
        (
            *("distillation", PROMPTS),
            {"teacher_model_name_or_path": "package://hf_rlhf_refiner/tiny_policy"},
            "has another vocabulary",
        ),
        (
            *("distillation", PROMPTS, {**TEACHER, "gradient_accumulation_steps": 3}),
            "8 training rows, but one step takes 12 prompts",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_load(
    run, plugin, rows, settings, message
):
    with pytest.raises(ConfigError, match=message):
        run(plugin, rows, **settings)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plugin", sorted(CLASSES))
def test_held_out_reward_rises_for_every_seed_and_above_the_noise(plugin, tmp_path):
    gains = []
    for seed in (1, 2, 3):
        record = train(plugin, seed=seed, output_dir=str(tmp_path / f"{plugin}{seed}"))
        gains.append(record.evaluation.difference["total"])
    assert all(gain.mean > 0 for gain in gains), gains
    # Of the mean over seeds; an interval of 95% is 1.96 standard errors to each side.
    noise = math.hypot(*((gain.high - gain.low) / 2 for gain in gains)) / len(gains)
    assert fmean(gain.mean for gain in gains) > noise, gains

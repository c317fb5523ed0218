"""Process and outcome reward models: tokens, training, saving, and the reward."""

import json
import math

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import AutoModelForTokenClassification, AutoTokenizer

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, ModelError, RewardError
from hf_rlhf.models import merge_adapter, resolve_model_path
from hf_rlhf.runs import resolve_run
from hf_rlhf.testing import check_reward, check_trainer, offering
from hf_rlhf_lab.process.chains import IGNORED, Reading, encode, right_padded, score_chains
from hf_rlhf_lab.process.measures import outcome_metrics, step_metrics, with_auc
from hf_rlhf_lab.process.reward import ProcessReward
from hf_rlhf_lab.process.trainers import (
    OutcomeRewardTrainer,
    ProcessRewardTrainer,
    reading,
    step_loss,
)
from hf_rlhf_worlds.chains import chains

BASE = "package://hf_rlhf_worlds/tiny_untrained"
ROWS = chains(16, 8, after_error="own").dataset
SETTINGS = {
    "model_name_or_path": BASE,
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "max_length": 64,
    "use_cpu": True,
    "bf16": False,
    "dataloader_pin_memory": False,
    "save_strategy": "no",
}
NOT_SET = object()
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4}


@pytest.fixture
def run(tmp_path):
    """Return a function from rows and settings to a prepared run."""

    def make(rows=ROWS, plugin="prm", **settings):
        if not isinstance(rows, DatasetDict):
            rows = DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:2]))
        content = {"plugin": plugin, "dataset": {"name": "rows"}, **SETTINGS}
        content |= {"output_dir": str(tmp_path / "run"), **settings}
        content = {key: value for key, value in content.items() if value is not NOT_SET}
        with offering({"datasets": {"rows": lambda: rows}}):
            return resolve_run(RunFile.from_mapping(content))

    return make


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model_path(BASE))


@pytest.fixture
def merging():
    """Return a tokenizer that makes one token of a line break and what stands around it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: number for number, token in enumerate((*alphabet, "2Ċ", "2Ċ2", "ĊĊ"))}
    model = models.BPE(words, [("2", "Ċ"), ("2Ċ", "2"), ("Ċ", "Ċ")])
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_boundary_survives_merges_over_it(merging):
    assert merging.tokenize("1+1=2\n2+1=3\n") == [*"1+1=", "2Ċ2", *"+1=3", "Ċ"]
    chain = encode(merging, "1+1+1=2\n", ["1+1=2", "2+1=3"], Reading())
    assert [merging.convert_ids_to_tokens(chain.ids[end]) for end in chain.ends] == ["Ċ", "Ċ"]
    assert merging.decode(chain.ids) == "1+1+1=2\n1+1=2\n2+1=3\n"
    assert merging.decode(chain.ids[: chain.ends[0] + 1]).endswith("1+1=2\n")
    wide = encode(merging, "?", ["1+1=2", "2"], Reading("\n\n"))
    assert [merging.convert_ids_to_tokens(wide.ids[end]) for end in wide.ends] == ["ĊĊ", "ĊĊ"]


def test_labels_stand_at_the_boundaries_alone(tokenizer):
    chain = encode(tokenizer, "1+1+1=?\n", ["1+1=2", "2+1=4"], Reading())
    labels = chain.labels([True, False])
    assert [label for label in labels if label != IGNORED] == [1, 0]
    assert [at for at, label in enumerate(labels) if label != IGNORED] == chain.ends
    whole = encode(tokenizer, "1+1+1=?\n", ["1+1=2", "2+1=4"], Reading(outcome=True))
    assert (whole.ids, whole.ends) == (chain.ids, [len(chain.ids) - 1])


def test_padding_and_other_solutions_of_a_batch_change_no_score(tokenizer):
    model = AutoModelForTokenClassification.from_pretrained(resolve_model_path(BASE)).eval()
    padded = right_padded(tokenizer)
    solutions = [["1+1=2"], ["1+1=2", "2+1=4", "#### 4"], ["1+1=3", "9"]]
    encoded = [encode(tokenizer, "1+1+1=?\n", steps, Reading()) for steps in solutions]
    together = score_chains(model, padded, encoded, 3)
    for chain, scores in zip(encoded, together, strict=True):
        (alone,) = score_chains(model, padded, [chain], 1)
        assert scores == pytest.approx(alone, abs=1e-6)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([chain.ids])).logits[0]
        assert scores == pytest.approx(logits.softmax(-1)[chain.ends, 1].tolist(), abs=1e-6)


def test_the_loss_is_the_mean_over_all_labels_of_a_step(run):
    trainer = ProcessRewardTrainer.from_run(run())
    batch = next(iter(trainer.get_train_dataloader()))
    labels = batch["labels"]
    trainer.model.eval()
    with torch.no_grad():
        outputs = trainer.model(batch["input_ids"], attention_mask=batch["attention_mask"])
        probabilities = outputs.logits.log_softmax(-1)
    places = (labels != IGNORED).nonzero().tolist()
    losses = [-probabilities[row, at, labels[row, at]].item() for row, at in places]
    assert len(losses) == 16
    assert step_loss(outputs, labels).item() == pytest.approx(np.mean(losses), abs=1e-6)
    halves = sum(step_loss(outputs, labels, 32).item() for _ in range(2))
    assert halves == pytest.approx(np.mean(losses), abs=1e-6)


@pytest.mark.parametrize(
    ("plugin", "lora"), [("prm", True), pytest.param("orm", False, marks=pytest.mark.slow)]
)
def test_a_saved_model_is_a_reward(run, tmp_path, plugin, lora):
    settings = {**LORA, "lora_dropout": 0.1} if lora else {}
    settings |= {"activation_checkpointing": True, "evaluation": {"rows": 2}, "max_steps": 1}
    prepared = run(plugin=plugin, step_separator="\n\n", **settings)
    trainer = prepared.trainer_class.from_run(prepared)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    folder = tmp_path / "saved"
    prepared.tokenizer.save_pretrained(folder)
    if lora:
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["task_type"] == "TOKEN_CLS"
        tensors = load_file(folder / "adapter_model.safetensors")
        assert sorted(name for name in tensors if "score" in name) == [
            "base_model.model.score.bias",
            "base_model.model.score.weight",
        ]
        merge_adapter(prepared.model_path, folder, tmp_path / "merged")
        with pytest.raises(ModelError, match="not a model with full weights"):
            ProcessReward(str(folder))
        folder = tmp_path / "merged"
    reward = ProcessReward(str(folder), aggregate="product")
    steps = ["1+1=2", "2+1=4", "#### 4"]
    chain = encode(prepared.tokenizer, "1+1+1=?\n", steps, reading(type(trainer), prepared))
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor([chain.ids])).logits[0].float()
    expected = math.prod(logits.softmax(-1)[chain.ends, 1].tolist())
    assert len(chain.ends) == (1 if plugin == "orm" else 3)
    (score,) = reward(["1+1+1=?\n"], ["\n\n".join(steps)])
    assert score == pytest.approx(expected, abs=1e-5)


ROW = {"prompt": "1+1+1=?\n", "completions": ["1+1=2", "2+1=4"], "labels": [True, False]}
GOOD = {**ROW, "labels": [True, True]}


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([GOOD, {**ROW, "labels": [True]}], {}, "row 1 of train: has 2 steps and 1 labels"),
        ([GOOD, {**ROW, "completions": ["1", " "]}], {}, "row 1 of train: step 1 is ' '"),
        ([{**ROW, "labels": [0, 1]}], {}, "`labels` has 0; expected true or false"),
        ([GOOD, GOOD], {}, "every label of train is true, so there is nothing to learn"),
        ([GOOD, ROW], {"step_separator": ""}, "steps would have no boundary"),
        ([GOOD, ROW], {"load_in_4bit": True}, "load_in_4bit"),
        ([GOOD, {**ROW, "completions": ["1" * 300, "2"]}], {"max_length": None}, "256 positions"),
        ([{**ROW, "label": None}], {"plugin": "orm"}, "`label` is null"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_load(run, rows, settings, message):
    with pytest.raises(ConfigError) as refused:
        run(rows, **settings)
    assert message in str(refused.value)


def test_solutions_over_max_length_are_left_out_and_counted(run):
    long = {**ROW, "completions": ["1" * 60, "2"]}
    prepared = run([ROW, GOOD, long], max_dropped_share=0.5)
    assert str(ProcessRewardTrainer.row_counts(prepared)["train"]) == (
        "2 of 3 rows kept (dropped: over `max_length` 64: 1)"
    )
    trainer = ProcessRewardTrainer.from_run(prepared)
    assert len(trainer.train_dataset) == 2
    assert trainer.report()["Training solutions"] == {
        "solutions": 3,
        "over max_length, left out": 1,
        "labels": 4,
        "of them right": 3,
    }
    measured = run([long, ROW, GOOD], evaluation={"rows": 2}, max_dropped_share=0.5)
    result = ProcessRewardTrainer.held_out(measured, measured.model_path, {})
    assert set(result.rows[0].values()) == {None}
    assert result.rows[1]["step_accuracy"] is not None


def test_metrics_by_hand():
    wrong = step_metrics([0.9, 0.2, 0.7], [True, False, False])
    assert wrong["step_accuracy"] == pytest.approx(2 / 3)
    assert wrong["step_loss"] == pytest.approx(-np.mean(np.log([0.9, 0.8, 0.3])))
    assert (wrong["first_error"], wrong["false_alarms"], wrong["lowest_step"]) == (1, None, 0.2)
    assert step_metrics([0.4, 0.2], [True, False])["first_error"] == 0
    clean = step_metrics([0.9, 0.4], [True, True])
    assert (clean["first_error"], clean["false_alarms"]) == (None, 1)
    even = step_metrics([0.5], [True])
    assert (even["step_accuracy"], even["false_alarms"]) == (1, 0)
    assert math.isfinite(step_metrics([0.0], [True])["step_loss"])
    assert outcome_metrics([0.8], [False])["outcome_accuracy"] == 0
    assert outcome_metrics([0.5], [True])["outcome_accuracy"] == 1


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 6, 40) / 5
    good = rng.random(40) < 0.5
    rows = with_auc([{"score": score} for score in scores], "score", list(map(bool, good)))
    pairs = [(b < g) + 0.5 * (b == g) for g in scores[good] for b in scores[~good]]
    found = [row["auc"] for row in rows if row["auc"] is not None]
    assert np.mean(found) == pytest.approx(np.mean(pairs))


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer):
    """Return the folder of an untrained process reward model."""
    folder = tmp_path_factory.mktemp("prm")
    torch.manual_seed(0)
    AutoModelForTokenClassification.from_pretrained(resolve_model_path(BASE)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    Reading().save(folder)
    return str(folder)


def score(reward, *completions, prompt="1+1+1=?\n", **arguments):
    return reward([prompt] * len(completions), list(completions), **arguments)


def test_aggregates(model):
    def scored(text, name):
        return score(ProcessReward(model, aggregate=name), text)[0]

    text = "1+1=2\n2+1=4\n#### 4"
    firsts = [scored(text[:end], "last") for end in (5, 11, 18)]
    expected = {"min": min(firsts), "mean": np.mean(firsts), "product": math.prod(firsts)}
    for name, value in expected.items():
        assert scored(text, name) == pytest.approx(value, abs=1e-6)


def test_empty_lines_are_no_steps_and_messages_are_read(model):
    reward = ProcessReward(model)
    plain, spaced = score(reward, "1+1=2\n2+1=3", "\n1+1=2\n \n\n2+1=3\n")
    assert plain == spaced
    messages = [{"role": "assistant", "content": "1+1=2\n2+1=3"}]
    prompt = [{"role": "user", "content": "1+1+1=?"}]
    assert 0 < reward([prompt], [messages])[0] < 1
    reward._loaded[1].chat_template = None
    with pytest.raises(ModelError, match="has no chat template"):
        reward([prompt], [messages])


def test_completions_without_steps_and_long_ones(model):
    logged = {}
    text, long = "1+1=2", "1" * 300
    assert score(ProcessReward(model), "", text, log_metric=logged.__setitem__)[0] == 0
    assert logged == {
        "process_reward/steps": 0.5,
        "process_reward/no_steps": 0.5,
        "process_reward/too_long": 0.0,
    }
    assert score(ProcessReward(model, no_steps="abstain"), " \n") == [None]
    first, second = score(ProcessReward(model), long, text)
    assert (first, second is None) == (None, False)
    with pytest.raises(RewardError, match="1 of 2 completions are too long"):
        score(ProcessReward(model, too_long="error"), long, text)


def test_a_model_that_is_no_prm_is_refused(model, tmp_path):
    with pytest.raises(ModelError, match="has no process_reward.json"):
        ProcessReward(BASE)
    with pytest.raises(ModelError, match=r"no weights for score.bias, score.weight"):
        score(ProcessReward(BASE, separator="\n"), "1+1=2")
    with pytest.raises(ModelError, match="separator is empty"):
        ProcessReward(model, separator="")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "process_reward.json").write_text('{"separator": 3}')
    with pytest.raises(ModelError, match="the separator is 3"):
        ProcessReward(str(tmp_path))


@pytest.mark.slow
def test_it_meets_the_contract_of_rewards(model):
    # Messages are read with the chat template, so that text and messages are different texts.
    check_reward(ProcessReward(model, batch_size=1), skip={"both_shapes"})


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [ProcessRewardTrainer, OutcomeRewardTrainer])
@pytest.mark.parametrize("lora", [False, True])
def test_it_keeps_the_contract_and_resumes_exactly(trainer, lora):
    settings = {"max_length": 256, **({**LORA, "lora_dropout": 0.1} if lora else {})}
    check_trainer(trainer, dataset=ROWS, settings=settings)

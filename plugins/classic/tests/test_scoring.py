"""The reward `reward_model`: a saved reward model, read by text, in any run."""

import math
import pickle
import shutil

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_rlhf.errors import ModelError, RewardError
from hf_rlhf.runs.preflight import advice
from hf_rlhf.storage.record import new_record, write_record
from hf_rlhf.testing import check_reward
from hf_rlhf.testing.modules import light_import
from hf_rlhf_classic.reward import RewardModelTrainer
from hf_rlhf_classic.scoring import RewardModel

MODEL = "package://hf_rlhf_classic/tiny_sft"
SETTINGS = {
    "plugin": "reward",
    "model_name_or_path": MODEL,
    **{"max_steps": 2, "per_device_train_batch_size": 4, "max_length": 64, "learning_rate": 1e-2},
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "save_strategy": "no"},
}
PAIRS = [
    {"prompt": f"{n}+{n}=", "chosen": str(2 * n), "rejected": str(2 * n + 1)} for n in range(1, 9)
]
PROMPTS, ANSWERS = ["1+1=", "2+2=", "3+3="], ["2", "five", "6 and more"]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    """Return the folder of a reward model with an untrained head."""
    from hf_rlhf.models.locate import resolve_model_path

    folder = tmp_path_factory.mktemp("scorer")
    source = resolve_model_path(MODEL)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def adapter(prepared, tmp_path):
    """Return the trainer and the folder of a reward adapter that is not 0."""
    from hf_rlhf.models.fingerprint import identify, write_identity

    lora = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4}
    trainer = RewardModelTrainer.from_run(prepared(PAIRS, PAIRS, **SETTINGS, **lora))
    for name, value in trainer.model.named_parameters():
        value.data += 0.02 * ("lora_B" in name)
    folder = tmp_path / "adapter"
    trainer.save_model(str(folder))
    write_identity(folder, identify(MODEL))
    return trainer, folder


def test_it_keeps_the_rules_of_a_reward(scorer):
    # Scored one by one: in other batches the last digits of a float32 score differ.
    check_reward(
        RewardModel(model=scorer, batch_size=1, max_length=200),
        # Messages are read with the chat template, so that text and messages are different texts.
        skip=["both_shapes"],
    )


def test_its_module_imports_nothing_heavy():
    light_import("hf_rlhf_classic.scoring")


def test_scores_are_the_models_own(scorer):
    model = AutoModelForSequenceClassification.from_pretrained(scorer).eval()
    tokenizer = AutoTokenizer.from_pretrained(scorer)
    expected = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = tokenizer(f"{prompt}{answer}<end>", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(model(ids).logits.item())
    reward = RewardModel(model=scorer)
    assert reward(PROMPTS, ANSWERS) == pytest.approx(expected, abs=1e-5)
    scaled = RewardModel(model=scorer, mean=0.5, std=2.0)
    wanted = [(value - 0.5) / 2 for value in expected]
    assert scaled(PROMPTS, ANSWERS) == pytest.approx(wanted, abs=1e-5)
    copy = pickle.loads(pickle.dumps(reward))
    assert copy._loaded is None
    assert copy(PROMPTS, ANSWERS) == reward(PROMPTS, ANSWERS)


def test_messages_are_read_with_its_own_chat_template(scorer):
    reward = RewardModel(model=scorer)
    prompt = [{"role": "user", "content": "1+1="}]
    answer = [{"role": "assistant", "content": "2"}]
    _, tokenizer = reward.loaded()
    text = tokenizer.apply_chat_template([*prompt, *answer], tokenize=False)
    assert text == "<user>1+1=<end><assistant>2<end>"
    assert reward([prompt], [answer]) == pytest.approx(reward([""], [text]), abs=1e-6)


def test_a_reward_adapter_scores_as_the_model_that_was_trained(adapter):
    trainer, folder = adapter
    reward = RewardModel(model=MODEL, adapter=str(folder))
    model, tokenizer = trainer.model.eval(), trainer.processing_class
    expected = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = tokenizer(f"{prompt}{answer}<end>", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(model(input_ids=ids).logits.item())
    assert reward(PROMPTS, ANSWERS) == pytest.approx(expected, abs=1e-5)


def test_an_adapter_without_its_head_or_of_another_base_is_refused(adapter):
    from safetensors.torch import load_file, save_file

    _, folder = adapter
    with pytest.raises(ModelError, match="was made for another base"):
        RewardModel(model="package://hf_rlhf_classic/tiny_base", adapter=str(folder))
    with pytest.raises(ModelError, match="is an adapter"):
        RewardModel(model=str(folder))
    assert "was never measured" in RewardModel(MODEL, adapter=str(folder)).advice()[0]
    after = {"pair_accuracy": {"mean": 0.7, "low": 0.6, "high": 0.8, "n": 100}}
    write_record(new_record(evaluation={"rows": 100, "after": after}), folder.parent)
    assert RewardModel(MODEL, adapter=str(folder)).advice() == []
    file = folder / "adapter_model.safetensors"
    kept = {name: value for name, value in load_file(file).items() if "score" not in name}
    save_file(kept, file)
    with pytest.raises(ModelError, match="has no score head"):
        RewardModel(model=MODEL, adapter=str(folder))


def test_a_language_model_is_no_reward_model():
    with pytest.raises(ModelError, match="LlamaForCausalLM, without a score head"):
        RewardModel(model=MODEL)
    with pytest.raises(ModelError, match="no folder"):
        RewardModel(model="./nothing/here")


def test_a_head_that_is_missing_from_the_weights_is_not_drawn_at_random(scorer, tmp_path):
    from safetensors.torch import load_file, save_file

    AutoModelForSequenceClassification.from_pretrained(scorer).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(scorer).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    del weights["score.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="no weights for score.weight"):
        RewardModel(model=str(tmp_path))(PROMPTS, ANSWERS)


def test_a_score_that_is_not_a_number_stops_the_run(scorer, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(scorer)
    with torch.no_grad():
        model.score.weight.fill_(math.nan)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(scorer).save_pretrained(tmp_path)
    with pytest.raises(
        RewardError, match=r"nan for completion 0, which begins '2'\. Its weights are damaged\.$"
    ):
        RewardModel(model=str(tmp_path))(PROMPTS, ANSWERS)


def test_texts_that_are_too_long_are_counted_never_silently_cut(scorer, caplog):
    long = [*ANSWERS[:2], "6" * 40]
    logged = {}
    cut = RewardModel(model=scorer, max_length=16)
    found = cut(PROMPTS, long, log_metric=logged.__setitem__)
    assert logged == {"reward_model/too_long": pytest.approx(1 / 3)}
    # What is kept is the end: the last 16 tokens are digits and the end of the text.
    assert found[2] == pytest.approx(cut([""], ["6" * 15])[0], abs=1e-5)
    cut(PROMPTS, long)
    assert "1 of 3 texts have over 16 tokens; their start is cut" in caplog.text
    abstains = RewardModel(model=scorer, max_length=16, too_long="abstain")
    assert [score is None for score in abstains(PROMPTS, long)] == [False, False, True]
    with pytest.raises(RewardError, match="have over 16 tokens"):
        RewardModel(model=scorer, max_length=16, too_long="error")(PROMPTS, long)


def test_an_encoder_without_an_end_of_sequence_token_scores(scorer, tmp_path):
    """As many published reward models are: BERT and DeBERTa."""
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(scorer)
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_labels=1,
            num_attention_heads=2, intermediate_size=32, pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(tmp_path)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with torch.no_grad():
        ids = [tokenizer(a + b, return_tensors="pt") for a, b in zip(PROMPTS, ANSWERS, strict=True)]
        expected = [model(input_ids=one["input_ids"]).logits.item() for one in ids]
    found = RewardModel(model=str(tmp_path))(PROMPTS, ANSWERS)
    assert found == pytest.approx(expected, abs=1e-5)


def test_settings_that_would_make_every_score_nothing_are_refused():
    for settings in ({"std": math.nan}, {"std": math.inf}, {"mean": math.nan}, {"max_length": 0}):
        with pytest.raises(ModelError, match="above 0"):
            RewardModel(model=MODEL, **settings)


def with_record(scorer, tmp_path, estimate):
    """Return the folder of a reward model in a run folder that records `estimate` of it."""
    merged = tmp_path / "run" / "merged"
    shutil.copytree(scorer, merged)
    after = {} if estimate is None else {"pair_accuracy": estimate}
    write_record(new_record(evaluation={"rows": 9, "after": after}), tmp_path / "run")
    return merged


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (None, "was never measured"),
        (
            {"mean": 0.52, "low": 0.44, "high": 0.6, "n": 100},
            "not shown to prefer the better of two responses: pair_accuracy 0.520 [0.440, 0.600]",
        ),
        (
            {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 1},
            "was measured on 1 held-out pair only (pair_accuracy 1.000; one row)",
        ),
        ({"mean": 0.62, "low": 0.55, "high": 0.7, "n": 200}, None),
    ],
)
def test_how_well_a_reward_model_was_measured_is_told(scorer, tmp_path, estimate, said):
    merged = with_record(scorer, tmp_path, estimate)
    found = RewardModel(str(merged)).advice()
    assert found == [] if said is None else said in found[0]


class Length:
    """How long an answer is."""

    def __call__(self, prompts, completions, **_):
        return [float(len(one)) for one in completions]


def test_a_reward_model_without_any_record_is_told(scorer, prepared, offer):
    """Whatever trains by it, and only where it trains."""
    offer("rewards", known_length=Length)
    assert "was never measured" in RewardModel(scorer).advice()[0]
    settings = {
        **{"model_name_or_path": MODEL, "use_cpu": True, "bf16": False, "max_completion_length": 8},
        **{"per_device_train_batch_size": 2, "max_steps": 1, "use_peft": True},
    }
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    other = {"name": "known_length", "label": "other"}
    for weight in (1, 0):
        one = {"name": "reward_model", "model": scorer, "weight": weight}
        group = {**settings, "plugin": "grpo", "num_generations": 2, "rewards": [one, other]}
        told = [said for said in advice(prepared(rows, rows, **group)) if "measured" in said]
        assert len(told) == weight
        assert not weight or told[0].startswith("'reward_model': how often the reward model")
        ppo = {**settings, "plugin": "ppo", "rewards": [other], "reward_model_path": scorer}
        run = prepared(rows, rows, **ppo, learned_reward_weight=float(weight))
        assert len([said for said in advice(run) if "was never measured" in said]) == weight

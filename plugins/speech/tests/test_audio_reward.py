"""`audio_reward`: it learns what the pairs say, from features and from an encoder, and saves it."""

import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from hf_rlhf import train
from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf.runs import resolve_run
from hf_rlhf_lab.command import run_file
from hf_rlhf_speech.audio import RATE, write_wav
from hf_rlhf_speech.audio_reward import vectors
from hf_rlhf_speech.audio_reward.feature_scorer import (
    FeatureScorer,
    FeatureScorerConfig,
)
from hf_rlhf_speech.audio_reward.trainer import AudioRewardTrainer
from hf_rlhf_speech.rewards.learned import AudioRewardModel

BASE = "package://hf_rlhf_speech/feature_scorer"


def buzz(seed, noise):
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(0.3, 0.6)
    time = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * (140 * time + 4 * np.sin(3 * time))
    tone = sum(np.sin(k * phase) / k for k in range(1, 9))
    return (0.2 * (tone + noise * rng.standard_normal(len(time)))).astype(np.float32)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Return a folder with 48 pairs of clips; the one with less noise is better."""
    folder = tmp_path_factory.mktemp("clips")
    for number in range(48):
        write_wav(folder / f"{number}-good.wav", buzz(2 * number, 0.05), RATE)
        write_wav(folder / f"{number}-bad.wav", buzz(2 * number + 1, 0.6), RATE)
    return folder


@pytest.fixture(autouse=True)
def own_cache():
    """Let no test find the vectors of another."""
    vectors._clips.clear()


def pairs(folder, swapped):
    """Write rows of pairs; in those with `swapped(number)` the noisy clip is the chosen one."""
    rows = []
    for number in range(48):
        both = [f"{number}-good.wav", f"{number}-bad.wav"]
        chosen, rejected = both[::-1] if number < 32 and swapped(number) else both
        rows.append({"text": f"text {number}", "chosen": chosen, "rejected": rejected})
    for name, part in (("train", rows[:32]), ("test", rows[32:])):
        lines = "\n".join(json.dumps(row) for row in part)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return str(folder)


def settings(path, **more):
    return {
        **{"plugin": "audio_reward", "model_name_or_path": BASE, "codec": "file"},
        "dataset": {"name": "speech_preferences", "path": path, "codec": "file"},
        **{
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "evaluation": {},
            "save_strategy": "no",
        },
        **{"per_device_train_batch_size": 8, **more},
    }


def resolved(path, tmp_path, **more):
    values = settings(path, output_dir=str(tmp_path / "run"), **more)
    return resolve_run(RunFile.from_mapping(values, "test"))


def trained(run):
    trainer = AudioRewardTrainer.from_run(run)
    trainer.train()
    trainer.save_model(str(run.folder / "merged"))
    return trainer


def accuracy(run, model):
    rows = AudioRewardTrainer.held_out(run, model, {}).rows
    return np.mean([row["pair_accuracy"] for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("swapped", "low", "high"),
    [
        (lambda number: False, 0.95, 1.0),
        (lambda number: True, 0.0, 0.05),
        (lambda number: number % 2, 0.2, 0.8),
    ],
    ids=["as they are", "flipped", "at random"],
)
def test_it_learns_what_the_pairs_say(clips, tmp_path, swapped, low, high):
    path = pairs(clips, swapped)
    measured = []
    for seed in (1, 2):
        run = resolved(path, tmp_path, seed=seed)
        measured.append(accuracy(run, trained(run).model))
    assert low <= np.mean(measured) <= high


def test_each_seed_draws_a_head_that_is_measured_before(clips, tmp_path):
    def start(seed):
        run = resolved(pairs(clips, bool), tmp_path, seed=seed)
        return run, AudioRewardTrainer.from_run(run).model

    run, first = start(5)
    weight = first.classifier.weight
    assert torch.equal(weight, start(5)[1].classifier.weight)
    assert not torch.equal(weight, start(6)[1].classifier.weight)
    before, begun = (
        AudioRewardTrainer.held_out(run, model, {}).rows for model in (run.model_path, first)
    )
    assert before == begun


def tiny(kind, **more):
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        conv_dim=(16, 16), conv_stride=(5, 64), conv_kernel=(10, 64), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, classifier_proj_size=16,
        **more,
    )  # fmt: skip
    return transformers.AutoModel.from_config(config)


@pytest.fixture
def encoder(tmp_path):
    def save(kind, rate=RATE, **more):
        torch.manual_seed(0)
        folder = tmp_path / kind
        tiny(kind, **more).save_pretrained(folder)
        transformers.Wav2Vec2FeatureExtractor(sampling_rate=rate).save_pretrained(folder)
        return str(folder)

    return save


@pytest.mark.parametrize(
    "kind",
    ["hubert", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("wav2vec2", "wavlm"))],
)
def test_the_saved_model_scores_as_the_head_on_a_frozen_encoder(clips, tmp_path, encoder, kind):
    run = resolved(pairs(clips, lambda _: False), tmp_path, model_name_or_path=encoder(kind),
                   max_steps=3, learning_rate=1e-2)  # fmt: skip
    trainer = trained(run)
    model = transformers.AutoModelForAudioClassification.from_pretrained(run.folder / "merged")
    extract = transformers.AutoFeatureExtractor.from_pretrained(run.folder / "merged")
    start = transformers.AutoModel.from_pretrained(run.model_path)
    for name, weight in start.state_dict().items():
        assert torch.equal(weight, model.base_model.state_dict()[name])
    scores = []
    for item, number in zip(trainer.train_dataset, range(32), strict=True):
        wave = vectors.decode_completions([str(clips / f"{number}-good.wav")], "file")[0].wave
        with torch.inference_mode():
            whole = model(**extract(wave, sampling_rate=RATE, return_tensors="pt")).logits.item()
        assert whole == pytest.approx(vectors.head_scores(model, item["chosen"]).item(), abs=1e-5)
        scores += [vectors.head_scores(model, item[side]).item() for side in item]
    assert np.mean(scores) == pytest.approx(0, abs=1e-5)
    assert np.std(scores) > 1e-3
    reward = AudioRewardModel(model=str(run.folder / "merged"), codec="file")
    (paid,) = reward([""], [str(clips / "0-good.wav")])
    assert paid == pytest.approx(1 / (1 + np.exp(-scores[0])), abs=1e-5)


def test_a_missing_feature_counts_as_the_mean_and_far_ones_are_bounded():
    model = FeatureScorer(FeatureScorerConfig(num_labels=1, num_features=2))
    model.standardise(torch.tensor([[0.0, 1.0], [2.0, float("nan")], [4.0, 3.0]]))
    assert model.projector.mean.tolist() == [2.0, 2.0]
    missing, mean, far, farther = (
        model(torch.tensor([row])).logits.item()
        for row in ([float("nan"), 2.0], [2.0, 2.0], [1e1, 2.0], [1e6, 2.0])
    )
    assert far == farther != mean
    assert missing != mean
    with torch.no_grad():
        model.projector.linear.weight[:, 2:] = 0
    assert model(torch.tensor([[float("nan"), 2.0]])).logits.item() == pytest.approx(mean)


def test_pairs_without_sound_and_of_equal_clips_are_left_out(clips, tmp_path):
    from datasets import Dataset, DatasetDict

    run = resolved(pairs(clips, lambda _: False), tmp_path)
    good, bad = (str(clips / f"0-{name}.wav") for name in ("good", "bad"))
    rows = Dataset.from_list(
        [
            {"chosen": good, "rejected": bad},
            {"chosen": good, "rejected": good},
            {"chosen": good, "rejected": str(clips / "missing.wav")},
        ]
    )
    object.__setattr__(run, "dataset", DatasetDict(train=rows, test=rows))
    counts = AudioRewardTrainer.row_counts(run)["train"]
    assert counts.dropped == {"a clip without sound": 1, "both clips the same": 1}
    assert len(AudioRewardTrainer.from_run(run).train_dataset) == counts.used == 1
    measured = AudioRewardTrainer.held_out(run, run.model_path, {}).rows
    assert [row["margin"] is None for row in measured] == [False, True, True]
    run.training.codec = "embedded"
    assert AudioRewardTrainer.row_counts(run)["train"].used == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"model_name_or_path": "package://hf_rlhf_classic/tiny_sft"}, "has nothing that AutoFeat"),
        ({"codec": "embeded"}, "there is no codec 'embeded'"),
        ({"codec": "embedded"}, "a clip without sound: 32"),
        ({"use_peft": True}, "only a new head is trained"),
        ({"label_smoothing_factor": 0.1}, "has no effect on this trainer's loss"),
    ],
)
def test_what_would_fail_is_refused_before_weights_load(clips, tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        resolved(pairs(clips, lambda _: False), tmp_path, **more)


def test_an_encoder_of_another_kind_is_refused(clips, tmp_path, encoder):
    folder = encoder("data2vec-audio")
    with pytest.raises(ConfigError, match="is a data2vec-audio, no encoder of sound that this"):
        resolved(pairs(clips, bool), tmp_path, model_name_or_path=folder)
    layers = encoder("wavlm", use_weighted_layer_sum=True)
    with pytest.raises(ConfigError, match="its head is another one"):
        resolved(pairs(clips, bool), tmp_path, model_name_or_path=layers)


@pytest.mark.slow
def test_a_run_is_a_reward_by_its_folder(clips, tmp_path):
    path = pairs(clips, lambda _: False)
    folder = tmp_path / "run"
    record = train(config=settings(path, output_dir=str(folder)))
    estimate = record.evaluation.estimate("after", "pair_accuracy")
    assert estimate.mean > 0.95
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "AutoFeatureExtractor.from_pretrained" in card
    assert "acoustic features: pitch_variation, harmonicity" in card
    (snippet,) = re.findall(r"```python\n(.*?)```", card, re.S)
    show = f"{snippet}\nprint(type(model).__name__, type(processor).__name__)"
    printed = subprocess.run(
        [sys.executable, "-c", show], cwd=folder, capture_output=True, text=True
    )
    assert printed.stdout.split() == ["FeatureScorer", "AcousticFeatureExtractor"], printed.stderr
    entry = run_file(str(folder), None).values["rewards"][0]
    assert (entry["name"], entry["codec"]) == ("audio_reward_model", "file")
    reward = AudioRewardModel(model=entry["model"], codec="file")
    files = [str(clips / f"40-{name}.wav") for name in ("good", "bad")]
    good, bad, nothing, unreadable = reward([""] * 4, [*files, "", str(clips / "missing.wav")])
    assert 1 > good > 0.5 > bad > nothing == 0
    assert unreadable is None
    assert pickle.loads(pickle.dumps(reward))([""], files[:1]) == [good]
    (advice,) = reward.advice()
    assert "was measured on 16 held-out pairs only" in advice


def test_what_is_no_reward_model_of_sound_is_refused(encoder):
    with pytest.raises(ModelError, match="it has 2 labels"):
        AudioRewardModel(model=encoder("hubert"))([""], [""])
    with pytest.raises(ModelError, match="does not load as a model of sound"):
        AudioRewardModel(model="package://hf_rlhf_classic/tiny_sft")([""], [""])
    with pytest.raises(ModelError, match="no folder"):
        AudioRewardModel(model="./nowhere")

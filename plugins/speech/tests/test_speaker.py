"""`speaker_similarity` with random networks; the real one in a slow test, where it is installed."""

import importlib
import pickle

import numpy as np
import pytest

from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf_speech.audio import RATE, write_wav
from hf_rlhf_speech.rewards import speaker
from hf_rlhf_speech.rewards.speaker import SpeakerSimilarity


@pytest.fixture
def resemblyzer(tmp_path, monkeypatch):
    """A package of that name with random weights, and optimizer states as the real file has."""
    import torch

    torch.manual_seed(0)
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    state = torch.nn.ModuleDict({"lstm": lstm, "linear": linear}).state_dict()
    package = tmp_path / "site" / "resemblyzer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import librosa_that_nobody_has")
    content = {"step": 1, "model_state": {**state, "similarity_bias": torch.zeros(1)}}
    torch.save(content, package / "pretrained.pt")
    monkeypatch.syspath_prepend(package.parent)
    importlib.invalidate_caches()
    return package


@pytest.fixture
def clips(tmp_path):
    """Paths of three sounds: two vowels of different pitch, and a damaged file."""
    time = np.arange(2 * RATE) / RATE
    for name, hertz in (("low", 100), ("high", 240)):
        tones = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 12))
        write_wav(tmp_path / f"{name}.wav", 0.2 * tones * (1 + np.sin(9 * time)) / 2, RATE)
    (tmp_path / "bad.wav").write_bytes(b"no sound")
    return [str(tmp_path / f"{name}.wav") for name in ("low", "high", "bad")]


def test_it_compares_with_the_reference_of_the_row_and_abstains_without_one(resemblyzer, clips):
    low, high, bad = clips
    reward, logged = SpeakerSimilarity("file"), {}
    spoken = [low, low, high, low, low, bad, ""]
    wanted = [low, high, low, None, bad, low, low]
    scores = reward([""] * 7, spoken, reference_audio=wanted, log_metric=logged.__setitem__)
    assert scores[0] == pytest.approx(1.0, abs=1e-5)
    assert scores[1] == pytest.approx(scores[2], abs=1e-5)
    assert 0 <= scores[1] < 0.99999
    assert scores[3:6] == [None, None, None]
    assert scores[6] == 0.0, "a policy that says nothing is not excused"
    assert logged["speech/no_reference"] == pytest.approx(2 / 7)
    copy = pickle.loads(pickle.dumps(reward))
    assert copy([""], [low], reference_audio=[high]) == [scores[1]]


def test_weights_that_are_missing_are_refused(resemblyzer, clips, monkeypatch):
    (resemblyzer / "pretrained.pt").unlink()
    with pytest.raises(ModelError, match="pretrained.pt of the package resemblyzer is missing"):
        SpeakerSimilarity("file")([""], clips[:1], reference_audio=clips[:1])
    monkeypatch.setattr(speaker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="`pip install --no-deps resemblyzer`"):
        SpeakerSimilarity("file")
    with pytest.raises(ModelError, match="there is no folder '/nowhere'"):
        SpeakerSimilarity("file", model="/nowhere")


@pytest.fixture(scope="module")
def x_vectors(tmp_path_factory):
    """Folders of a tiny WavLM with random weights: with an x-vector head, and without."""
    import torch
    from transformers import (
        Wav2Vec2FeatureExtractor,
        WavLMConfig,
        WavLMForXVector,
        WavLMModel,
    )

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    convolutions = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "intermediate_size": 16}
    groups = {"num_conv_pos_embedding_groups": 2, "xvector_output_dim": 12}
    layers = {
        "tdnn_dim": (8,) * 5,
        "tdnn_kernel": (5, 3, 3, 1, 1),
        "tdnn_dilation": (1, 2, 3, 1, 1),
    }
    config = WavLMConfig(**sizes, **convolutions, **groups, **layers)
    folders = {}
    for name, kind in (("head", WavLMForXVector), ("base", WavLMModel)):
        folders[name] = tmp_path_factory.mktemp(name)
        kind(config).save_pretrained(folders[name])
        Wav2Vec2FeatureExtractor(sampling_rate=8_000).save_pretrained(folders[name])
    return folders


def test_any_network_of_x_vectors_is_used_by_name(x_vectors, clips, tmp_path):
    low, high, _ = clips
    write_wav(tmp_path / "short.wav", np.sin(np.arange(400)), RATE)
    reward = SpeakerSimilarity("file", model=str(x_vectors["head"]), device="cpu")
    completions = [low, high, str(tmp_path / "short.wav")]
    scores = reward([""] * 3, completions, reference_audio=[low] * 3)
    assert scores[0] == pytest.approx(1.0, abs=1e-5)
    assert all(-1 <= score < 0.99999 for score in scores[1:])
    assert reward._loaded[1] == 8_000
    untrained = SpeakerSimilarity("file", model=str(x_vectors["base"]))
    with pytest.raises(
        ModelError, match="no network with a trained x-vector head: it lacks weights for"
    ):
        untrained([""], [low], reference_audio=[low])

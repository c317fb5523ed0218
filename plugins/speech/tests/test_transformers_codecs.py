"""Codecs of transformers with tiny random weights: shapes, text, and what is refused."""

from importlib.util import find_spec

import numpy as np
import pytest

from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf_speech.codecs.codec import TextForm, load_codec
from hf_rlhf_speech.codecs.transformers import TransformersCodec

SECONDS = 0.5


def tiny(kind, **more):
    """Return a random model with the shape of a codec, and few parameters."""
    import torch
    from transformers import (
        DacConfig,
        DacModel,
        EncodecConfig,
        EncodecModel,
        MimiConfig,
        MimiModel,
        Xcodec2Config,
        Xcodec2Model,
    )

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "dac":
        dac = {"encoder_hidden_size": 8, "decoder_hidden_size": 16, "codebook_size": 64}
        return DacModel(DacConfig(**dac, n_codebooks=3, hidden_size=16))
    if kind == "encodec":
        encodec = {"num_filters": 4, "codebook_size": 64, "hidden_size": 16, "codebook_dim": 16}
        return EncodecModel(EncodecConfig(**encodec, num_lstm_layers=1, **more))
    if kind == "mimi":
        mimi = {"num_filters": 4, "codebook_size": 64, "codebook_dim": 16, "num_quantizers": 4}
        heads = {"num_key_value_heads": 2, "intermediate_size": 32, "head_dim": 16}
        hidden = {"vector_quantization_hidden_dimension": 16, "upsample_groups": 32}
        return MimiModel(MimiConfig(**mimi, **heads, **hidden, **sizes))
    semantic = {**sizes, "model_type": "wav2vec2-bert", "intermediate_size": 32}
    levels = {"quantization_dim": 64, "quantization_levels": (4, 4, 4)}
    shape = {"intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 16}
    return Xcodec2Model(
        Xcodec2Config(
            **levels, **shape, **sizes, encoder_hidden_size=4, semantic_model_config=semantic
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    def save(kind, **more):
        path = tmp_path_factory.mktemp(kind)
        tiny(kind, **more).save_pretrained(path)
        if kind == "xcodec2":
            config = '{"feature_extractor_type": "Xcodec2FeatureExtractor"}'
            (path / "preprocessor_config.json").write_text(config)
        return path

    return save


@pytest.mark.parametrize("kind", ["dac", "encodec", "mimi", "xcodec2"])
def test_codes_survive_as_text_and_decode_to_sound(kind, folder):
    codec = load_codec(f"{kind}:{folder(kind)}")
    wave = np.sin(np.arange(int(SECONDS * codec.rate)) * 0.1).astype("f4") / 2
    if kind == "xcodec2" and find_spec("torchaudio") is None:
        with pytest.raises(ModelError, match="pip install torchaudio"):
            codec.encode([wave])
        codes = np.random.default_rng(0).integers(0, codec.size, (25, 1))
    else:
        codes = codec.encode([wave])[0]
    assert codes.shape[1] == codec.codebooks
    assert len(codes) == pytest.approx(SECONDS * codec.frame_rate, abs=1.5)
    assert 0 <= codes.min() <= codes.max() < codec.size
    text = codec.form.write(codes, codec.size)
    read, problems = codec.form.read(text, codec.codebooks, codec.size)
    assert np.array_equal(read, codes)
    assert problems == ()
    first, again = codec.decode([codes, codes])
    assert np.array_equal(first, again)
    assert len(first) == pytest.approx(len(wave), abs=codec.rate * 0.1)
    assert first.dtype == np.float32
    assert np.abs(first).max() <= 1
    (single,) = codec.decode([codes[:1]])
    assert 0 < len(single) == pytest.approx(codec.rate / codec.frame_rate, abs=codec.rate * 0.1)


def lively(kind, folder):
    """Return a codec whose codebooks and biases are random, so that each code sounds different."""
    import torch

    codec = load_codec(f"{kind}:{folder(kind)}")
    torch.manual_seed(1)
    for name, values in (*codec._model.named_parameters(), *codec._model.named_buffers()):
        if name.endswith(("embed", "embed_sum", "codebook.weight")):
            values.data.normal_(std=0.3)
        elif values.dtype == torch.float32:
            values.data += 0.02 * torch.randn_like(values)
    return codec


@pytest.mark.parametrize("kind", ["dac", "encodec", "mimi", "xcodec2"])
def test_an_utterance_sounds_alike_alone_and_beside_longer_and_shorter_ones(kind, folder):
    codec, rng = lively(kind, folder), np.random.default_rng(0)
    lengths = (20, 3, 1, 20, 9, 40, 3, 1)
    codes = [rng.integers(0, codec.size, (length, codec.codebooks)) for length in lengths]
    together = codec.decode(codes)
    for each, wave in zip(codes, together, strict=True):
        (alone,) = codec.decode([each])
        assert len(wave) == len(alone)
        assert np.allclose(wave, alone, atol=1e-5)
    assert not np.array_equal(together[0], together[3]), "the codes make a difference"
    assert codec.decode([]) == []


def test_another_type_two_channels_and_a_missing_folder_are_refused(folder):
    with pytest.raises(ModelError, match="type dac with 1 channels, expected mimi"):
        load_codec(f"mimi:{folder('dac')}")
    with pytest.raises(ModelError, match="with 2 channels, expected encodec with one"):
        load_codec(f"encodec:{folder('encodec', audio_channels=2)}")
    with pytest.raises(ConfigError, match="'dac:/nowhere': there is no folder"):
        load_codec("dac:/nowhere")


def test_broken_weights_are_no_silence(folder):
    codec = TransformersCodec("dac", str(folder("dac")), TextForm())
    next(codec._model.decoder.parameters()).data.fill_(float("nan"))
    with pytest.raises(
        ModelError, match="samples that are NaN or infinite. Its weights are broken"
    ):
        codec.decode([np.zeros((4, codec.codebooks), int)])

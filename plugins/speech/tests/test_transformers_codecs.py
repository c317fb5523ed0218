"""Codecs of transformers with tiny random weights: shapes, text, and what is refused."""

import json
from importlib.resources import files
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoTokenizer

from hf_rlhf import train
from hf_rlhf.config import choose_run_file
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ConfigError, ModelError
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf_speech.codecs.codec import TextForm, load_codec
from hf_rlhf_speech.codecs.transformers import TransformersCodec
from hf_rlhf_worlds.tiny_models import save_model, small_llama

SECONDS = 0.5
ON_THIS_MACHINE = {
    **{"use_cpu": True, "bf16": False, "dataloader_pin_memory": False},
    **{"activation_checkpointing": False, "logging_steps": 1},
}


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


@pytest.mark.parametrize("kind", ["dac", "encodec", "mimi"])
def test_a_wave_has_the_same_codes_alone_and_beside_others(kind, folder):
    codec, rng = lively(kind, folder), np.random.default_rng(0)
    hop = codec.rate / codec.frame_rate
    lengths = [round(hop * frames) for frames in (20, 3.3, 20, 9.5, 11, 3.3)]
    waves = [(0.3 * rng.standard_normal(length)).astype("f4") for length in lengths]
    for wave, codes in zip(waves, codec.encode(waves), strict=True):
        assert np.array_equal(codes, codec.encode([wave])[0])


def test_a_codec_runs_where_it_is_told_or_where_the_policy_runs(folder, monkeypatch):
    name = f"dac:{folder('dac')}"
    anywhere, chosen = load_codec(name), load_codec(name, "cpu")
    assert chosen is not anywhere
    assert load_codec("embedded", "cpu").name == "embedded", "numpy has no device"
    moves = []
    for codec in (anywhere, chosen):
        monkeypatch.setattr(codec._model, "to", moves.append)
        codec.decode([np.zeros((4, codec.codebooks), int)])
    monkeypatch.setattr("accelerate.state.is_initialized", lambda: True)
    monkeypatch.setattr("accelerate.state.PartialState", lambda: SimpleNamespace(device="cpu:0"))
    for codec in (anywhere, chosen):
        codec.decode([np.zeros((4, codec.codebooks), int)])
    assert moves == ["cpu", "cpu", "cpu:0", "cpu"]


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


@pytest.fixture(scope="module")
def llasa(folder, tmp_path_factory):
    """A Llama and an X-Codec 2 with random weights, and texts in Llasa's prompt."""
    name, made = f"xcodec2:{folder('xcodec2')}", tmp_path_factory.mktemp("llasa")
    speaker = str(files("hf_rlhf_speech") / "tiny_speaker")
    tokenizer, codec = AutoTokenizer.from_pretrained(speaker), load_codec(name)
    tokens = codec.form.tokens(codec.codebooks * codec.size)
    marks = ("UNDERSTANDING_START", "UNDERSTANDING_END")
    tokenizer.add_tokens([codec.form.start, codec.form.end, *tokens])
    tokenizer.add_tokens([f"<|TEXT_{mark}|>" for mark in marks])
    model = small_llama(tokenizer, seed=0, hidden=32, layers=1, positions=512, widening=2)
    save_model(model, tokenizer, made / "model")
    rows = [{"text": f"text {number}", "style": "technical"} for number in range(30)]
    (made / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return name, made


def llasa_run(llasa, output_dir, **settings):
    """Return the shipped run file with this model, codec and texts, and few steps."""
    values = dict(choose_run_file("speech_dpo", "llasa", None).values)
    codec, folder = llasa
    values["dataset"] = {**values["dataset"], "path": str(folder / "texts.jsonl")}
    for parts in ("rewards", "gates"):
        assert {part["codec"] for part in values[parts]} == {"xcodec2"}
        values[parts] = [{**part, "codec": codec} for part in values[parts]]
    values |= {"model_name_or_path": str(folder / "model"), "codec": codec, **ON_THIS_MACHINE}
    values |= {"iterations": 1, "steps_per_iteration": 1, "prompts_per_iteration": 8}
    values |= {"measured_prompts": 2, "clips": 1, "rollout_batch_size": 16, "save_steps": 1}
    values |= {"max_completion_length": 96, "max_length": 320, "gradient_accumulation_steps": 1}
    return RunFile.from_mapping({**values, "output_dir": str(output_dir), **settings})


def test_the_prompt_of_the_run_file_stands_in_the_chat_template(llasa, tmp_path):
    run = resolve_run(llasa_run(llasa, tmp_path / "run"))
    (message,) = run.dataset["train"][0]["prompt"]
    assert message["role"] == "user"
    assert message["content"].startswith("Convert the text to speech:<|TEXT_UNDERSTANDING_START|>")
    assert set(run.dataset["test"].column_names) >= {"text", "style"}


@pytest.mark.slow
def test_the_run_file_of_the_real_size_trains_random_weights(llasa, tmp_path):
    # Noise passes no gate, and rewards that are all 0 make no pair.
    record = train(config=llasa_run(llasa, tmp_path / "run", gates=[]).values)
    assert record.training.steps == 1
    (played,) = record.training.report["Listen"]
    assert (tmp_path / "run" / played["before"]).read_bytes().startswith(b"RIFF")

"""The embedded codec: small, deterministic, and flaws are as plain after coding as before."""

import numpy as np
import pytest

from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.codecs.embedded import CODEBOOKS
from hf_rlhf_speech.codecs.vocoder import Frames, analyse, synthesize
from hf_rlhf_speech.world.speaker import Line, spoken

LINE = Line("quiet river follows", "narrative", "a soft voice")


@pytest.fixture(scope="module")
def codec():
    return load_codec("embedded")


def coded(codec, wave):
    return codec.decode(codec.encode([wave]))[0]


def test_codes_are_50_tokens_a_second_and_survive_as_text(codec):
    wave = spoken(LINE)
    codes = codec.encode([wave])[0]
    assert codes.shape == (int(np.ceil(len(wave) / RATE * codec.frame_rate)), 2)
    assert codec.frame_rate * codec.codebooks == 50
    text = codec.form.write(codes, codec.size)
    read, problems = codec.form.read(text, codec.codebooks, codec.size)
    assert np.array_equal(read, codes)
    assert problems == ()
    assert CODEBOOKS.stat().st_size < 1_000_000


def test_decoding_is_deterministic_and_keeps_the_duration(codec):
    codes = codec.encode([spoken(LINE), spoken(LINE)[:RATE]])
    first, second = codec.decode(codes), codec.decode(codes)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert [len(wave) for wave in first] == [len(each) * RATE / 25 for each in codes]
    assert first[0].dtype == np.float32
    assert np.abs(first[0]).max() <= 1
    assert len(codec.decode([codes[0][:0]])[0]) == 0


@pytest.mark.parametrize("wave", [np.zeros(RATE), np.zeros(10), np.ones(RATE) * 0.5])
def test_silence_and_what_is_not_speech_can_be_coded(codec, wave):
    decoded = coded(codec, wave.astype(np.float32))
    assert np.isfinite(decoded).all()
    if not wave.any():
        assert np.abs(decoded).max() < 0.01


def test_the_vocoder_keeps_pitch_loudness_and_voicing():
    seconds = np.arange(RATE) / RATE
    sine = sum(np.sin(2 * np.pi * 150 * k * seconds) / k for k in range(1, 20)).astype("f4") / 6
    before = analyse(sine)
    after = analyse(synthesize(before))
    middle = slice(5, -5)
    assert 2 ** before.pitch[middle] == pytest.approx(150, rel=0.01)
    assert 2 ** after.pitch[middle] == pytest.approx(150, rel=0.02)
    assert after.loudness[middle] == pytest.approx(before.loudness[middle], abs=3)
    noise = np.random.default_rng(0).standard_normal(RATE).astype("f4") / 10
    hiss = analyse(synthesize(analyse(noise)))
    assert np.mean(hiss.voicing[:, 0] > 0) < 0.1
    assert isinstance(hiss, Frames)

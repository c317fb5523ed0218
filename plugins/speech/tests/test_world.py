"""The world of known truth: the same speech everywhere, and flaws that do what they say."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.codecs.vocoder import analyse
from hf_rlhf_speech.world.espeak import Utterance, speak
from hf_rlhf_speech.world.flaws import WEIGHTS, draw_flaws, planted_quality, render

TEXT = "the old doctor paints the garden"


def _digest(utterance):
    return hashlib.sha256(speak(utterance).tobytes()).hexdigest()


def test_speech_is_the_same_twice_and_in_another_process():
    utterance = Utterance(TEXT)
    first = _digest(utterance)
    speak.cache_clear()
    _digest(Utterance("something else between", "a man's voice"))
    assert _digest(utterance) == first
    program = (
        "import hashlib; from hf_rlhf_speech.world.espeak import *;"
        f"print(hashlib.sha256(speak(Utterance({TEXT!r})).tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == first, done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": " "}, "empty"),
        ({"text": "grüße"}, "English voices"),
        ({"text": TEXT, "voice": "a robot"}, "no voice 'a robot'; there are: .*a calm voice"),
        ({"text": TEXT, "words_per_minute": 10}, "expected 80 to 450"),
        ({"text": TEXT, "pitch_range": 100}, "expected 0 to 99"),
    ],
)
def test_what_cannot_be_spoken_is_refused(settings, message):
    with pytest.raises(DataError, match=message):
        Utterance(**settings)


def test_without_espeak_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    speak.cache_clear()
    with pytest.raises(DataError, match=r"pip install 'hf-rlhf-speech\[espeak\]'"):
        speak(Utterance(TEXT))


@pytest.mark.parametrize("flaw", WEIGHTS)
def test_a_larger_flaw_changes_more_and_the_same_seed_the_same(flaw):
    utterance = Utterance(TEXT)
    clean = analyse(render(utterance, {}))

    def distance(size, seed=1):
        flawed = analyse(render(utterance, {flaw: size}, seed))
        frames = slice(0, min(len(clean.pitch), len(flawed.pitch)))
        voiced = clean.voicing[frames, 0] > 0
        return (
            np.abs(clean.envelope[frames] - flawed.envelope[frames]).mean()
            + 5 * np.abs(clean.pitch[frames] - flawed.pitch[frames])[voiced].mean()
            + 0.1 * np.abs(clean.loudness[frames] - flawed.loudness[frames]).mean()
        )

    assert 0 < distance(0.2) < distance(0.6) < distance(1.0)
    wave = render(utterance, {flaw: 0.5}, 3)
    assert np.array_equal(wave, render(utterance, {flaw: 0.5}, 3))
    assert wave.dtype == np.float32
    assert np.abs(wave).max() <= 0.9
    assert len(wave) > RATE


def test_planted_quality():
    assert planted_quality({}) == 1.0
    assert planted_quality({"flat_pitch": 1.0}) == 0.5
    assert planted_quality({"dropped_frames": 0.5, "jitter": 1.0}) == 0.0
    with pytest.raises(ValueError, match="no flaw 'hum'"):
        planted_quality({"hum": 0.5})
    with pytest.raises(ValueError, match="expected 0 to 1"):
        planted_quality({"jitter": 2.0})
    rng = np.random.default_rng(0)
    drawn = [planted_quality(draw_flaws(rng)) for _ in range(300)]
    assert 0.2 < np.mean([each == 1.0 for each in drawn]) < 0.4
    assert 0.5 < np.mean(drawn) < 0.75

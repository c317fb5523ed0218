"""Codecs of other packages: found by name, checked by the rules, and SNAC as Orpheus writes it."""

import numpy as np
import pytest

from hf_rlhf.cli import main
from hf_rlhf.errors import ConfigError
from hf_rlhf.testing import offering
from hf_rlhf_speech.codecs.codec import TextForm, check_codec, load_codec
from hf_rlhf_speech.codecs.embedded import EmbeddedCodec
from hf_rlhf_speech.rewards.models import SpeechPresent
from hf_rlhf_speech.speech import decode_completions
from hf_rlhf_speech.testing import check_codec as check_rules


class Samples:
    """A codec whose frames are samples in 256 steps."""

    name, rate, codebooks, size, frame_rate = "samples", 8_000, 1, 256, 8_000.0
    form = TextForm("<|s_{}|>")

    def __init__(self, source="nothing", device=None):
        self.source, self.device = source, device

    def encode(self, waves):
        return [np.int64(np.clip(np.round(127.5 * (1 + each)), 0, 255))[:, None] for each in waves]

    def decode(self, codes):
        return [np.float32(each[:, 0] / 127.5 - 1) for each in codes]


def test_a_codec_of_another_package_is_used_by_name(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    with offering({"codecs": {"samples": Samples}}):
        codec = load_codec(f"samples:{tmp_path}", "cuda:1")
        assert (codec.source, codec.device) == (str(tmp_path), "cuda:1")
        assert load_codec("samples").source == "nothing"
        text = codec.form.write(codec.encode([np.zeros(800, np.float32)])[0], 256)
        (speech,) = decode_completions([text], "acme/samples", None)
        assert (speech.rate, len(speech.wave)) == (8_000, 800)
        assert SpeechPresent("samples", device="cpu")([""], [text]) == [0.0]
        assert main(["list", "codecs"]) == 0
    assert "samples                  acme 1.0" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="codec named 'samples'.*hf-rlhf list codecs"):
        check_codec("samples")


class Padding(Samples):
    """Pads to the longest utterance, and lets it be heard."""

    def decode(self, codes):
        longest = max(map(len, codes))
        return [np.resize(wave, longest) for wave in super().decode(codes)]


class Floats(Samples):
    """Gives codes that are no integers, of the wrong shape."""

    def encode(self, waves):
        return [each[:, 0].astype(float) for each in super().encode(waves)]


class Slow(Samples):
    """States another frame rate than it has."""

    frame_rate = 4_000.0


def test_the_rules_hold_for_the_codec_that_ships_and_another():
    check_rules(EmbeddedCodec)
    check_rules(Samples, skip=["light"])  # this module is a test


@pytest.mark.parametrize(
    ("codec", "finding"),
    [
        (Padding, "does_not_depend_on_others: decode gives another result in a batch"),
        (Floats, "codes_of_waves: encode gave float64"),
        (Slow, "codes_of_waves: 4000 samples gave 4000 frames.* Cure: correct `frame_rate`"),
    ],
)
def test_broken_codecs_are_told_what_is_wrong(codec, finding):
    with pytest.raises(AssertionError, match=finding):
        check_rules(codec, skip=["light"])


def test_a_codec_is_loaded_once_however_it_is_asked_for():
    assert load_codec("embedded") is load_codec("embedded", None)

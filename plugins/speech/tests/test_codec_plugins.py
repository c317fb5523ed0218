"""Codecs of other packages: found by name, checked by the rules, and SNAC as Orpheus writes it."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

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

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "speech-codec.md"


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


class Loud(Samples):
    """Does not clip."""

    def decode(self, codes):
        return [2 * each for each in super().decode(codes)]


class Slow(Samples):
    """States another frame rate than it has."""

    frame_rate = 4_000.0


class Negative(Samples):
    """Writes numbers below 0, which are not read."""

    form = TextForm("<|s_{}|>", first=-200)


def test_the_rules_hold_for_the_codec_that_ships_and_another():
    check_rules(EmbeddedCodec)
    check_rules(Samples, skip=["light"])  # this module is a test


@pytest.mark.parametrize(
    ("codec", "finding"),
    [
        (Padding, "does_not_depend_on_others: decode gives another result in a batch"),
        (Floats, "codes_of_waves: encode gave float64"),
        (Loud, "(?s)waves_of_codes: decode gave float32 .* Cure: clip"),
        (Slow, "codes_of_waves: 4000 samples gave 4000 frames.* Cure: correct `frame_rate`"),
        (Negative, "survives_as_text: "),
    ],
)
def test_broken_codecs_are_told_what_is_wrong(codec, finding):
    with pytest.raises(AssertionError, match=finding):
        check_rules(codec, skip=["light"])


class TinySnac:
    """The interface of SNAC's model with random books: levels of 1, 2 and 4 codes a frame."""

    def __init__(self):
        import torch

        generator = torch.Generator().manual_seed(0)
        self.books = [torch.rand(4_096, generator=generator) for _ in range(3)]

    @classmethod
    def from_pretrained(cls, source):
        assert source == "hubertsiuzdak/snac_24khz"
        return cls()

    def eval(self):
        return self

    def to(self, device):
        assert device == "cpu"
        return self

    def encode(self, audio):
        import torch

        padded = torch.nn.functional.pad(audio[:, 0], (0, -audio.shape[-1] % 2_048))
        levels = [padded.unfold(1, 2_048 // 2**k, 2_048 // 2**k).mean(-1) for k in range(3)]
        return [(4_095 * (0.5 + each / 2)).round().long() for each in levels]

    def decode(self, levels):
        assert [each.shape[1] for each in levels] == [levels[0].shape[1] * n for n in (1, 2, 4)]
        sounds = [
            book[level].repeat_interleave(2_048 // 2**k, dim=1)
            for k, (book, level) in enumerate(zip(self.books, levels, strict=True))
        ]
        return sum(sounds)[:, None] / 3


@pytest.fixture
def snac(monkeypatch):
    """The class of the page, with a network of SNAC's layout in place of its weights."""
    monkeypatch.setitem(sys.modules, "snac", SimpleNamespace(SNAC=TinySnac))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (text,) = (block for block in blocks if "class Snac" in block)
    names = {"__name__": "page"}
    exec(compile(text, str(PAGE), "exec"), names)  # our own page
    return names["Snac"]


def test_snac_as_orpheus_writes_it(snac):
    check_rules(snac, skip=["light"])
    with offering({"codecs": {"snac-page": snac}}):
        codec = load_codec("snac-page")
    frame = np.arange(7)[None] * 3 + np.array([[0], [100]])
    text = codec.form.write(frame, codec.size)
    numbers = [int(number) for number in re.findall(r"<custom_token_(\d+)>", text)]
    assert (numbers[0], numbers[-1]) == (1, 2)
    # Orpheus's own rule: number - 10 - 4096 * (position % 7).
    read = [number - 10 - 4_096 * (at % 7) for at, number in enumerate(numbers[1:-1])]
    assert read == frame.ravel().tolist()
    wave = np.linspace(-0.5, 0.5, 3 * 2_048).astype(np.float32)
    (codes,) = codec.encode([wave])
    levels = [each[0].tolist() for each in TinySnac().encode(_batch(wave))]
    for number, (a, b, c, d, e, f, g) in enumerate(codes.tolist()):
        assert [a] == levels[0][number : number + 1]
        assert [b, e] == levels[1][2 * number : 2 * number + 2]
        assert [c, d, f, g] == levels[2][4 * number : 4 * number + 4]
    (decoded,) = codec.decode([codes])
    assert np.array_equal(decoded, TinySnac().decode(TinySnac().encode(_batch(wave)))[0, 0].numpy())
    completion = f"<custom_token_5>{codec.form.write(codes, codec.size)}"
    assert codec.form.read(completion, 7, 4_096)[1] == ()


def _batch(wave):
    import torch

    return torch.from_numpy(wave)[None, None]


def test_a_codec_is_loaded_once_however_it_is_asked_for():
    assert load_codec("embedded") is load_codec("embedded", None)

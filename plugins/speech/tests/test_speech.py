"""Completions as speech: their text form, its faults, files, and decoding once."""

import numpy as np
import pytest

from hf_rlhf.errors import ConfigError
from hf_rlhf_speech import speech
from hf_rlhf_speech.audio import RATE, write_wav
from hf_rlhf_speech.codecs.codec import TextForm, check_codec, load_codec
from hf_rlhf_speech.speech import decode_completions, log_speech


class StepCodec:
    """Two codebooks of 4: a frame is 10 equal samples."""

    name, rate, codebooks, size, frame_rate, form = "steps", 8_000, 2, 4, 800.0, TextForm()

    def __init__(self):
        self.decoded = []

    def decode(self, codes):
        self.decoded += codes
        return [np.repeat((each @ [4, 1]) / 16, 10).astype("f4") for each in codes]


@pytest.fixture
def codec(monkeypatch):
    codec = StepCodec()
    monkeypatch.setattr(speech, "load_codec", lambda name, device: codec)
    monkeypatch.setattr(speech, "_cache", speech._Cache())
    return codec


FRAMES = np.array([[0, 3], [2, 1]])


def test_codes_survive_the_text_form():
    text = TextForm().write(FRAMES, 4)
    assert text == "<|speech|><|s_0|><|s_7|><|s_2|><|s_5|><|/speech|>"
    codes, problems = TextForm().read(text, 2, 4)
    assert codes.tolist() == FRAMES.tolist()
    assert problems == ()
    flat, _ = TextForm().read("<|s_3|><|s_1|><|/speech|>", 1, 4)
    assert flat.tolist() == [[3], [1]]


@pytest.mark.parametrize(
    ("text", "frames", "problems"),
    [
        ("", 0, ("no end", "no speech")),
        ("Hello.", 0, ("no end", "not speech", "no speech")),
        ("<|s_0|><|s_7|>", 1, ("no end",)),
        ("<|s_0|><|s_7|><|/speech|><|s_1|>", 1, ("early end",)),
        ("<|s_0|> well <|s_7|><|/speech|>", 1, ("not speech",)),
        ("<|s_0|><|s_7|><|s_0|><|/speech|>", 1, ("wrong tokens",)),
        ("<|s_7|><|s_0|><|s_99|><|s_7|><|/speech|>", 1, ("wrong tokens",)),
        ("<|speech|><|/speech|>", 0, ("no speech",)),
    ],
)
def test_what_is_wrong_with_a_completion_is_noted_and_the_rest_is_read(text, frames, problems):
    codes, found = TextForm().read(text, 2, 4)
    assert (len(codes), found) == (frames, problems)


def test_the_first_code_may_have_another_number_than_0():
    form = TextForm("<custom_token_{}>", "<custom_token_1>", "<custom_token_2>", first=10)
    text = form.write(FRAMES, 4)
    assert text.startswith("<custom_token_1><custom_token_10><custom_token_17><custom_token_12>")
    codes, problems = form.read(text, 2, 4)
    assert (codes.tolist(), problems) == (FRAMES.tolist(), ())
    assert form.tokens(8) == [f"<custom_token_{number}>" for number in range(10, 18)]
    for codebooks in (1, 2):
        early = "<custom_token_1><custom_token_5><custom_token_2>"
        assert form.read(early, codebooks, 4)[1] == ("wrong tokens", "no speech")


def test_an_end_that_the_tokenizer_removes_is_not_missed():
    assert TextForm(end=None).read("<|s_0|><|s_7|>", 2, 4)[1] == ()


def test_rewards_of_one_run_decode_a_completion_once(codec):
    text = TextForm().write(FRAMES, 4)
    first = decode_completions([text, "", text], "steps", None)
    again = decode_completions([[{"role": "assistant", "content": text}]], "steps", None)
    assert len(codec.decoded) == 1
    assert first[0].wave.tolist() == [3 / 16] * 10 + [9 / 16] * 10
    assert again[0] is first[0]
    assert (len(first[1].wave), first[1].problems) == (0, ("no end", "no speech"))
    assert decode_completions([text], "steps")[0].rate == RATE


def test_a_completion_that_never_ends_is_cut(codec):
    text = TextForm().write(np.zeros((800 * 31, 2), int), 4)
    (long,) = decode_completions([text], "steps", None)
    assert (long.seconds, long.problems) == (30.0, ("too long",))


def test_a_file_is_read_and_a_changed_one_again(tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, np.zeros(RATE), RATE)
    assert decode_completions([f" {path}\n"], "file")[0].seconds == 1.0
    write_wav(path, np.zeros(2 * RATE), RATE)
    assert decode_completions([str(path)], "file")[0].seconds == 2.0


def test_a_file_that_cannot_be_read_is_not_the_silence_of_a_policy(tmp_path):
    missing, empty = decode_completions([str(tmp_path / "a.wav"), ""], "file")
    assert "no such file" in missing.unreadable
    assert empty.unreadable is None
    logged = {}
    log_speech([missing, empty], logged.__setitem__)
    assert logged["speech/unreadable"] == logged["speech/no_speech"] == 0.5
    assert logged["speech/no_end"] == 0.0


def test_an_unknown_codec_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'embeded' \(did you mean 'embedded'\?\).*Codecs: "):
        load_codec("embeded")
    with pytest.raises(ConfigError, match="embedded takes no folder or Hub id. Write `codec: emb"):
        load_codec("embedded:folder")
    with pytest.raises(ConfigError, match="`file`, which takes no folder"):
        check_codec("file:folder")
    with pytest.raises(ConfigError, match="'mimi:/nowhere': there is no folder '/nowhere'"):
        check_codec("mimi:/nowhere")

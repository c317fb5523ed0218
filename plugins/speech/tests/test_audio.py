"""Sound files as they come: what is converted, and what is refused with file and cure."""

import io

import numpy as np
import pytest
import soundfile

from hf_rlhf.errors import DataError
from hf_rlhf_speech.audio import RATE, read_audio, wav_bytes, write_wav


def tone(seconds=1.0, rate=RATE, hertz=220.0):
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype("f4")


def power_at(wave, hertz):
    spectrum = np.abs(np.fft.rfft(wave)) ** 2
    return spectrum[round(hertz * len(wave) / RATE)] / spectrum.sum()


@pytest.mark.parametrize(
    ("rate", "subtype", "name", "changes"),
    [
        (16_000, "PCM_16", "a.wav", ()),
        (96_000, "PCM_24", "a.flac", ("resampled",)),
        (8_000, "PCM_U8", "a.wav", ("resampled",)),
        (44_100, "FLOAT", "a.wav", ("resampled",)),
    ],
)
def test_a_file_becomes_one_second_of_the_same_tone(tmp_path, rate, subtype, name, changes):
    soundfile.write(tmp_path / name, tone(rate=rate), rate, subtype=subtype)
    clip = read_audio(tmp_path / name)
    assert (clip.rate, clip.changes, clip.wave.dtype) == (RATE, changes, np.float32)
    assert clip.seconds == pytest.approx(1.0, abs=0.001)
    assert power_at(clip.wave, 220.0) > 0.95


def test_stereo_is_the_mean_of_its_channels(tmp_path):
    left = tone()
    soundfile.write(tmp_path / "a.wav", np.stack([left, -left / 2], axis=1), RATE)
    clip = read_audio(tmp_path / "a.wav")
    assert clip.changes == ("stereo",)
    assert np.allclose(clip.wave, left / 4, atol=1e-4)


def test_the_content_of_a_file_is_read_too_and_may_keep_its_rate():
    clip = read_audio(wav_bytes(tone(rate=22_050), 22_050), rate=None)
    assert (clip.rate, clip.changes, len(clip.wave)) == (22_050, (), 22_050)


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (b"", "a.wav: cannot be read as sound: Format not recognised"),
        (b"no sound at all", "ffmpeg -i FILE out.flac"),
        (wav_bytes(tone(), RATE)[:30], "a.wav: "),
        (wav_bytes(tone(0.0), RATE), "has no samples"),
        (wav_bytes(tone(31.0), RATE), r"lasts 31.0 s; at most 30 s"),
        (wav_bytes(tone(rate=6_000), 6_000), r"has 6,000 samples per second; .* at least 8,000"),
    ],
)
def test_what_is_no_clip_is_refused_with_the_file_and_the_cure(tmp_path, content, finding):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DataError, match=finding):
        read_audio(tmp_path / "a.wav")


@pytest.mark.parametrize("right", [-1.0, -0.9])
def test_channels_in_antiphase_are_not_read_as_silence(tmp_path, right):
    soundfile.write(tmp_path / "a.flac", np.stack([tone(), right * tone()], axis=1), RATE)
    with pytest.raises(DataError, match=r"a.flac: its 2 channels are in antiphase .*pan='mono"):
        read_audio(tmp_path / "a.flac")


@pytest.mark.parametrize("other", [np.zeros(RATE), tone(hertz=330.0)])
def test_channels_of_different_sounds_are_averaged(tmp_path, other):
    channels = np.stack([tone(), *[other] * 7], axis=1)
    soundfile.write(tmp_path / "a.wav", channels, RATE, subtype="FLOAT")
    assert np.allclose(read_audio(tmp_path / "a.wav").wave, channels.mean(1), atol=1e-6)
    soundfile.write(tmp_path / "silent.wav", np.zeros((RATE, 2)), RATE)
    assert not read_audio(tmp_path / "silent.wav").wave.any()


def test_nan_and_a_missing_file_are_refused(tmp_path):
    file = io.BytesIO()
    soundfile.write(file, np.array([0.0, np.nan, np.inf]), RATE, format="WAV", subtype="FLOAT")
    with pytest.raises(DataError, match=r"row 3: 2 samples are NaN or infinite"):
        read_audio(file.getvalue(), where="row 3")
    with pytest.raises(DataError, match="no such file"):
        read_audio(tmp_path / "b.wav")


def test_mp3_needs_a_decoder_and_a_sound(tmp_path, monkeypatch):
    (tmp_path / "a.mp3").write_bytes(b"ID3".ljust(200, b"\0"))
    with pytest.raises(DataError, match=r"a.mp3: cannot be read as sound: it holds no sound"):
        read_audio(tmp_path / "a.mp3")

    def without_decoder(_):
        raise soundfile.LibsndfileError(1)  # as libsndfile without mpg123 says

    monkeypatch.setattr(soundfile, "SoundFile", without_decoder)
    with pytest.raises(DataError, match=r"Format not recognised. Convert it to WAV or FLAC \(`ff"):
        read_audio(tmp_path / "a.mp3")


def test_written_samples_come_back_and_loud_ones_are_clipped(tmp_path):
    write_wav(tmp_path / "new" / "a.wav", 4 * tone(), RATE)
    assert np.allclose(
        read_audio(tmp_path / "new" / "a.wav").wave, np.clip(4 * tone(), -1, 1), atol=1e-3
    )
    with pytest.raises(ValueError, match="NaN"):
        write_wav(tmp_path / "a.wav", np.array([np.nan]), RATE)
    assert not (tmp_path / "a.wav").exists()


def test_a_wav_file_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(tone(), RATE)[:20_000])
    with pytest.raises(DataError, match=r"cut off: 19,956 of 32,000 bytes. Copy it again"):
        read_audio(path)


def encoded(form: str, kind: str | None = None) -> bytes:
    """Return a second of sound in a form of libsndfile's."""
    file = io.BytesIO()
    soundfile.write(file, tone(), RATE, format=form, subtype=kind)
    return file.getvalue()


KINDS = [("WAV", "PCM_16"), ("WAV", "IMA_ADPCM"), ("W64", "FLOAT"), ("AIFF", "DOUBLE")]
KINDS += [("AU", "ULAW"), ("CAF", "PCM_24"), ("RF64", "PCM_16"), ("FLAC", "PCM_16")]


@pytest.mark.parametrize(("form", "kind"), KINDS)
def test_sound_that_was_cut_off_is_refused_in_every_form(form, kind):
    """libsndfile takes what is left for the whole."""
    whole = encoded(form, kind)
    assert len(read_audio(whole, rate=None).wave) >= len(tone())
    for share in (0.5, 0.9, 0.999):
        with pytest.raises(DataError):
            read_audio(whole[: int(share * len(whole))])


@pytest.mark.parametrize("form", ["AVR", "NIST", "SDS"])
def test_a_form_that_does_not_say_how_long_it_is_is_refused(form):
    with pytest.raises(DataError, match=rf"is {form}, a format that does not .* Convert it to WAV"):
        read_audio(encoded(form, "PCM_16"))


@pytest.mark.parametrize("size", [2**32 - 1, 2**31 - 37])
def test_a_streamed_wav_file_is_whole(size):
    content = wav_bytes(tone(), RATE)
    sizes = size.to_bytes(4, "little")
    streamed = content[:4] + sizes + content[8:40] + sizes + content[44:]
    assert len(read_audio(streamed).wave) == len(tone())

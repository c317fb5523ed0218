"""Read sound files as arrays of samples, resample, and write WAV."""

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.errors import DataError
from hf_rlhf.storage import atomic_write_bytes

RATE = 16_000
"""Sampling rate of features, rewards and recognisers."""
MIN_RATE, MAX_RATE = 8_000, 192_000
MAX_CHANNELS = 8
MAX_SECONDS = 30.0
_LOUDEST = 8.0
"""Above it, samples are unlikely to be in [-1, 1] with a few peaks that a model overshot."""

_FORMS = frozenset(
    {
        *("AIFF", "AU", "CAF", "FLAC", "HTK", "MAT4", "MP3", "OGG"),
        *("RF64", "SVX", "VOC", "W64", "WAV", "WAVEX", "WVE"),
    }
)
"""libsndfile's names of the formats whose files contain the duration."""
_SHOULD_BE = re.compile(
    r"(?:data|SSND|BODY|Data Size|Data length|Riff size|riff)\W*(\d+) \(?should be (\d+)"
)
"""A line in libsndfile's log of a file."""
_STREAMED = 2**31 - 2**16
SUFFIXES = frozenset(
    {
        *(".wav", ".wave", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".aifc"),
        *(".au", ".snd", ".caf", ".htk", ".nist", ".sph", ".rf64", ".iff", ".voc", ".w64", ".wve"),
        *(".m4a", ".aac", ".wma", ".amr", ".webm"),
    }
)
"""Suffixes of sound files in a folder; the last line's formats are refused when read."""
_CANCELLED = 0.05
"""Minimum power of the channels' average, as a share of their mean power; below it, the average has
lost the sound. 16 channels of different sounds have 0.06."""

Wave = NDArray[np.float32]
"""Mono samples in [-1, 1]."""


@dataclass(frozen=True)
class Clip:
    """A sound file as used, and its difference from the file's content."""

    wave: Wave
    rate: int
    """Sampling rate of `wave`."""
    changes: tuple[str, ...] = ()
    """Conversions to count, such as `stereo` or `resampled`."""

    @property
    def seconds(self) -> float:
        """Return the duration."""
        return len(self.wave) / self.rate


def read_audio(
    source: str | os.PathLike[str] | bytes,
    *,
    rate: int | None = RATE,
    max_seconds: float = MAX_SECONDS,
    where: str | None = None,
) -> Clip:
    """Return a WAV or FLAC file, or another libsndfile format, as a single channel.

    Args:
        source: a file, or its content.
        rate: target sampling rate; None for the file's.
        max_seconds: the longest clip that is accepted.
        where: name in messages, by default the path.

    Raises:
        DataError: the file is missing, empty, corrupt, too long, outside 8 to 192 kHz, has more
            than 8 channels or channels that cancel each other, or samples that are not finite or in
            the range of integers.
    """
    import soundfile

    if isinstance(source, bytes):
        name, opened = where or "audio", io.BytesIO(source)
    else:
        name, opened = where or os.fspath(source), source  # type: ignore[assignment]
        if not Path(source).is_file():
            raise DataError(f"{name}: there is no such file. Correct the path.")
    try:
        with soundfile.SoundFile(opened) as file:
            _check_size(name, file, max_seconds)
            samples, source_rate = file.read(dtype="float32", always_2d=True), file.samplerate
            problem = _not_whole(file, len(samples))
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        cause = str(getattr(error, "error_string", error)).rstrip(".")
        # The MP3 decoder's message for a file without any frames.
        cause = "it holds no sound" if "does not exist" in cause else cause
        fix = "Convert it to WAV or FLAC (`ffmpeg -i FILE out.flac`), or remove it."
        raise DataError(f"{name}: cannot be read as sound: {cause}. {fix}") from error
    if problem:
        raise DataError(f"{name}: {problem}")
    if not np.isfinite(samples).all():
        count = int((~np.isfinite(samples)).sum())
        raise DataError(f"{name}: {count:,} samples are NaN or infinite. Make the file again.")
    if len(samples) and (peak := float(np.abs(samples).max())) > _LOUDEST:
        raise DataError(
            f"{name}: samples reach {peak:,.0f}, expected -1 to 1. Divide them by the largest "
            "integer of their type (32,768 for 16 bits) before they are written as floats."
        )
    changes = ["stereo"] * (samples.shape[1] > 1)
    wave = samples.mean(axis=1)
    power = np.einsum("ij,ij->", samples, samples) / samples.shape[1]
    if wave @ wave < _CANCELLED * power:
        raise DataError(
            f"{name}: its {samples.shape[1]} channels are in antiphase and cancel each other when "
            "they are averaged. Keep one of them (`ffmpeg -i FILE -af pan='mono|c0=c0' out.flac`)."
        )
    if rate is not None and rate != source_rate:
        changes.append("resampled")
        wave = resample(wave, source_rate, rate)
    if not len(wave):
        raise DataError(f"{name}: is too short to have samples at {rate:,} Hz. Remove it.")
    return Clip(np.clip(wave, -1.0, 1.0), rate or source_rate, tuple(changes))


def _not_whole(file: Any, frames: int) -> str:
    """Return the defect of a file that is shorter than its header says, or has no length.

    libsndfile reads a truncated file as if it were complete, and only logs the difference. A stream
    of unknown length has a size near the largest possible.
    """
    if file.format not in _FORMS:
        return (
            f"is {file.format}, a format that does not show whether a file is whole. Convert it to "
            "WAV or FLAC (`ffmpeg -i FILE out.flac`)."
        )
    sizes = [(file.frames, frames, "samples")]
    for promised, there in _SHOULD_BE.findall(file.extra_info):
        if int(promised) < _STREAMED:
            sizes.append((int(promised), int(there), "bytes"))
    for promised, there, unit in sizes:
        if there < promised:
            return f"is cut off: {there:,} of {promised:,} {unit}. Copy it again."
    return "is cut off. Copy it again." if "truncated" in file.extra_info else ""


def _check_size(where: str, file: Any, max_seconds: float) -> None:
    """Raise DataError for a file whose header cannot be speech, before decoding it."""
    frames, rate = file.frames, file.samplerate
    if rate < MIN_RATE:
        raise DataError(
            f"{where}: has {rate:,} samples per second; expected at least {MIN_RATE:,}, because "
            "speech has what makes it intelligible up to 4 kHz. Use a better recording."
        )
    if rate > MAX_RATE or file.channels > MAX_CHANNELS:
        raise DataError(
            f"{where}: has {file.channels:,} channels of {rate:,} samples per second; at most "
            f"{MAX_CHANNELS} channels of {MAX_RATE:,} are read. Convert it (`ffmpeg -i FILE -ac 1 "
            "-ar 48000 out.flac`)."
        )
    if not frames:
        raise DataError(f"{where}: has no samples. Remove it, or make it again.")
    if frames > max_seconds * rate:
        raise DataError(
            f"{where}: lasts {frames / rate:,.1f} s; at most {max_seconds:g} s are read. Cut it "
            "into utterances."
        )


def resample(wave: NDArray[Any], source_rate: int, rate: int) -> Wave:
    """Return `wave` at another sampling rate, low-pass filtered (soxr)."""
    import soxr

    if source_rate == rate or not len(wave):
        return np.asarray(wave, np.float32)
    resampled: Wave = soxr.resample(np.asarray(wave, np.float32), source_rate, rate)
    return resampled


def write_wav(path: str | os.PathLike[str], wave: NDArray[Any], rate: int) -> None:
    """Write samples in [-1, 1] as 16-bit WAV, atomically; louder samples are clipped."""
    atomic_write_bytes(path, wav_bytes(wave, rate))


def wav_bytes(wave: NDArray[Any], rate: int) -> bytes:
    """Return the content of a 16-bit WAV file.

    Raises ValueError for samples that are not finite.
    """
    import soundfile

    if not np.isfinite(wave).all():
        raise ValueError("Samples must be finite; some are NaN or infinite.")
    file = io.BytesIO()
    soundfile.write(file, np.clip(wave, -1.0, 1.0), rate, format="WAV", subtype="PCM_16")
    return file.getvalue()

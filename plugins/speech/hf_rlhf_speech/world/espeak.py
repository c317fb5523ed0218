"""Synthesise English text with espeak-ng: the same waveform in every process.

The library is loaded for each utterance and unloaded after it, because it carries oscillator phases
from one utterance to the next; its random numbers start from the same seed. espeak-ng is under the
GPL and an optional package, which nothing that trains imports.
"""

import _ctypes
import ctypes
import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.errors import DataError
from hf_rlhf_speech.audio import RATE, Wave, resample

VOICES = {
    "a woman's voice": ("f2", 55),
    "a bright voice": ("f5", 65),
    "a soft voice": ("f5", 40),
    "a man's voice": ("benjamin", 50),
    "a deep voice": ("edward2", 35),
    "a calm voice": ("Diogo", 55),
}
"""Description of a voice -> variant of espeak-ng and its pitch, 0 to 99."""
_SYNCHRONOUS, _UTF8 = 2, 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)
_ENGLISH = re.compile(r"[A-Za-z0-9\s.,;:!?'\"()\u2019-]+")
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Utterance:
    """A text and the way to speak it."""

    text: str
    voice: str = "a woman's voice"
    """A key of `VOICES`."""
    words_per_minute: int = 150
    pitch_range: int = 50
    """0 to 99; 0 is monotone."""

    def __post_init__(self) -> None:
        if self.voice not in VOICES:
            raise DataError(f"no voice {self.voice!r}; there are: {', '.join(VOICES)}")
        if not self.text.strip():
            raise DataError("the text is empty; there is nothing to speak")
        if not _ENGLISH.fullmatch(self.text):
            raise DataError(
                f"the text {self.text!r} has characters that the English voices do not speak; "
                "expected letters a to z, digits and punctuation"
            )
        if not 80 <= self.words_per_minute <= 450:
            raise DataError(f"words_per_minute is {self.words_per_minute}, expected 80 to 450")
        if not 0 <= self.pitch_range <= 99:
            raise DataError(f"pitch_range is {self.pitch_range}, expected 0 to 99")


@lru_cache(maxsize=512)
def speak(utterance: Utterance) -> Wave:
    """Return the waveform, mono at `RATE`, read-only. Raises DataError without espeak-ng."""
    variant, pitch = VOICES[utterance.voice]
    settings = {
        _RATE: utterance.words_per_minute,
        _PITCH: pitch,
        _RANGE: utterance.pitch_range,
    }
    library, data = _espeak()
    with _LOCK:
        samples, rate = _synthesize(library, data, f"en-us+{variant}", settings, utterance.text)
    wave = resample(samples.astype(np.float32) / 32768, rate, RATE)
    wave.setflags(write=False)
    return wave


def _espeak() -> tuple[str, str]:
    try:
        import espeakng_loader
    except ImportError as error:
        raise DataError(
            "the package espeakng-loader is not installed, which speaks the texts of this world. "
            "`pip install 'hf-rlhf-speech[espeak]'`"
        ) from error
    return str(espeakng_loader.get_library_path()), str(Path(espeakng_loader.get_data_path()))


def _synthesize(
    path: str, data: str, voice: str, settings: dict[int, int], text: str
) -> tuple[NDArray[np.int16], int]:
    library: Any = ctypes.CDLL(path)
    chunks: list[NDArray[np.int16]] = []

    def receive(samples: Any, count: int, events: Any) -> int:
        if samples and count:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    callback = _CALLBACK(receive)
    try:
        rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data.encode(), 0)
        library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        library.espeak_SetSynthCallback(callback)
        if rate <= 0 or library.espeak_SetVoiceByName(voice.encode()):
            raise DataError(f"espeak-ng at {path} has no voice {voice!r} (data: {data})")
        for parameter, value in settings.items():
            library.espeak_SetParameter(parameter, value, 0)
        encoded = text.encode() + b"\0"
        library.espeak_Synth(
            ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded)), 0, 0, 0, _UTF8, None, None
        )
        library.espeak_Synchronize()
    finally:
        library.espeak_Terminate()
        _ctypes.dlclose(library._handle)
    if not chunks:
        raise DataError(f"espeak-ng returned no samples for {text!r}")
    return np.concatenate(chunks), rate

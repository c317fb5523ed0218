"""The rules of a codec, for the tests of packages with codecs: `check_codec`."""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from hf_rlhf.testing.checks import Check, Unusable, fail, run_checks
from hf_rlhf.testing.modules import light_import
from hf_rlhf_speech.codecs.codec import Codec


class CodecCase:
    """A codec to check, with waves, and codes of an untrained policy."""

    def __init__(self, make: Callable[..., Codec]) -> None:
        rng = np.random.default_rng(0)
        self.make, self.codec = make, make()
        lengths = [round(seconds * self.codec.rate) for seconds in (0.5, 0.31, 0.5, 0.03)]
        self.waves = [rng.uniform(-0.5, 0.5, length).astype(np.float32) for length in lengths]
        shapes = [(frames, self.codec.codebooks) for frames in (12, 5, 12, 1)]
        self.codes = [rng.integers(0, self.codec.size, shape) for shape in shapes]


def codes_of_waves(case: CodecCase) -> None:
    """Encode returns int64 [frames, codebooks] in [0, size) for each wave, frame_rate a second."""
    codec = case.codec
    for wave, codes in zip(case.waves, codec.encode(case.waves), strict=True):
        frames = len(wave) / codec.rate * codec.frame_rate
        formed = codes.dtype == np.int64 and codes.shape == (len(codes), codec.codebooks)
        if not formed or not ((codes >= 0) & (codes < codec.size)).all():
            cure = "stack codebooks as columns, and leave offsets to the TextForm."
            fail(f"encode gave {codes.dtype} {codes.shape}, {codes}.", cure, kind=Unusable)
        if abs(len(codes) - frames) > 2:
            fail(f"{len(wave)} samples gave {len(codes)} frames.", "correct `frame_rate`.")


def survives_as_text(case: CodecCase) -> None:
    """What `form` writes of any codes, it reads: no token has two meanings."""
    form, shape = case.codec.form, (case.codec.codebooks, case.codec.size)
    for codes in case.codes:
        read, problems = form.read(form.write(codes, case.codec.size), *shape)
        if problems or not np.array_equal(read, codes):
            fail(f"of {codes.tolist()} the text has {read.tolist()}.", f"correct {form}.")


def waves_of_codes(case: CodecCase) -> None:
    """Decode returns float32 [samples] in [-1, 1] for any codes: frames / frame_rate seconds."""
    codec = case.codec
    for codes, wave in zip(case.codes, codec.decode(case.codes), strict=True):
        seconds, expected = len(wave) / codec.rate, len(codes) / codec.frame_rate
        if wave.dtype != np.float32 or wave.ndim != 1 or not (np.abs(wave) <= 1).all():
            fail(f"decode gave {wave.dtype} {wave.shape}, {wave}.", "clip one channel of float32.")
        if abs(seconds - expected) > 0.1:
            fail(f"{len(codes)} frames gave {len(wave)} samples.", "correct `rate`, or trim.")


def does_not_depend_on_others(case: CodecCase) -> None:
    """An utterance has the same codes and the same wave alone and beside others."""
    ways: Any = ((case.codec.encode, case.waves), (case.codec.decode, case.codes))
    for code, items in ways:
        for item, beside in zip(items, code(items), strict=True):
            (alone,) = code([item])
            if len(alone) != len(beside) or not np.allclose(alone, beside, atol=1e-4):
                cure = "batch utterances of one length, or pad only what cannot hear the padding."
                fail(f"{code.__name__} gives another result in a batch.", cure)


def light(case: CodecCase) -> None:
    """Importing its module imports nothing heavy."""
    light_import(case.make)


CODEC_CHECKS: tuple[Check, ...] = (
    codes_of_waves,
    survives_as_text,
    waves_of_codes,
    does_not_depend_on_others,
    light,
)


def check_codec(make: Callable[..., Codec], *, skip: Collection[str] = ()) -> None:
    """Check that an entry point's target, called without arguments, returns a `Codec`.

    `skip` lists checks to leave out. Raises AssertionError with all problems.
    """
    run_checks("codec", make, CodecCase(make), CODEC_CHECKS, skip)

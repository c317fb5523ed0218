"""The tiny speaker's world: its prompts and demonstrations."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.world.espeak import Utterance
from hf_rlhf_speech.world.flaws import WEIGHTS, render
from hf_rlhf_speech.world.texts import STYLES, draw_text
from hf_rlhf_worlds.sampling import split_of

VOICES = ("a bright voice", "a soft voice")
"""The styles and voices of the tiny speaker."""
_AUDIBLE = 0.003
_MARGIN = RATE // 50


@dataclass(frozen=True)
class Line:
    """A text to speak, in a style and with a voice."""

    text: str
    style: str
    voice: str
    reference_audio: str | None = None
    """The path of a clip in the requested voice."""

    @property
    def prompt(self) -> str:
        """Return the line as tiny_speaker reads it: the text, after its style and voice if any."""
        manner = ", ".join(part for part in (self.style, self.voice) if part)
        return f"{manner}: {self.text}" if manner else self.text

    def written(self, template: str | None) -> str:
        """Return it in a template with `{text}`, `{style}` and `{voice}`; None: its `prompt`."""
        return self.prompt if template is None else template.format(**vars(self))

    @classmethod
    def parse(cls, prompt: str) -> "Line":
        """Return the line of a prompt."""
        manner, _, text = prompt.partition(": ")
        style, _, voice = manner.partition(", ")
        return cls(text, style, voice)


def draw_line(rng: random.Random) -> Line:
    """Draw a line out of 23,040."""
    return Line(draw_text(rng), rng.choice([*STYLES]), rng.choice(VOICES))


def spoken(line: Line, flaws: dict[str, float] | None = None, seed: int = 0) -> Wave:
    """Return the line as spoken by espeak-ng, with flaws, without surrounding silence."""
    words_per_minute, pitch_range = STYLES[line.style]
    utterance = Utterance(line.text, line.voice, words_per_minute, pitch_range)
    wave = render(utterance, flaws or {}, seed)
    audible = np.flatnonzero(np.abs(wave) > _AUDIBLE)
    if not len(audible):
        return wave
    return wave[max(0, audible[0] - _MARGIN) : audible[-1] + _MARGIN]


@dataclass(frozen=True)
class Demonstration:
    """A line and the teacher's rendering."""

    line: Line
    flaws: dict[str, float]
    seed: int

    def wave(self) -> Wave:
        """Return the audible wave."""
        return spoken(self.line, self.flaws, self.seed)


def demonstrations(seed: int, flawed: float = 0.45) -> Iterator[Demonstration]:
    """Yield a careless teacher's speech: a share of it with a flaw, and no held-out text."""
    rng = random.Random(seed)
    while True:
        line = draw_line(rng)
        if split_of(line.text) == "test":
            continue
        flaws = {rng.choice([*WEIGHTS]): rng.uniform(0.4, 1.0)} if rng.random() < flawed else {}
        yield Demonstration(line, flaws, rng.randrange(2**31))

"""Utterances of the world with graded quality after known flaws: `graded_speech`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError
from hf_rlhf_speech.codecs.embedded import EmbeddedCodec
from hf_rlhf_speech.codecs.vocoder import synthesize
from hf_rlhf_speech.world.flaws import FLAT_PITCH, damaged, draw_flaws, planted_quality
from hf_rlhf_speech.world.quality import references
from hf_rlhf_speech.world.speaker import Line


def graded_speech(train_rows: int = 600, renderings: int = 2, seed: int = 0) -> Loaded:
    """Return utterances with known flaws and their grades, for validating rewards.

    The columns are `prompt`, `text`, `completion` (tokens of the codec `embedded`) and `grade`: 1
    minus the weighted sizes of the flaws. Each line is rendered several times, 30% of them clean.

    Args:
        train_rows: number of lines, at most the 600 with packaged clean speech.
        renderings: of each line, with other flaws.
        seed: of the lines and their flaws.
    """
    lines = sorted(references())
    if not (1 <= train_rows <= len(lines) and renderings >= 1):
        raise DataError(
            f"graded_speech: train_rows is {train_rows} and renderings {renderings}; expected 1 to "
            f"{len(lines)} lines and at least 1 rendering."
        )
    from datasets import Dataset, DatasetDict

    chosen = np.random.default_rng(seed).permutation(len(lines))[:train_rows]
    rows = [row for index in chosen for row in _rendered(lines[index], renderings, seed)]
    report = {"world": "speech", "lines": train_rows, "renderings": renderings}
    return Loaded(DatasetDict({"train": Dataset.from_list(rows)}), report)


def render_line(prompt: str, flaws: Mapping[str, float], seed: int) -> str:
    """Return a line of the world with flaws, as tokens of the codec `embedded`."""
    codec = EmbeddedCodec()
    clean = codec.frames(references()[prompt])
    middle = float(np.median(clean.pitch))
    pitch = middle + (clean.pitch - middle) * (1 - flaws.get(FLAT_PITCH, 0))
    wave = damaged(synthesize(replace(clean, pitch=pitch)), flaws, seed)
    return codec.form.write(codec.encode([wave])[0], codec.size)


def _rendered(prompt: str, renderings: int, seed: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng([seed, *prompt.encode()])
    for _ in range(renderings):
        flaws = draw_flaws(rng)
        completion = render_line(prompt, flaws, int(rng.integers(2**31)))
        row = {"prompt": prompt, "text": Line.parse(prompt).text, "completion": completion}
        yield {**row, "grade": [planted_quality(flaws)]}

"""Write clips of held-out texts before and after training, with pictures, for the model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.cards import png_panels
from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval
from hf_rlhf_speech.audio import write_wav
from hf_rlhf_speech.features.pitch import STEP, pitch_of
from hf_rlhf_speech.speech import Speech, decode_completions

FOLDER = "samples"
STAGES = ("before", "after")
LISTEN, BY_STYLE = "Listen", "Gain by style"
_WINDOW = 0.032
_FLOOR_DB = -70


def write_samples(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    spoken: Sequence[Sequence[Mapping[str, Any]]],
    codec: str,
    count: int,
) -> list[dict[str, Any]]:
    """Write clips, texts and pictures into `folder`/samples; return the table that plays them. The
    text of `before-1.wav` is in `before-1.txt`, where `hf-rlhf speech` finds it.

    Args:
        folder: of the run.
        rows: of the dataset, with `text` and optionally `style`.
        spoken: before and after training, `text` (of the completion) and `reward` for each row.
        codec: of the completions.
        count: number of rows: the first of each style, then any.
    """
    (folder / FOLDER).mkdir(exist_ok=True)
    table = []
    firsts = {row.get("style"): index for index, row in reversed(list(enumerate(rows)))}
    order = dict.fromkeys([*sorted(firsts.values()), *range(len(rows))])
    for number, index in enumerate(list(order)[:count], start=1):
        pair = [stage[index] for stage in spoken]
        speech = decode_completions([each["text"] for each in pair], codec, None)
        entry = {name: rows[index][name] for name in ("text", "style") if name in rows[index]}
        for stage, each in zip(STAGES, speech, strict=True):
            entry[stage] = _written(folder, f"{FOLDER}/{stage}-{number}", each, rows[index]["text"])
        picture = f"{FOLDER}/spectrogram-{number}.png"
        if draw_speech(folder / picture, dict(zip(STAGES, speech, strict=True))):
            entry["spectrogram and pitch"] = picture
        entry |= {
            f"reward {stage}": each["reward"] for stage, each in zip(STAGES, pair, strict=True)
        }
        table.append(entry)
    return table


def _written(folder: Path, name: str, speech: Speech, text: str) -> str:
    if not len(speech.wave):
        return ", ".join(speech.problems) or "no speech"
    write_wav(folder / f"{name}.wav", speech.wave, speech.rate)
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return f"{name}.wav"


def draw_speech(path: Path, speech: Mapping[str, Speech]) -> bool:
    """Draw the spectrogram and pitch of each utterance; return whether any has sound."""
    sounding = {name: each for name, each in speech.items() if each.seconds > _WINDOW}
    if not sounding:
        return False
    with png_panels(path, len(sounding), (3.6, 2.4), across=2, sharex=True, sharey=True) as panels:
        for axes, (name, each) in zip(panels, sounding.items(), strict=True):
            _draw(axes, each)
            axes.set_title(name)
    return True


def _draw(axes: Any, speech: Speech) -> None:
    length = round(_WINDOW * speech.rate)
    frames = np.lib.stride_tricks.sliding_window_view(speech.wave, length)[:: length // 4]
    level = 20 * np.log10(np.abs(np.fft.rfft(frames * np.hanning(length), axis=1)) + 1e-6)
    extent = (0, speech.seconds, 0, speech.rate / 2000)
    low = level.max() + _FLOOR_DB
    axes.imshow(level.T, origin="lower", aspect="auto", extent=extent, vmin=low, cmap="Greys")
    axes.grid(visible=False)
    axes.set(xlabel="s", ylabel="kHz")
    pitch = pitch_of(speech.wave, speech.rate)
    heights = axes.twinx()
    times = (np.arange(len(pitch.hertz)) + 2) * STEP
    heights.plot(times[pitch.voiced], pitch.hertz[pitch.voiced], ".", ms=2.5, color="C1")
    heights.set(ylim=(50, 400), ylabel="pitch (Hz)")
    heights.grid(visible=False)


def gains_by_style(
    rows: Sequence[Mapping[str, Any]], spoken: Sequence[Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the reward before and after training and the paired gain, by style."""
    table = []
    for style in sorted({row["style"] for row in rows if row.get("style")}):
        of_style = [index for index, row in enumerate(rows) if row.get("style") == style]
        pairs = [tuple(stage[index]["reward"] for stage in spoken) for index in of_style]
        scored = [pair for pair in pairs if None not in pair]
        entry: dict[str, Any] = {"style": style, "texts": len(scored)}
        for side, stage in enumerate(STAGES):
            entry[stage] = float(np.mean([pair[side] for pair in scored])) if scored else None
        gain = Interval.of_mean([after - before for before, after in scored])
        entry["gain"] = interval(gain.as_json() if gain else None, signed=True)
        table.append(entry)
    return table

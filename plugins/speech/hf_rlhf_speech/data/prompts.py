"""Load texts to speak, each with a style and a voice: `speech_prompts`."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import Row, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf.formatting import counted
from hf_rlhf_speech.audio import read_audio
from hf_rlhf_speech.world.espeak import VOICES
from hf_rlhf_speech.world.quality import references
from hf_rlhf_speech.world.speaker import Line
from hf_rlhf_speech.world.texts import STYLES, TEXTS
from hf_rlhf_worlds.sampling import Split, build_splits, split_of

HELD_OUT_TEXTS = TEXTS[::5]
_CLIP = "reference_audio"


def speech_prompts(
    texts: Literal["sentences", "words"] = "sentences",
    path: str | None = None,
    template: str | None = None,
    conversational: bool = False,
    styles: list[str] | None = None,
    voices: list[str] | None = None,
    train_rows: int | None = None,
    test_rows: int | None = None,
    seed: int = 0,
) -> Loaded:
    """Return texts to speak in 6 styles, with descriptions of 6 voices.

    For a model with named voices, use `template: "{voice}: {text}"` and its names as `voices`.

    Args:
        texts: `sentences`, 30 of everyday and technical English, of which 6 are held out; or
            `words`, three words each, which `tiny_speaker` has learned, with a column `reference`
            for the reward `known_speech_quality`.
        path: rows of your own with `text`, and optionally `style`, `voice` and `reference_audio`
            (the path of a clip, relative to the file of rows): a file, a folder or a Hub dataset
            (its split `train`). A fifth of the texts is held out.
        template: of the prompt, with `{text}`, and `{style}` and `{voice}` where the model reads
            them; by default the text, after the style and voice that the row has.
        conversational: make the prompt a user message, for the model's chat template.
        styles: some of the six; all by default.
        voices: descriptions or names; by default the world's own.
        train_rows: number of rows; all by default. test_rows: the same for held-out rows.
        seed: of the voice of each sentence, and of the order.

    Returns:
        Splits `train` and `test`, no text in both, with prompt, text, style, voice and reference,
        and reference_audio if a row has it.

    Raises:
        DataError: `styles` without rows, an unknown source, a template without `{text}`, more rows
            than exist, a row of `path` without a text or with an unreadable reference clip, too few
            texts to hold out a fifth.
    """
    check_template("speech_prompts", template)
    if texts == "words" and (template is not None or voices or conversational or path):
        raise DataError(
            "speech_prompts: `path`, `template`, `conversational` and `voices` have no effect with "
            "`texts: words`, whose prompts tiny_speaker has learned. Leave them out, or use "
            "`texts: sentences`."
        )
    if path is not None:
        lines = list(_own_lines(path, voices))
    elif texts == "words":
        lines = [Line.parse(prompt) for prompt in references()]
    else:
        lines = list(_sentences(voices or [*VOICES], seed))
    if unknown := set(styles or ()) - {line.style for line in lines}:
        raise DataError(
            f"speech_prompts: there is no style {min(unknown)!r}. Styles: "
            f"{', '.join(sorted({line.style for line in lines}))}."
        )
    lines = [line for line in lines if styles is None or line.style in styles]
    random.Random(seed).shuffle(lines)
    held_out = HELD_OUT_TEXTS if texts == "sentences" and path is None else None
    sides: dict[Split, list[Line]] = {"train": [], "test": []}
    for line in lines:
        sides[_side(line.text, held_out)].append(line)
    if path is not None and not (sides["train"] and sides["test"]):
        raise DataError(
            f"speech_prompts: {path} has {counted(len(lines), 'text')}, and a fifth is held out: "
            f"none is left for {'test' if sides['train'] else 'train'}. Add texts: about ten are "
            "needed."
        )
    counts: dict[Split, int] = {
        "train": len(sides["train"]) if train_rows is None else train_rows,
        "test": len(sides["test"]) if test_rows is None else test_rows,
    }

    voiced = any(line.reference_audio for line in lines)

    def rows(split: Split) -> Iterator[Mapping[str, Any]]:
        for line in sides[split]:
            text = line.written(template)
            prompt = [{"role": "user", "content": text}] if conversational else text
            reference = line.prompt if texts == "words" else None
            yield {"prompt": prompt, **_columns(line, voiced), "reference": reference}

    styles = sorted({line.style for line in lines})
    report: dict[str, Any] = {"texts": path or texts, "styles": styles}
    if voiced:
        report["reference_clips"] = sum(line.reference_audio is not None for line in lines)
    return build_splits("speech_prompts", counts, rows, report)


def check_template(adapter: str, template: str | None) -> None:
    """Raise DataError for a template without the text, or with fields that a line lacks."""
    if template is None:
        return
    if "{text}" not in template:
        raise DataError(f"{adapter}: the template {template!r} lacks {{text}}.")
    try:
        Line("", "", "").written(template)
    except (LookupError, ValueError) as error:
        raise DataError(
            f"{adapter}: the template {template!r} cannot be filled in ({error}); expected "
            "{text}, {style} and {voice}, and {{ }} for braces of its own."
        ) from error


def _columns(line: Line, voiced: bool) -> dict[str, Any]:
    """Return the columns of a line, with reference clips only if a row has a clip."""
    return {name: value for name, value in asdict(line).items() if voiced or name != _CLIP}


def _side(text: str, held_out: Sequence[str] | None) -> Split:
    if held_out is None:
        return split_of(text)
    return "test" if text in held_out else "train"


def _sentences(voices: Sequence[str], seed: int) -> Iterator[Line]:
    """Yield each text in each style, cycling through the voices."""
    for number, (text, style) in enumerate(product(TEXTS, STYLES)):
        yield Line(text, style, voices[(number + number // len(STYLES) + seed) % len(voices)])


def _own_lines(path: str, voices: Sequence[str] | None) -> Iterator[Line]:
    """Yield the rows of a file, cycling through the voices if there are any."""
    source = read_rows(path)
    rows = source.split("train" if len(source.splits) > 1 else next(iter(source.splits)))
    for number, row in enumerate(rows):
        text = row.values.get("text")
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f"{row.at('text')}: is {text!r}, expected a text to speak; the row's columns are "
                f"{', '.join(row.values) or 'none'}. Remove the row, or rename that of the text."
            )
        voice = voices[number % len(voices)] if voices else str(row.values.get("voice") or "")
        reference = _reference_audio(row, Path(path))
        yield Line(text, str(row.values.get("style") or ""), voice, reference)


def _reference_audio(row: Row, source: Path) -> str | None:
    """Return the path of a row's reference clip. Raises DataError for an unreadable clip."""
    value, where = row.values.get(_CLIP) or "", row.at(_CLIP)
    if not isinstance(value, str):
        what = f"is of type {type(value).__name__}, expected the path of a clip"
        raise DataError(f"{where}: {what}, relative to the file of rows. Write it into a file.")
    if not value:
        return None
    clip = (source if source.is_dir() else source.parent) / value
    read_audio(clip, where=f"{where}: {clip}")
    return str(clip)

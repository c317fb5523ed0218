"""Refuse parts of a row that training cannot honour: media, and marks that exclude turns."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.data.chat import is_assistant
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import BOOLEANS, describe_value, without_nulls

_MEDIA = re.compile(
    r"(?:image|img|picture|photo|video|audio|pixel_value)s?(?:_(?:path|file|url|byte)s?)?"
)
_LEARNED_IF: Mapping[str, bool | None] = {
    **dict.fromkeys(("weight", "train", "training", "trainable", "train_on_turn"), True),
    **dict.fromkeys(("loss", "loss_mask", "loss_weight", "learn", "learnable"), True),
    **dict.fromkeys(("masked", "is_masked", "mask_loss", "no_loss"), False),
    **dict.fromkeys(("mask", "train_detail", "training_detail"), None),
}
"""Mark of a turn (OpenAI's, axolotl's, ms-swift's, …) -> the value for trained turns; None if
unknown."""


def check_media(row: Row, turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raise BadRow for images, audio and video in the columns or turns of a row."""
    _check_keys(row, row.values, row.where)
    for column, objects in turns.items():
        for turn in objects:
            _check_keys(row, turn, row.at(column))


def is_media(name: str, value: Any) -> bool:
    """Return whether a column or a turn's key holds an image, audio or video."""
    empty: tuple[Any, ...] = (None, "", [], {}, [{}], [None])
    return _MEDIA.fullmatch(name) is not None and without_nulls(value) not in empty


def _check_keys(row: Row, values: Mapping[str, Any], where: str) -> None:
    for name, value in values.items():
        if is_media(name, value) and name not in row.ignored:
            raise BadRow(
                f"media:{name}",
                f"{where}: has {name!r}, and images, sounds and videos are not trained on. Leave "
                "the row out, or name the key in `ignore` to train on the text alone.",
            )


def check_marks(row: Row, turns: Mapping[str, Sequence[Mapping[str, Any]]], *, every: bool) -> None:
    """Raise BadRow if a trained turn of the assistant is marked as not to be trained on.

    The last turn of a column is trained on, or `every` turn. A column may hold a list of marks.
    """
    names = _LEARNED_IF.keys() - row.ignored
    lists = {key: row.values[key] for key in names & row.values.keys()}
    lists = {key: marks for key, marks in lists.items() if isinstance(marks, list)}
    for column, objects in turns.items():
        for number, turn in enumerate(objects, 1):
            marks = {key: turn[key] for key in names & turn.keys()}
            marks |= {key: each[number - 1] for key, each in lists.items() if number <= len(each)}
            if marks and (every or number == len(objects)) and is_assistant(turn):
                _refuse_marked(marks, f"{row.at(column)}, turn {number}", every)


def _refuse_marked(marks: Mapping[str, Any], where: str, every: bool) -> None:
    for key, value in marks.items():
        wanted = _LEARNED_IF[key]
        if value is None or (wanted is not None and BOOLEANS.get(str(value).lower()) == wanted):
            continue
        others = "learn the last turn alone (`target: final`), " if every else ""
        raise BadRow(
            f"marked:{key}",
            f"{where}: {key!r} is {describe_value(value)}, so the turn must not be learned whole. "
            f"Leave the row out, {others}or name the key in `ignore` to learn it.",
        )

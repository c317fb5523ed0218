"""What a row has that training could not honour: media, and marks of turns not to be learned."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.data.chat import is_assistant
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.sources import Row
from hf_rlhf.data.values import describe_value, without_nulls

_MEDIA = re.compile(
    r"(?:image|img|picture|photo|video|audio|pixel_value)s?(?:_(?:path|file|url|byte)s?)?"
)
_LEARNED_IF: Mapping[str, bool | None] = {
    **dict.fromkeys(("weight", "train", "training", "trainable", "train_on_turn"), True),
    **dict.fromkeys(("loss", "loss_mask", "loss_weight", "learn", "learnable"), True),
    **dict.fromkeys(("masked", "is_masked", "mask_loss", "no_loss"), False),
    **dict.fromkeys(("mask", "train_detail", "training_detail"), None),
}
"""Mark of a turn -> the value that says that it is learned; None where that is not known.

OpenAI's `weight`, axolotl's `train` and `train_detail`, ms-swift's `loss`, `loss_mask`, and others.
"""
_FLAGS = {
    **dict.fromkeys(("true", "1", "1.0"), True),
    **dict.fromkeys(("false", "0", "0.0"), False),
}


def check_media(row: Row, turns: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raise BadRow for images, sounds and videos: in columns of a row, or in its turns."""
    _check_keys(row.values, row.where)
    for column in turns:
        for number, turn in enumerate(turns[column], start=1):
            _check_keys(
                {key: value for key, value in turn.items() if key not in row.ignored},
                f"{row.at(column)}, turn {number}",
            )


def is_media(name: str, value: Any) -> bool:
    """Return whether a column, or a key of a turn, has an image, a sound or a video."""
    empty: tuple[Any, ...] = (None, "", [], {}, [{}], [None])
    return bool(_MEDIA.fullmatch(name)) and without_nulls(value) not in empty


def _check_keys(values: Mapping[str, Any], where: str) -> None:
    for name, value in values.items():
        if is_media(name, value):
            raise BadRow(
                f"media:{name}",
                f"{where}: has {name!r}, and no images, sounds or videos are trained on here. "
                "Leave the row out, or name the key in `ignore` to train on the text alone, with "
                "any placeholders in it.",
            )


def check_marks(row: Row, turns: Mapping[str, Sequence[Mapping[str, Any]]], *, every: bool) -> None:
    """Raise BadRow for a mark that an assistant's turn is not to be learned, if it would be.

    Learned is the last turn of a column, or `every` one. Marks may also be a list in a column.
    """
    lists = {key: row.values[key] for key in _LEARNED_IF if isinstance(row.values.get(key), list)}
    for column, objects in turns.items():
        for number, turn in enumerate(objects, start=1):
            if not is_assistant(turn) or not (every or number == len(objects)):
                continue
            in_lists = {
                key: marks[number - 1] for key, marks in lists.items() if number <= len(marks)
            }
            for key, value in {**turn, **in_lists}.items():
                if key in row.ignored or key not in _LEARNED_IF or value is None:
                    continue
                if _LEARNED_IF[key] is None or _FLAGS.get(str(value).lower()) != _LEARNED_IF[key]:
                    others = " `target: final` learns the last one alone." if every else ""
                    raise BadRow(
                        f"marked:{key}",
                        f"{row.at(column)}, turn {number}: {key!r} is {describe_value(value)}, so "
                        f"the turn is not to be learned whole, and it would be.{others} Leave the "
                        "row out, or name the key in `ignore` to learn the turn all the same.",
                    )

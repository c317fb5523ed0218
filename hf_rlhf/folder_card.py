"""The card in a run's own folder, which tells how to load what lies there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from hf_rlhf.card import render_card
from hf_rlhf.files import atomic_write_text
from hf_rlhf.record import load_record, write_record


def weights_in(folder: Path) -> list[str]:
    """Return which of `adapter` and `merged` a run folder holds weights in."""
    return [name for name in ("adapter", "merged") if any((folder / name).glob("*.safetensors"))]


def write_card(record: Mapping[str, Any], folder: Path) -> None:
    """Write the card of a run into its folder."""
    atomic_write_text(folder / "README.md", render_card(record, endpoint=constants.ENDPOINT))


def tell_weights(folder: Path) -> None:
    """Write record and card of a run anew, after weights were taken out of its folder.

    Raises RunFolderError when it holds no record.
    """
    record = load_record(folder)
    record["model"]["saved"] = weights_in(folder)
    write_record(record, folder)
    write_card(record, folder)

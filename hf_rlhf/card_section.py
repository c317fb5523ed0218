"""The `card` section of a run file that a package ships, in a run of other data or another model.

What it says (title, intended use, licence, ...) is of the run that the file describes. In another
it would stand on the card as if the author of that run had said it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hf_rlhf.config import RunFile

SUBJECTS = ("dataset", "model_name_or_path", "adapter")
"""Keys of a run file that decide what its `card` section is about."""


def own_card(
    file: RunFile,
    shipped: Mapping[str, Any],
    given: Collection[str] = (),
    varied: Collection[str] = (),
) -> tuple[RunFile, str]:
    """Return `file` without what its `card` section says of other data or another model.

    Args:
        file: a shipped run file with overrides applied.
        shipped: its values before that.
        given: the keys of `card` that were set otherwise than by an override.
        varied: top-level keys that will be other ones yet.

    Returns:
        The file, in whose `card` only what was given stays if the run is another; and a line that
        says what was left out and why, empty where nothing was. Another number of rows or another
        seed of the data is no other run.
    """
    now = file.values
    changed = [
        key for key in SUBJECTS if key in varied or _words(now.get(key)) != _words(shipped.get(key))
    ]
    card = now.get("card")
    if not changed or not isinstance(card, Mapping) or ("card",) in file.overrides:
        return file, ""
    kept = {path[1] for path in file.overrides if path[0] == "card" and len(path) > 1}
    kept |= set(given)
    left_out = [key for key in card if key not in kept]
    if not left_out:
        return file, ""
    own = {key: value for key, value in card.items() if key in kept}
    said = (
        f"{', '.join(f'`{key}`' for key in changed)} {'is' if len(changed) == 1 else 'are'} not as "
        f"in {file.name}, so what its `card` section says is left out ({', '.join(left_out)}). "
        "For your own: --card '{title: ..., intended_use: ..., license: ...}'"
    )
    return replace(file, values={**now, "card": own}), said


def _words(value: Any) -> Any:
    """Leave out the numbers of a section: how many rows there are says nothing of what they are."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: item
        for key, item in value.items()
        if isinstance(item, bool) or not isinstance(item, (int, float))
    }

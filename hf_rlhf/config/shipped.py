"""Using a run file that a package ships with other data or another model.

Its `card` section (title, intended use, licence, ...) describes the shipped run and is left out: on
the card it would look like the user's own words. Its settings (lengths, rates, batch sizes) were
chosen for the shipped model and data; those that still apply are listed. A monitor whose columns
the other data lacks is left out.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.yaml import KeyPath, dotted, leaves

SUBJECTS = ("dataset", "model_name_or_path", "adapter")
"""Keys of a run file that decide what its `card` section is about."""
_NOT_FITTED = frozenset(
    {
        *("schema", "card", "publish", "judges", "rewards", "gates", "dataloader_pin_memory"),
        *("seed", "rows", "samples", "completions_per_prompt"),
        *("logging_steps", "save_steps", "save_total_limit"),
    }
)
"""Keys and sections whose numbers suit any model and data."""


def own_card(
    file: RunFile,
    shipped: Mapping[str, Any],
    given: Collection[str] = (),
    varied: Collection[str] = (),
) -> tuple[RunFile, str]:
    """Return `file` without its `card` section if the run has other data or another model.

    Args:
        file: a shipped run file with overrides applied.
        shipped: its values before that.
        given: the keys of `card` that were set otherwise than by an override.
        varied: top-level keys that will still be changed.

    Returns:
        The file, whose `card` keeps only what the user set if the data or model differ; and a note
        on what was left out and why, empty if nothing was. A different number of rows or seed of
        the data does not count as a difference.
    """
    now = file.values
    changed = _changed(now, shipped, varied)
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
        f"{', '.join(f'`{key}`' for key in changed)} {'differs' if len(changed) == 1 else 'differ'}"
        f" from {file.name}, so its `card` section is left out ({', '.join(left_out)}). "
        "For your own: --card '{title: ..., intended_use: ..., license: ...}'"
    )
    return replace(file, values={**now, "card": own}), said


def kept_settings(file: RunFile) -> str:
    """Return the numbers and switches of a shipped file that still apply to other data or model.

    Empty for a user's own file, for the run that the file describes, and if all were replaced.
    """
    changed = _changed(file.values, file.shipped, ()) if file.shipped is not None else []
    if not changed or file.shipped is None:
        return ""
    kept = [
        f"{dotted(path)} {str(value).lower()}"
        for path, value in leaves(file.shipped)
        if isinstance(value, (bool, int, float))
        and not _NOT_FITTED & {*path}
        and (path[0] != "dataset" or "dataset" in changed)
        and is_as_shipped(file, path)
    ]
    if not kept:
        return ""
    return (
        f"{', '.join(f'`{key}`' for key in changed)} {'differs' if len(changed) == 1 else 'differ'}"
        f" from {file.name}, but these settings of that file still apply: {', '.join(kept)}. "
        "To change one: --KEY VALUE"
    )


def without_given(file: RunFile, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the shipped values without those that are set from Python."""
    if file.shipped is None:
        return None
    return {
        key: value
        for key, value in file.shipped.items()
        if key not in settings or key in SUBJECTS or isinstance(value, Mapping)
    }


def is_as_shipped(file: RunFile, path: KeyPath) -> bool:
    """Return whether the value at `path` comes from the shipped file and not from the user."""
    # In phases an option of the top level replaces what each of them says.
    places = [path, path[2:]] if path[0] == "phases" else [path]
    options = (option for option in file.overrides for place in places if _meet(option, place))
    if file.shipped is None or any(options):
        return False
    return bool(_at(file.values, path) == _at(file.shipped, path) is not None)


def labels_of_rewards(file: RunFile) -> set[str]:
    """Return the labels of the rewards that a file names, as far as it can be read."""
    rewards = file.values.get("rewards")
    return {_label(one) for one in rewards} if isinstance(rewards, list) else set()


def without_rewards(file: RunFile, labels: Collection[str]) -> RunFile:
    """Return `file` without the rewards of these labels."""
    rewards = file.values.get("rewards")
    if not labels or not isinstance(rewards, list):
        return file
    values = {key: value for key, value in file.values.items() if key != "rewards"}
    if kept := [one for one in rewards if _label(one) not in labels]:
        values["rewards"] = kept
    return replace(file, values=values)


def _label(reward: Any) -> str:
    entry = reward if isinstance(reward, Mapping) else {}
    return str(entry.get("label") or str(entry.get("name")).rpartition("/")[2])


def _meet(one: KeyPath, other: KeyPath) -> bool:
    """Return whether one path is within the other."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]


def _at(value: Any, path: KeyPath) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _changed(
    now: Mapping[str, Any], shipped: Mapping[str, Any], varied: Collection[str]
) -> list[str]:
    return [
        key for key in SUBJECTS if key in varied or _words(now.get(key)) != _words(shipped.get(key))
    ]


def _words(value: Any) -> Any:
    """Leave out the numbers of a section: another number of rows is still the same data."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: item
        for key, item in value.items()
        if isinstance(item, bool) or not isinstance(item, (int, float))
    }

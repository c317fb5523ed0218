"""How two runs differ: what the record of one says against the run file and rows of another."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hf_rlhf.config.schema import Limits
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.secrets import redact_secrets
from hf_rlhf.training.model_record import continued
from hf_rlhf.training.record_sections import digests

_MAY_CHANGE = {"publish", "card", "output_dir", *(item.name for item in fields(Limits))}
# How it is launched: the batch is the same, and resuming on fewer machines is no other run.
_MAY_CHANGE |= {"expect_world_size", "expect_distributed"}


def differences(recorded: RunRecord, run: Run) -> list[str]:
    """Return the settings in which a folder's run differs from this one, as `key: old -> new`.

    `publish`, `card` and the `Limits` may change: they say what becomes of a run, not what it is.
    Rows of the dataset count as a setting, by number and content, for a file may have changed under
    its name.
    """
    rows = {name: len(split) for name, split in run.dataset.items()}
    old = {**recorded.config, "rows": recorded.data.splits}
    new = redact_secrets(as_json({**run.spec.plain, "rows": rows})[0])
    # What lies under an adapter's name may have changed, too.
    then, now_ = recorded.model.continues or {}, continued(run) or {}
    old["adapter's weights"], new["adapter's weights"] = then.get("sha256"), now_.get("sha256")
    # A run from before digests were recorded has none to compare.
    if (known := recorded.data.digests) and old["rows"] == rows:
        old |= {_content(split): digest for split, digest in known.items()}
        new |= {_content(split): digest for split, digest in digests(run).items()}
    return changed_settings(old, new)


def _content(split: str) -> str:
    return f"content of the rows in {split!r} (digest)"


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return in what two run files are different runs, as `key: old -> new`."""
    keys = sorted((old.keys() | new.keys()) - _MAY_CHANGE)
    return [line for key in keys for line in _changed(key, old.get(key), new.get(key))]


def _changed(key: str, old: Any, new: Any) -> list[str]:
    """Return how two values differ: of lists of sections, such as phases, only where."""
    if old == new:
        return []
    if not _alike(old, new):
        return [f"{key}: {old!r} -> {new!r}"]
    return [
        line
        for index, (before, after) in enumerate(zip(old, new, strict=True))
        for name in sorted({**before, **after})
        for line in _changed(
            f"{key}.{before.get('name', index)}.{name}", before.get(name), after.get(name)
        )
    ]


def _alike(old: Any, new: Any) -> bool:
    """Return whether both are lists of as many sections, by the same names."""
    if not (isinstance(old, list) and isinstance(new, list) and len(old) == len(new)):
        return False
    return all(
        isinstance(before, Mapping)
        and isinstance(after, Mapping)
        and before.get("name") == after.get("name")
        for before, after in zip(old, new, strict=True)
    )

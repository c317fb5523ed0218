"""Check whether a folder holds this run, another run, or foreign files."""

import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import unified_diff
from math import prod
from typing import Any

from hf_rlhf.config.schema import Limits
from hf_rlhf.errors import RunFolderError
from hf_rlhf.models.contents import WRITTEN_BY_RUN, commits, contents
from hf_rlhf.runs.run import Run
from hf_rlhf.steps.digests import differences as value_differences
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record
from hf_rlhf.storage.record_schema import Component
from hf_rlhf.storage.secrets import redact_secrets
from hf_rlhf.training.model_record import continued
from hf_rlhf.training.record_sections import row_digests

WRITTEN = (
    *("README.md", "config.yaml", "samples.jsonl", "reward_curve.png", "training_curves.png"),
    *("evaluation", "checkpoints", "adapter", "merged", "reward_validation"),
    "samples",
)
"""Files that a run writes beside its record."""
_LINES_SHOWN = 20
"""Maximum of changed source lines in messages."""
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Settings whose product, over all processes, is the batch of an optimizer step."""
_MAY_CHANGE = {
    *("publish", "card", "monitor", "output_dir", *(field.name for field in fields(Limits))),
    # The launch: the batch is the same, and a run may resume on fewer machines.
    *("expect_world_size", "expect_distributed"),
}


def previous_record(run: Run) -> RunRecord | None:
    """Return the record of this run's earlier sessions in the folder; None for a new folder.

    Raises RunFolderError with the difference if the folder holds another run, or foreign files with
    our names: a checkpoint or an evaluation of an unknown run would be used for this run, and a
    README.md would be overwritten.
    """
    if not (run.folder / RECORD_NAME).exists():
        if names := [name for name in WRITTEN if (run.folder / name).exists()]:
            raise RunFolderError(
                f"{run.folder} has no {RECORD_NAME}, but holds {', '.join(names)}, which a run "
                "would overwrite. Choose another `output_dir`, or move them away."
            )
        return None
    record = load_record(run.folder)
    if lines := differences(record, run):
        text = "".join(f"\n  - {line}" for line in lines)
        raise RunFolderError(
            f"{run.folder} holds another run. Differences (there -> here):{text}\n"
            "Undo the change to resume that run; to train with it, choose another `output_dir`."
        )
    return record


def differences(recorded: RunRecord, run: Run, ignored: Collection[str] = ()) -> list[str]:
    """Return a line for each setting that differs between a folder's run and this run.

    The content behind names also counts, since it can change without the names: rows of the dataset
    (number and content), weights of models, content of files, and code.
    """
    old = _identity(
        recorded.config, recorded.data.splits, recorded.data.digests, recorded.model.continues
    )
    rows = {name: len(split) for name, split in run.dataset.items()}
    config = redact_secrets(as_json(run.spec.plain))
    new = _identity(config, rows, row_digests(run), continued(run))
    here, known = _components(run), found_contents(run) | found_commits(run, ask=True)
    for key, before in recorded.contents.items():
        now: Any = known.get(key)
        unknown = now is None and isinstance(before, Mapping) and "commit" in before
        skipped = key.partition(".")[0] in ignored or before == WRITTEN_BY_RUN
        if not unknown and not skipped:
            old[f"content of {key}"], new[f"content of {key}"] = before, now
    lines = changed_settings(old, new, {*ignored, *_equal_batch(recorded, run)})
    # A model at the same commit is equal, regardless of the requested branch or tag.
    same = [key for key, value in known.items() if recorded.contents.get(key) == value]
    revisions = {f"{key.removesuffix('_name_or_path')}_revision" for key in same}
    revisions |= {f"{key.rpartition('.')[0]}.revision" for key in same}
    lines = [line for line in lines if re.split(": | was ", line)[0] not in revisions]
    for before, now in _paired(recorded, here):
        if _are_comparable(recorded, before, now):
            lines += _code_differences(before, now)
    return [*lines, *_changed_lines(recorded.components, here)]


def _equal_batch(recorded: RunRecord, run: Run) -> Collection[str]:
    """Return the settings that differ because the same batch is split over other processes."""
    there, here = recorded.training.world_size, run.training.world_size
    default = {each.name: each.default for each in fields(run.training) if each.name in _BATCH}
    before: list[Any] = [recorded.config.get(name) or default[name] for name in default]
    now: list[Any] = [getattr(run.training, name) for name in default]
    # `prompts_per_step` is the batch of all processes, and is compared itself.
    equal = getattr(run.training, "prompts_per_step", None) is not None
    equal |= prod([there or 0, *before]) == prod([here, *now])
    return default if equal and there not in (None, here) else ()


def changes(recorded: RunRecord, run: Run) -> list[str]:
    """Return the changes since a run started that do not necessarily affect training."""
    written = (key for key, value in recorded.contents.items() if value == WRITTEN_BY_RUN)
    lines = [f"content of {key}: {WRITTEN_BY_RUN}, so it could not be compared" for key in written]
    for before, now in _paired(recorded, _components(run)):
        old, new = ({each.package: each.version} if each.package else {} for each in (before, now))
        lines += value_differences(old, new)
        unknown = [f"{name} of {now.label}" for name in now.not_compared]
        unknown += [] if _are_comparable(recorded, before, now) else [f"the code of {now.label}"]
        lines += [f"{name} could not be compared" for name in unknown]
    return list(dict.fromkeys(lines))


def found_contents(run: Run) -> dict[str, Any]:
    """Return the content (except rows) behind the names in a run file, by dotted key."""
    found = contents(run.spec.plain)
    return {key: each for key, each in found.items() if _counts(key)} | found_commits(run)


def found_commits(run: Run, *, ask: bool = False) -> dict[str, Any]:
    """Return the commits of models on the Hub, see `hf_rlhf.models.contents.commits`."""
    found = commits(run.spec.plain, ask=ask).items()
    return {key: {"commit": each} for key, each in found if _counts(key)}


def _counts(key: str) -> bool:
    return {"dataset", *_MAY_CHANGE}.isdisjoint(key.split("."))


def _are_comparable(recorded: RunRecord, before: Component, now: Component) -> bool:
    """Return whether two components have code digests from the same Python version."""
    python = (recorded.environment.python or "").split(".")[:2]
    same_python = python == list(platform.python_version_tuple()[:2])
    return bool(before.code) == bool(now.code) and (same_python or not now.code)


def _components(run: Run) -> list[Component]:
    return [Component(**redact_secrets(as_json(each))) for each in run.components]


def _paired(record: RunRecord, now: Sequence[Component]) -> list[tuple[Component, Component]]:
    """Pair the components of both runs by kind and label."""
    old = {(each.kind, each.label or each.name): each for each in record.components}
    keys = ((each.kind, each.label or each.name) for each in now)
    return [(old[key], each) for key, each in zip(keys, now, strict=True) if key in old]


def changed_settings(
    old: Mapping[str, Any], new: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
    """Return `key: old -> new` for each setting that makes two run files different runs.

    `publish`, `card`, `monitor`, the launch and the `Limits` may change: they do not affect
    training.
    """
    before, now = (
        {
            key: value
            for key, value in values.items()
            if value is not None and key not in _MAY_CHANGE and key not in ignored
        }
        for values in (old, new)
    )
    return value_differences(before, now)


def _identity(
    config: Mapping[str, Any],
    rows: Mapping[str, int],
    contents: Mapping[str, str],
    continues: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        **config,
        "rows": rows,
        **{f"content of the rows in {split!r}": digest for split, digest in contents.items()},
        "adapter's weights": (continues or {}).get("sha256"),
    }


def _code_differences(before: Component, now: Component) -> Iterator[str]:
    """Yield differences in a component's code, which counts the values that it uses."""
    name = now.label or now.kind
    # A separate tokenizer has a digest and no code.
    old, new = (each.code or {"content": str(each.sha256)} for each in (before, now))
    if changed := [key for key in {**old, **new} if old.get(key) != new.get(key)]:
        yield f"code of {name} changed: {', '.join(changed)} (or values that it uses)"


def _changed_lines(before: Sequence[Component], now: Sequence[Component]) -> Iterator[str]:
    """Yield the first changed lines of sources that differ beyond comments and layout."""
    earlier = {(each.kind, each.label): each for each in before}
    for each in now:
        known = earlier.get((each.kind, each.label))
        old = known.source if known and not (each.code and each.code == known.code) else None
        if old and each.source and old != each.source:
            lines = unified_diff(old.splitlines(), each.source.splitlines(), n=0, lineterm="")
            changed = [line for line in lines if line[:3] not in ("---", "+++")]
            yield "\n      ".join([f"{each.label}:", *changed[:_LINES_SHOWN]])

"""Whether a folder holds this run, another one, or files of neither."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import unified_diff
from typing import Any

from hf_rlhf.config.schema import Limits
from hf_rlhf.errors import RunFolderError
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
    *("monitor.png", "evaluation", "checkpoints", "adapter", "merged", "reward_validation"),
    "samples",
)
"""What a run writes beside its record."""
_LINES_SHOWN = 20
"""Of a source that differs from the recorded one."""
_MAY_CHANGE = {
    *("publish", "card", "monitor", "output_dir", *(field.name for field in fields(Limits))),
    # How it is launched: the batch is the same, and a run may resume on fewer machines.
    *("expect_world_size", "expect_distributed"),
}


def previous_record(run: Run) -> RunRecord | None:
    """Return the record of the same run begun earlier in this folder, or None for a new folder.

    Raises RunFolderError when the folder holds another run, showing the difference, or other
    files in the places of ours: a checkpoint or an evaluation of an unknown run would be taken for
    this run's, and a README.md would be lost.
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
            "Give this run another `output_dir`, or delete that folder."
        )
    return record


def differences(recorded: RunRecord, run: Run, ignored: Collection[str] = ()) -> list[str]:
    """Return a line for each setting in which a folder's run differs from this one.

    The rows of the dataset, by number and content, and the weights of an adapter that is continued
    count as settings: files may have changed under their names.
    """
    old = _identity(
        recorded.config, recorded.data.splits, recorded.data.digests, recorded.model.continues
    )
    old |= _code(recorded.components)
    rows = {name: len(split) for name, split in run.dataset.items()}
    config = redact_secrets(as_json(run.spec.plain))
    new = _identity(config, rows, row_digests(run), continued(run))
    here = [Component(**redact_secrets(as_json(each))) for each in run.components]
    new |= _code(here)
    return [*changed_settings(old, new, ignored), *_changed_lines(recorded.components, here)]


def changed_settings(
    old: Mapping[str, Any], new: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
    """Return a line for each setting that makes two run files different runs: `key: old -> new`.

    `publish`, `card`, `monitor`, the launch and the `Limits` may change: they do not decide what is
    trained.
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


def _code(components: Sequence[Component]) -> dict[str, Any]:
    """Return what identifies the code of components that no package offers, by their labels."""
    digests = {f"code of {each.label or each.kind}": each.sha256 for each in components}
    values = {f"values read by {each.label}": each.reads for each in components if each.reads}
    return {**digests, **values}


def _changed_lines(before: Sequence[Component], now: Sequence[Component]) -> Iterator[str]:
    """Yield the first changed lines of sources that differ."""
    sources = {(each.kind, each.label): each.source for each in before}
    for each in now:
        old = sources.get((each.kind, each.label))
        if old and each.source and old != each.source:
            lines = unified_diff(old.splitlines(), each.source.splitlines(), n=0, lineterm="")
            changed = [line for line in lines if line[:3] not in ("---", "+++")]
            yield "\n      ".join([f"{each.label}:", *changed[:_LINES_SHOWN]])

"""What of a run goes into which repository, and under which names.

`single`: merged weights, tokenizer and card in the root, the adapter in `adapter/`. Both in one
root would load silently wrong: `from_pretrained` sees adapter_config.json, takes the merged
weights for the base, and applies the adapter a second time. `separate`: two repositories, so that
`PeftModel.from_pretrained(base, repo)` needs no `subfolder`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from hf_rlhf.cards.folder_card import FOR_THE_CARD, adapter_repo, on_hub
from hf_rlhf.cards.metadata import HUB, validate_card
from hf_rlhf.cards.render import render_card
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import MANIFEST
from hf_rlhf.hub.outbox import complete_steps, outbox
from hf_rlhf.hub.upload_set import UploadSet, as_text
from hf_rlhf.models.adapter_check import check_adapter
from hf_rlhf.models.fingerprint import IDENTITY
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.secrets import redact_secrets

ADAPTER = "adapter"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", IDENTITY)


@dataclass(frozen=True)
class Part:
    """What one repository gets."""

    repo_id: str
    bundle: UploadSet
    what: str
    notes: tuple[str, ...] = ()
    """What a reader of the card, and whoever pushes, should know of the weights."""


@dataclass(frozen=True)
class Weights:
    """Where a run keeps its weights: complete ones, and those of the adapter."""

    model: Path | None
    adapter: Path | None


def parts(
    run: Path,
    record: RunRecord,
    asked: PublishSpec,
    weights: Weights,
    step: int | None,
    *,
    hashed: bool = True,
    endpoint: str = HUB,
) -> list[Part]:
    """Return the repositories and what each gets; `asked.base_model` is the base's Hub id.

    Links on the cards lead to `endpoint`.

    Raises PublishError for an adapter that is not whole. With `hashed` false, the names are right
    and the contents not looked at.
    """
    assert asked.repo_id is not None
    own = adapter_repo(asked) if weights.adapter else None
    hub_record = on_hub(record, asked)
    if step is not None:
        # Another checkpoint that is published since is no change of this one.
        hub_record.publish = {k: v for k, v in hub_record.published().items() if k != "steps"}
    notes = check_adapter(weights.adapter) if weights.adapter and hashed else []
    hub_record.author.known_notes += notes
    revision = None if step is None else asked.revision
    result = []
    if weights.model is not None:
        kind = "model" if step is None else "checkpoint"
        bundle = UploadSet(run, hashed=hashed)
        bundle.add_folder(weights.model, skip=_ADAPTER_FILES)
        if weights.adapter is not None and own is None:
            _add_adapter(bundle, weights.adapter, f"{ADAPTER}/", asked, record)
        _add_card(
            bundle, hub_record, kind=kind, repo_id=asked.repo_id, adapter_repo=own, step=step,
            revision=revision, endpoint=endpoint,
        )  # fmt: skip
        result.append(Part(asked.repo_id, bundle, "model", tuple(notes)))
    if weights.adapter is not None and own is not None:
        bundle = UploadSet(run, hashed=hashed)
        _add_adapter(bundle, weights.adapter, "", asked, record)
        _add_card(
            bundle, hub_record, kind="adapter", repo_id=own, adapter_repo=own, step=step,
            revision=revision, endpoint=endpoint,
        )  # fmt: skip
        result.append(Part(own, bundle, "adapter", tuple(notes)))
    for part in result:
        _add_record(part, run, hub_record, asked, step)
    return result


def names(
    run: Path, record: RunRecord, asked: PublishSpec, step: int | None
) -> list[tuple[str, str]]:
    """Return (repository, path) of what would be pushed, without reading or merging any weights."""
    folder = run / ADAPTER if step is None else _checkpoint(run, step)
    merged = run / "merged"
    adapter = folder if (folder / "adapter_config.json").exists() else None
    model = merged if step is None and (asked.merged or adapter is None) else None
    if step is not None and adapter is None:
        model = folder
    weights = Weights(model, adapter)
    asked = asked if asked.base_model else replace(asked, base_model="BASE/MODEL")
    result = parts(run, record, asked, weights, step, hashed=False)
    return [(part.repo_id, path) for part in result for path in part.bundle.files]


def _add_card(bundle: UploadSet, record: RunRecord, **how: Any) -> None:
    text = render_card(record, **how)
    if problems := validate_card(text):
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise PublishError(f"The card does not fit the Hub's rules; nothing was pushed.{listed}")
    bundle.add_text("README.md", text)


def _add_adapter(
    bundle: UploadSet, folder: Path, prefix: str, asked: PublishSpec, record: RunRecord
) -> None:
    """Add an adapter, its base named as others can load it, not as this machine did."""
    bundle.add_folder(folder, prefix, skip=("adapter_config.json", "config.json", IDENTITY))
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = asked.base_model
    model = record.model
    config["revision"] = model.revision if model.base == asked.base_model else None
    bundle.add_text(f"{prefix}adapter_config.json", as_text(config))
    # From the record, since a checkpoint has none beside it.
    if identity := model.identity:
        with_base = {**identity, "base": asked.base_model, "revision": config["revision"]}
        bundle.add_text(f"{prefix}{IDENTITY}", as_text(with_base))


def _add_record(
    part: Part, run: Path, record: RunRecord, asked: PublishSpec, step: int | None
) -> None:
    """Add what the run measured and was made from; last the record."""
    bundle = part.bundle
    if (run / "config.yaml").exists():
        bundle.add_file("config.yaml", run / "config.yaml")
    if step is None:
        for picture in sorted([*run.glob("*.png"), *run.glob("*.svg")]):
            bundle.add_file(picture.name, picture)
        if part.what == "model":
            for path, text in eval_results(record).items():
                bundle.add_text(path, text)
    add_list(bundle, record, repo_id=part.repo_id, layout=asked.layout, step=step)


def add_list(bundle: UploadSet, record: RunRecord, **where: Any) -> None:
    """Add the record with the list of the bundle's files: by it pushes and pulls know their own."""
    bundle.files.pop(MANIFEST, None)
    remaining = {key: value for key, value in record.published().items() if key in FOR_THE_CARD}
    stated = {**remaining, **where, "files": dict(sorted(bundle.manifest().items()))}
    # In the record's own order, which is that of the card's tables.
    text = json.dumps(
        redact_secrets({**record.to_json(), "publish": stated}), indent=2, ensure_ascii=False
    )
    bundle.add_text(MANIFEST, text + "\n")


def eval_results(record: RunRecord) -> dict[str, str]:
    """Return `.eval_results/*.yaml` by path, for benchmarks that the Hub has a leaderboard of.

    A run's own held-out split is none, and stays on the card. The record names benchmarks under
    `evaluation.benchmarks`, each with the fields of `huggingface_hub.EvalResultEntry`
    (`dataset_id`, `task_id`, `value`, ...). Empty when there are none.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    label = record.evaluation.benchmarks if record.evaluation else []
    by_file: dict[str, list[EvalResultEntry]] = {}
    for item in label:
        try:
            entry = EvalResultEntry(**item)
        except (TypeError, ValueError) as error:
            raise PublishError(f"run.json evaluation.benchmarks: {item} ({error})") from error
        name = entry.dataset_id.replace("/", "--")
        by_file.setdefault(f".eval_results/{name}.yaml", []).append(entry)
    return {
        path: yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
        for path, entries in by_file.items()
    }


@contextmanager
def weights_of(
    run: Path, record: RunRecord, asked: PublishSpec, step: int | None
) -> Iterator[Weights]:
    """Give a run's weights, or a checkpoint's; what is not merged yet is merged here.

    A checkpoint's merged weights exist only inside the block: they are made again, the same,
    whenever they are needed. Raises PublishError when there is nothing to publish.
    """
    adapter = run / ADAPTER if step is None else _checkpoint(run, step)
    merged = run / "merged"
    if not (adapter / "adapter_config.json").exists():
        model = merged if step is None else adapter
        if not any(model.glob("*.safetensors")):
            raise PublishError(_nothing(run, model, record))
        yield Weights(model, None)
    elif step is None:
        if asked.merged and not any(merged.glob("*.safetensors")):
            _merge(record, asked, adapter, merged)
        yield Weights(merged if asked.merged else None, adapter)
    else:
        with TemporaryDirectory(dir=run, prefix=".publish-") as scratch:
            model = Path(scratch) / "merged"
            if asked.merged:
                _merge(record, asked, adapter, model)
            yield Weights(model if asked.merged else None, adapter)


def _merge(record: RunRecord, asked: PublishSpec, adapter: Path, out: Path) -> None:
    model = record.model
    here = resolve_model_path(str(model.base))
    gone = not model.base_is_hub_id and not Path(here).is_dir()
    base = asked.base_model if gone and asked.base_model else here
    merge_adapter(base, adapter, out, revision=model.revision if base == here else None)


def _checkpoint(run: Path, step: int) -> Path:
    from hf_rlhf.storage.checkpoints import is_valid

    if outbox(run, step).is_dir():
        return outbox(run, step)
    folder = run / "checkpoints" / f"checkpoint-{step}"
    if not is_valid(folder):
        raise PublishError(
            f"{run} has no complete checkpoint of step {step}. It has: {_steps(run)}."
        )
    return folder


def _steps(run: Path) -> str:
    return ", ".join(str(step) for step in complete_steps(run)) or "none"


def _nothing(run: Path, model: Path, record: RunRecord) -> str:
    return (
        f"{model} holds no *.safetensors, so there is nothing to publish: the run is "
        f"{record.status}. Run it again to its end, or publish a checkpoint of it with "
        f"--step (complete: {_steps(run)})."
    )

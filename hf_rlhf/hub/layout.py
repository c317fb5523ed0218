"""Select and name the files of a run's repository.

Merged weights, tokenizer and card are in the root, the adapter in `adapter/`. Both in the root
would silently load wrong: `from_pretrained` finds adapter_config.json, takes the merged weights for
the base, and applies the adapter a second time.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from hf_rlhf.cards.folders import PUBLISH_FIELDS_ON_CARD, hides_rows, public_record
from hf_rlhf.cards.metadata import HUB
from hf_rlhf.cards.render import SAMPLES, render_card
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import ModelError, PublishError
from hf_rlhf.hub.client import MANIFEST
from hf_rlhf.hub.upload_set import UploadSet, as_text
from hf_rlhf.models.adapter import check_adapter
from hf_rlhf.models.fingerprint import IDENTITY
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.steps.digests import digest
from hf_rlhf.storage.checkpoints import is_valid, step_of, valid_checkpoints
from hf_rlhf.storage.local_paths import LocalPaths
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.secrets import redact_secrets

ADAPTER, MERGED = "adapter", "merged"
_TEXTS = (".json", ".md", ".yaml", ".yml", ".txt", ".svg")
_LARGEST_TEXT = 2**20
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", IDENTITY)


@dataclass(frozen=True)
class Weights:
    """The folders of a run's full weights and adapter weights."""

    model: Path | None
    adapter: Path | None


def upload_set(
    run: Path,
    record: RunRecord,
    spec: PublishSpec,
    weights: Weights,
    step: int | None,
    endpoint: str = HUB,
) -> UploadSet:
    """Return the files for the run's repository; `spec.base_model` is the base's Hub id.

    Links on the card lead to `endpoint`.

    Raises PublishError for an incomplete adapter, ConfigError for a card that breaks the Hub's
    rules.
    """
    public = _public(record, spec, step)
    try:
        notes = tuple(check_adapter(weights.adapter)) if weights.adapter else ()
    except ModelError as error:
        raise PublishError(f"{error} Nothing was pushed.") from error
    public.author.known_notes += notes
    bundle = _files(run, record, public, spec, weights, step, endpoint)
    bundle.notes = notes
    hide_paths(bundle, LocalPaths(record.to_json()))
    # The record lists the bundle's files, so that pushes recognise them.
    published = public.published()
    publish = {key: published[key] for key in PUBLISH_FIELDS_ON_CARD if key in published}
    publish |= {"repo_id": spec.repo_id, "step": step, "files": bundle.manifest()}
    # In the order of the record and of the card's tables.
    content = redact_secrets({**public.to_json(), "publish": publish})
    bundle.add_text(MANIFEST, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return bundle


def expected_files(
    run: Path, record: RunRecord, spec: PublishSpec, step: int | None
) -> list[tuple[str, str]]:
    """Return (repository, path) of all files to push, without reading or merging weights."""
    saved = _saved(run, step)
    merged = run / MERGED if step is None and spec.merged else None
    model = saved.model or merged if spec.merged or saved.adapter is None else None
    spec = spec if spec.base_model else replace(spec, base_model="BASE/MODEL")
    public = _public(record, spec, step)
    bundle = _files(run, record, public, spec, Weights(model, saved.adapter), step, HUB)
    return [(str(spec.repo_id), path) for path in (*bundle.files, MANIFEST)]


def _public(record: RunRecord, spec: PublishSpec, step: int | None) -> RunRecord:
    public = public_record(record, spec)
    if step is not None:
        # A checkpoint that is published later must not change this revision.
        public.publish = {k: v for k, v in public.published().items() if k != "steps"}
    return public


def _files(
    run: Path,
    record: RunRecord,
    public: RunRecord,
    spec: PublishSpec,
    weights: Weights,
    step: int | None,
    endpoint: str,
) -> UploadSet:
    """Return the weights, the card and the run's own files, without the record."""
    revision = None if spec.revision == "main" else spec.revision
    bundle = UploadSet(run)
    if weights.model is not None:
        bundle.add_folder(weights.model, skip=_ADAPTER_FILES)
    if weights.adapter is not None:
        prefix = f"{ADAPTER}/" if weights.model else ""
        _add_adapter(bundle, weights.adapter, prefix, spec, record)
    card = render_card(
        public,
        kind="adapter" if weights.model is None else "model" if step is None else "checkpoint",
        repo_id=spec.repo_id,
        step=step,
        revision=revision,
        endpoint=endpoint,
    )
    bundle.add_text("README.md", card)
    if (run / "config.yaml").exists():
        bundle.add_file("config.yaml", run / "config.yaml")
    # A report quotes the gold data; its plot does not.
    ending = "png" if hides_rows(public) else "*"
    for report in sorted(run.glob(f"reward_validation/*/validation.{ending}")):
        bundle.add_file(report.relative_to(run).as_posix(), report)
    if step is not None:
        return bundle
    for picture in sorted([*run.glob("*.png"), *run.glob("*.svg")]):
        bundle.add_file(picture.name, picture)
    if not hides_rows(public):
        bundle.add_folder(run / SAMPLES, f"{SAMPLES}/")
    if weights.model is not None:
        source = f"{endpoint}/{spec.repo_id}/blob/{revision or 'main'}/{MANIFEST}"
        for path, text in eval_results(public, source).items():
            bundle.add_text(path, text)
    return bundle


def _add_adapter(
    bundle: UploadSet, folder: Path, prefix: str, spec: PublishSpec, record: RunRecord
) -> None:
    """Add an adapter with its base's public name instead of a local path."""
    bundle.add_folder(folder, prefix, skip=("adapter_config.json", "config.json", IDENTITY))
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = spec.base_model
    model = record.model
    config["revision"] = model.revision if model.base == spec.base_model else None
    bundle.add_text(f"{prefix}adapter_config.json", as_text(config))
    # From the record, since a checkpoint has no plots beside it.
    if identity := model.identity:
        with_base = {**identity, "base": spec.base_model, "revision": config["revision"]}
        bundle.add_text(f"{prefix}{IDENTITY}", as_text(with_base))


def hide_paths(bundle: UploadSet, paths: LocalPaths) -> None:
    """Replace texts that contain local paths."""
    for path, file in list(bundle.files.items()):
        if isinstance(file.source, Path) and path.endswith(_TEXTS) and file.size <= _LARGEST_TEXT:
            text = file.source.read_text(encoding="utf-8", errors="surrogateescape")
            of_run = path == "config.yaml" or path.startswith(("reward_validation/", SAMPLES))
            if (hidden := paths.hide_in_text(text, known_only=not of_run)) != text:
                if path.endswith("/validation.json"):  # a report, with a digest of itself
                    rest = {k: v for k, v in json.loads(hidden).items() if k != "digest"}
                    hidden = json.dumps({**rest, "digest": digest(rest)}, indent=2)
                bundle.add_text(path, hidden)


def eval_results(record: RunRecord, source_url: str | None = None) -> dict[str, str]:
    """Return `.eval_results/*.yaml` by path, for benchmarks that have a leaderboard on the Hub.

    Results of the held-out split have no leaderboard and stay on the card. The record lists
    benchmarks under `evaluation.benchmarks`, with the fields of `huggingface_hub.EvalResultEntry`
    (`dataset_id`, `task_id`, `value`, ...) if they have a leaderboard. `source_url` is the record's
    future URL, with intervals and results before training.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    by_file: dict[str, list[EvalResultEntry]] = {}
    for benchmark in record.evaluation.benchmarks if record.evaluation else []:
        fields = {key: value for key, value in benchmark.items() if key != "metric"}
        if not fields:
            continue
        try:
            entry = EvalResultEntry(**{"source_url": source_url, **fields})
        except (TypeError, ValueError) as error:
            raise PublishError(f"run.json evaluation.benchmarks: {fields} ({error})") from error
        name = entry.dataset_id.replace("/", "--")
        by_file.setdefault(f".eval_results/{name}.yaml", []).append(entry)
    return {
        path: yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
        for path, entries in by_file.items()
    }


@contextmanager
def merged_weights(
    run: Path, record: RunRecord, spec: PublishSpec, step: int | None
) -> Iterator[Weights]:
    """Yield the weights of a run or a checkpoint, merged if necessary.

    A checkpoint's merged weights exist only inside the block: merging is deterministic. Raises
    PublishError if there is nothing to publish.
    """
    saved = _saved(run, step)
    model, adapter = saved.model, saved.adapter
    if step is None and adapter is None and (model is None or record.model.adapter):
        missing = f"{ADAPTER}/" if model is not None else f"weights in {MERGED}/ or {ADAPTER}/"
        raise PublishError(
            f"{run} has no {missing}, so there is nothing to publish of what its record describes: "
            f"the run is {record.status}. Resume it, or publish one of its checkpoints with --step "
            f"(complete: {_steps(run)})."
        )
    if adapter is None or (spec.merged and model is not None):
        yield saved
    elif not spec.merged:
        yield Weights(None, adapter)
    elif step is None:
        _merge(record, spec, adapter, run / MERGED)
        yield Weights(run / MERGED, adapter)
    else:
        with TemporaryDirectory(dir=run, prefix=".publish-") as scratch:
            _merge(record, spec, adapter, Path(scratch) / MERGED)
            yield Weights(Path(scratch) / MERGED, adapter)


def _saved(run: Path, step: int | None) -> Weights:
    """Return the weights of a run or its checkpoint of `step`."""
    if step is None:
        model, adapter = run / MERGED, run / ADAPTER
        return Weights(
            model if any(model.glob("*.safetensors")) else None,
            adapter if (adapter / _ADAPTER_FILES[0]).exists() else None,
        )
    folder = run / "checkpoints" / f"checkpoint-{step}"
    if not is_valid(folder):
        raise PublishError(
            f"{run} has no complete checkpoint of step {step}. It has: {_steps(run)}."
        )
    is_adapter = (folder / _ADAPTER_FILES[0]).exists()
    return Weights(None, folder) if is_adapter else Weights(folder, None)


def _merge(record: RunRecord, spec: PublishSpec, adapter: Path, out: Path) -> None:
    model = record.model
    local = resolve_model_path(str(model.base))
    missing = not model.base_is_hub_id and not Path(local).is_dir()
    base = spec.base_model if missing and spec.base_model else local
    merge_adapter(base, adapter, out, revision=model.revision if base == local else None)


def complete_steps(run: Path) -> list[int]:
    """Return the steps with a complete checkpoint, in order."""
    return [step_of(path) for path in valid_checkpoints(run / "checkpoints")]


def _steps(run: Path) -> str:
    return ", ".join(map(str, complete_steps(run))) or "none"

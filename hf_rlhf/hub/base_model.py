"""Ensure that the base model of an adapter and a card is on the Hub; push it first if needed."""

from dataclasses import replace
from pathlib import Path

from hf_rlhf.cards.base_card import base_card
from hf_rlhf.cards.folders import shareable
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import NOT_CONTENT, Hub
from hf_rlhf.hub.commit import push
from hf_rlhf.hub.layout import add_record, hide_paths
from hf_rlhf.hub.upload_set import UploadSet
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.storage.local_paths import LocalPaths
from hf_rlhf.storage.record import RunRecord, load_record, run_of_merged
from hf_rlhf.storage.record_schema import ModelSection


def with_base(
    hub: Hub, spec: PublishSpec, model: ModelSection, *, look_only: bool = False
) -> PublishSpec:
    """Return `spec` with the base's existing Hub id. Raise PublishError if there is none."""
    base = spec.base_model or (model.base if model.base_is_hub_id else None)
    if base is None:
        cure = (
            "--push_base needs the base's name on the Hub: add --base_model YOU/BASE "
            "(in the run file: publish.base_model)."
            if spec.push_base
            else "If it is there, add --base_model ITS/ID (in the run file: publish.base_model); "
            "if not, --base_model YOU/BASE --push_base pushes it first."
        )
        raise PublishError(
            f"The base model is {model.base!r}, which nobody else can load: a card and an "
            f"adapter must name one on the Hub. {cure}"
        )
    revision = model.revision if base == model.base else None
    if not hub.exists(base, revision) and (not spec.push_base or base == model.base):
        at = f" at revision {revision}" if revision else ""
        raise PublishError(
            f"The base model {base!r}{at} is not on {hub.endpoint}, or not for this token to "
            "see. Name a base on the Hub with --base_model, or push a folder with --push_base."
        )
    # An interrupted push created the repository and left it empty.
    if spec.push_base and base != model.base and not look_only and is_empty(hub, base):
        _push_base(hub, base, model, spec)
    return replace(spec, base_model=base)


def is_empty(hub: Hub, repo_id: str) -> bool:
    """Return whether a repository has an empty main branch or does not exist."""
    state = hub.state(repo_id, "main")
    return state is None or set(state.files) <= set(NOT_CONTENT)


def _push_base(hub: Hub, repo_id: str, model: ModelSection, spec: PublishSpec) -> None:
    folder = Path(resolve_model_path(str(model.base)))
    if not any(folder.glob("*.safetensors")):
        raise PublishError(f"The base model cannot be pushed: {folder} holds no *.safetensors.")
    repo_id = hub.writable_repo(repo_id)
    bundle = UploadSet(folder)
    bundle.add_folder(folder)
    if (folder / "README.md").exists():
        bundle.add_file("README.md", folder / "README.md")
    else:
        bundle.add_text("README.md", base_card(folder, model, repo_id, endpoint=hub.endpoint))
    run = run_of_merged(folder)
    record = load_record(run) if run else None
    known = record or RunRecord(model=model)
    hide_paths(bundle, LocalPaths(known.to_json()))
    if record is not None:
        record.publish = None  # the run itself is published elsewhere
        public = shareable(record.model_copy(deep=True), record)
        add_record(bundle, public, repo_id=repo_id, step=None)
    bundle.check(hub.secrets())
    hub.prepare_repo(repo_id, "main", private=spec.private, gated=None)
    state = hub.existing_state(repo_id, "main")
    push(hub, repo_id, "main", bundle, before=state, message="Base model of a run")

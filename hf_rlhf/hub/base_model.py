"""Ensure that the base of an adapter and a card is on the Hub; push it first if needed."""

from dataclasses import replace
from pathlib import Path

from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import NOT_CONTENT, Hub
from hf_rlhf.hub.commit import push
from hf_rlhf.hub.layout import hide_paths
from hf_rlhf.hub.upload_set import UploadSet
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.storage.local_paths import LocalPaths
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import ModelSection


def with_base(
    hub: Hub, spec: PublishSpec, model: ModelSection, *, look_only: bool = False
) -> PublishSpec:
    """Return `spec` with the base's existing Hub id. Raise PublishError if there is none."""
    base = spec.base_model or (model.base if model.base_is_hub_id else None)
    if base is None:
        raise PublishError(
            f"The base model is {model.base!r}, which nobody else can load: a card and an "
            "adapter must name one on the Hub. Add --base_model ITS/ID (in the run file: "
            "publish.base_model); with --push_base it is pushed there first, if nothing is there."
        )
    revision = model.revision if base == model.base else None
    if not hub.exists(base, revision) and (not spec.push_base or base == model.base):
        at = f" at revision {revision}" if revision else ""
        raise PublishError(
            f"The base model {base!r}{at} is not on {hub.endpoint}, or not for this token to "
            "see. Name a base on the Hub with --base_model, or push a folder with --push_base."
        )
    if spec.push_base and base != model.base and not look_only:
        state = hub.state(base, "main")
        # An interrupted push created the repository and left it empty.
        if state is None or set(state.files) <= set(NOT_CONTENT):
            _push_base(hub, base, model, spec)
    return replace(spec, base_model=base)


def _push_base(hub: Hub, repo_id: str, model: ModelSection, spec: PublishSpec) -> None:
    folder = Path(resolve_model_path(str(model.base)))
    if not any(folder.glob("*.safetensors")):
        raise PublishError(f"The base model cannot be pushed: {folder} holds no *.safetensors.")
    repo_id = hub.writable_repo(repo_id)
    bundle = UploadSet(folder)
    bundle.add_folder(folder)
    if (folder / "README.md").exists():
        bundle.add_file("README.md", folder / "README.md")
    hide_paths(bundle, LocalPaths(RunRecord(model=model).to_json()))
    bundle.check(hub.secrets())
    hub.prepare_repo(repo_id, "main", private=spec.private, gated=None)
    state = hub.existing_state(repo_id, "main")
    push(hub, repo_id, "main", bundle, before=state, message="Base model of a run")

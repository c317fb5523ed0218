"""Push a run from its folder; a second call pushes missing files or nothing.

All checks precede the upload. The repository gets a single commit; afterwards its files are
compared with the local files by hash.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hf_rlhf.cards.folders import card_is_edited, place_card
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import HfRlhfError, PublishError
from hf_rlhf.hub.client import MANIFEST, NOT_CONTENT, Hub, connect, listed
from hf_rlhf.hub.commit import DamagedCommit, Overtaken, push, stale_files
from hf_rlhf.hub.finish import describe, finish_command, unfinished
from hf_rlhf.hub.layout import (
    complete_steps,
    expected_files,
    hide_paths,
    merged_weights,
    upload_set,
)
from hf_rlhf.hub.retries import failures, is_transient
from hf_rlhf.hub.upload_set import UploadSet
from hf_rlhf.models.locate import resolve_model_path
from hf_rlhf.storage.local_paths import LocalPaths
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record, write_record
from hf_rlhf.storage.record_schema import ModelSection


@dataclass(frozen=True)
class Published:
    """The state of a run on the Hub after a push."""

    url: str
    repo_id: str
    revision: str
    commit: str
    """The commit with all files; the previous commit if nothing changed."""
    files: tuple[str, ...]
    new_commits: int
    left_out: Mapping[str, str]
    """Path in the run folder -> why the file is not pushed."""
    notes: tuple[str, ...] = ()
    """Notes on the weights, which are also on the card."""

    def where(self) -> dict[str, str]:
        """Return URL and commit for the record."""
        return {"url": self.url, "commit": self.commit}


def publish(
    run_dir: str | Path,
    *,
    repo_id: str | None = None,
    private: bool | None = None,
    gated: str | None = None,
    base_model: str | None = None,
    push_base: bool | None = None,
    merged: bool | None = None,
    revision: str | None = None,
    step: int | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
    hub: Hub | None = None,
) -> Published:
    """Publish a run folder: merged weights, adapter, tokenizer, card, record and pictures.

    Arguments that are None default to the run file's `publish` section in the record. `step`
    publishes an intermediate checkpoint to the branch `step-STEP`, unless `revision` is set.
    `overwrite` replaces files that this run did not push. `hub` is a client to reuse.

    Raises PublishError for a base model that is not on the Hub, a secret in a file, an empty
    adapter, a read-only token, or a repository with other content. The error of a failed push lists
    missing files and the command that finishes it.
    """
    run = Path(run_dir)
    record = load_record(run)
    if record.published().get("files"):
        raise PublishError(
            f"{run} was pulled from a Hub and is not the folder of a run. Use `hf upload`."
        )
    spec = publish_settings(
        record,
        repo_id=repo_id,
        private=private,
        gated=gated,
        base_model=base_model,
        push_base=push_base,
        merged=merged,
        revision=revision,
    )
    if step is not None:
        # The recorded branch belongs to the finished run.
        spec = replace(spec, revision=revision)
    elif not overwrite and card_is_edited(run):
        raise PublishError(
            f"{run / 'README.md'} was changed since it was written, and the card that is pushed is "
            "rendered from the record, without the change. Nothing was pushed. Move the file to "
            "keep it; a card takes the author's own text from the run file's section `card`. Or "
            "add --overwrite: then it is kept as README.edited.md."
        )
    published, card, spec = push_run(
        hub or connect(endpoint, token),
        run,
        record,
        spec,
        step,
        overwrite=overwrite,
        endpoint=endpoint,
    )
    try:
        _update_run(run, spec, published, card, step)
    except (OSError, HfRlhfError) as error:
        note = f"everything is published; only {run} could not be updated: {error}"
        published = replace(published, notes=(*published.notes, note))
    return published


def publish_steps(
    run_dir: str | Path, *, endpoint: str | None = None, token: str | None = None, **options: Any
) -> list[Published]:
    """Publish every complete checkpoint of a run that is unpublished by its record.

    `options` as in `publish`. A failed checkpoint does not stop the others; PublishError then has
    all reasons.
    """
    if options.get("revision") is not None:
        raise PublishError(
            "All steps cannot go to one revision, where each would replace the one before. Omit "
            "--revision: each has a branch step-STEP."
        )
    run, hub = Path(run_dir), connect(endpoint, token)
    done = load_record(run).published().get("steps") or {}
    published, failed = [], []
    for step in complete_steps(run):
        if str(step) in done:
            continue
        try:
            published.append(publish(run, step=step, endpoint=endpoint, hub=hub, **options))
        except HfRlhfError as error:
            failed.append(f"step {step}: {error}")
            if is_transient(error):  # a single wait for a Hub that is down
                hub = replace(hub, retries=replace(hub.retries, seconds=0.0))
    if failed:
        raise PublishError("\n".join(failed))
    return published


def push_run(
    hub: Hub,
    run: Path,
    record: RunRecord,
    spec: PublishSpec,
    step: int | None,
    *,
    overwrite: bool = False,
    endpoint: str | None = None,
) -> tuple[Published, str, PublishSpec]:
    """Push a run or its checkpoint of `step` by `record`, without changing the run's record.

    Returns the state on the Hub, its card, and `spec` with full names. Raises like `publish`.
    """
    finish = finish_command(run, spec, step, endpoint, overwrite=overwrite)
    if step is not None and spec.revision is None:
        spec = replace(spec, revision=f"step-{step}")
    try:
        spec = replace(spec, repo_id=hub.writable_repo(str(spec.repo_id)))
        spec = _with_base(hub, spec, record.model)
    except failures(Overtaken) as error:
        missing = [f"{repo}/{path}" for repo, path in expected_files(run, record, spec, step)]
        raise PublishError(unfinished(hub, error, missing, finish)) from error
    repo_id, revision, run_id = str(spec.repo_id), spec.revision or "main", str(record.run_id)
    url = f"{hub.endpoint}/{repo_id}"
    with merged_weights(run, record, spec, step) as weights:
        bundle = upload_set(run, record, spec, weights, step, hub.endpoint)
        bundle.check(hub.secrets())
        try:
            new = hub.prepare_repo(repo_id, revision, private=spec.private, gated=spec.gated)
            before = hub.existing_state(repo_id, revision)
            pushed = _pushed_by(hub.record(repo_id, before), run_id)
            stale = stale_files(url, before, bundle, pushed, MANIFEST, overwrite=overwrite, new=new)
            what = f"hf-rlhf: run {run_id[:8]}" + ("" if step is None else f", step {step}")
            after = push(hub, repo_id, revision, bundle, before=before, delete=stale, message=what)
        except failures(Overtaken) as error:
            state = hub.look(lambda: hub.state_once(repo_id, revision))
            lacking = state.lacks(bundle) if state else list(bundle.files)
            if isinstance(error, DamagedCommit) and not overwrite:
                finish += " --overwrite"  # this push landed, but with other content than was sent
            missing = [f"{repo_id}/{path}" for path in lacking]
            raise PublishError(unfinished(hub, error, missing, finish)) from error
    published = Published(
        url=url if revision == "main" else f"{url}/tree/{revision}",
        repo_id=repo_id,
        revision=revision,
        commit=after.commit,
        files=tuple(bundle.files),
        new_commits=int(after.commit != before.commit),
        left_out=bundle.left_out,
        notes=bundle.notes,
    )
    return published, bundle.files["README.md"].read().decode("utf-8"), spec


def _pushed_by(record: Mapping[str, Any], run_id: str | None) -> Mapping[str, Mapping[str, str]]:
    """Return the files that a published record lists; none for another run's record."""
    return listed(record) if run_id and record.get("run_id") == run_id else {}


def _with_base(
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


def check_target(spec: PublishSpec, model: ModelSection, run_dir: str | Path | None = None) -> str:
    """Return a line on where a run will be published. Raise PublishError if it cannot be.

    Nothing is written. `model` is the record's section (`base`, `base_is_hub_id`, `revision`);
    `run_dir` is the current or future run folder, whose own earlier pushes may be replaced.
    """
    if spec.repo_id is None:
        raise PublishError("publish.repo_id is not set.")
    hub = connect()
    try:
        repo_id = hub.writable_repo(spec.repo_id)
        _with_base(hub, spec, model, look_only=True)
        state = hub.state(repo_id, spec.revision or "main")
        if state is not None:
            started = run_dir is not None and (Path(run_dir) / RECORD_NAME).exists()
            run_id = load_record(Path(run_dir or ".")).run_id if started else None
            pushed = _pushed_by(hub.record(repo_id, state), run_id)
            url = f"{hub.endpoint}/{repo_id}"
            stale_files(url, state, UploadSet(Path()), pushed, MANIFEST, overwrite=False)
    except failures() as error:
        raise PublishError(describe(error)) from error
    return f"{hub.endpoint}/{repo_id}: the token may write there"


def publish_settings(record: RunRecord, **options: Any) -> PublishSpec:
    """Return the publish settings: options that are not None, else recorded, else default."""
    keys = {field.name for field in fields(PublishSpec)}
    recorded = {key: value for key, value in record.published().items() if key in keys}
    chosen = {key: value for key, value in options.items() if value is not None}
    spec = PublishSpec(**{**recorded, **chosen})
    if spec.repo_id is None:
        raise PublishError("No repository is named. Add --repo_id YOU/NAME.")
    return spec


def _update_run(
    run: Path, spec: PublishSpec, published: Published, card: str, step: int | None
) -> None:
    """Write the publication into the run's own record and card, if it changed."""
    # Read again: during the upload a running training may have written it.
    record = load_record(run)
    before = record.published()
    if step is None:
        after = {**before, **asdict(spec), **published.where()}
        place_card(run, card)
    else:
        after = {**before, "steps": {**(before.get("steps") or {}), str(step): published.where()}}
    if after != before:
        record.publish = after
        write_record(record, run)

"""Push a run from its folder alone; a second call pushes what is missing, or nothing.

Everything that can be refused is refused before anything is uploaded. Each repository gets one
commit; afterwards its files are compared with the local ones by hash.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import HfRlhfError, PublishError
from hf_rlhf.hub.base_model import secrets_in_use, with_base
from hf_rlhf.hub.client import MANIFEST, NOT_CONTENT, Hub, RemoteState, connect, listed
from hf_rlhf.hub.commit import Overtaken, push
from hf_rlhf.hub.layout import Part, names, parts, weights_of
from hf_rlhf.hub.outbox import complete_steps, note_step, published_steps
from hf_rlhf.hub.retries import RetryPolicy, describe_error, failures, is_transient, status_of
from hf_rlhf.hub.upload_set import UploadSet
from hf_rlhf.storage.files import atomic_write_bytes
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record, write_record
from hf_rlhf.storage.record_schema import ModelSection


@dataclass(frozen=True)
class Published:
    """What now stands on the Hub."""

    url: str
    repo_id: str
    revision: str
    commits: Mapping[str, str]
    """Repository -> commit that holds everything; the same as before if nothing had changed."""
    files: tuple[str, ...]
    """Of all repositories, as `repo_id/path`."""
    new_commits: int
    left_out: tuple[str, ...]
    """Files of the run folder that are of no kind that is pushed."""
    notes: tuple[str, ...] = ()
    """What to know of the weights; the card says it too."""

    def where(self) -> dict[str, Any]:
        """Return what the record remembers."""
        return {"url": self.url, "commits": dict(self.commits)}


def publish(
    run_dir: str | Path,
    *,
    repo_id: str | None = None,
    private: bool | None = None,
    gated: str | None = None,
    layout: str | None = None,
    base_model: str | None = None,
    push_base: bool | None = None,
    merged: bool | None = None,
    revision: str | None = None,
    step: int | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
    patience: RetryPolicy | None = None,
) -> Published:
    """Publish a run folder: merged weights, adapter, tokenizer, card, record and pictures.

    Arguments that are None are taken from the record, which has them from the run file's
    `publish` section. `step` publishes an intermediate checkpoint, to the branch `step-STEP`
    unless `revision` says otherwise. `overwrite` replaces files that this run has not pushed.

    Raises PublishError: for a base model that is not on the Hub, a secret in a file, an adapter
    that is empty, a token that may not write, a repository with other content; and, with the list
    of what is not on the Hub and the command that finishes it, when pushing fails.
    """
    run = Path(run_dir)
    record = load_record(run)
    provided = {
        **{"repo_id": repo_id, "private": private, "gated": gated, "layout": layout},
        **{"base_model": base_model, "push_base": push_base, "merged": merged},
        "revision": revision,
    }
    spec = publish_settings(record, provided)
    if step is not None:
        # The recorded branch is that of the finished run.
        spec = replace(spec, revision=revision)
    hub = connect(endpoint, token, patience)
    published, card, spec = push_run(
        hub, run, record, spec, step, overwrite=overwrite, endpoint=endpoint
    )
    _remember(run, spec, published, card, step)
    return published


def publish_steps(
    run_dir: str | Path, *, merged: bool | None = None, **given: Any
) -> list[Published]:
    """Publish every complete checkpoint of a run that its record does not say is published.

    `given` is as for `publish`. The others are still tried when one fails; then PublishError
    says what was wrong with each.
    """
    if given.get("revision") is not None:
        raise PublishError(
            "All steps cannot go to one revision, where each would replace the one before. Leave "
            "--revision out: each has a branch step-STEP."
        )
    run = Path(run_dir)
    done = published_steps(run, load_record(run))
    published, failed = [], []
    for step in complete_steps(run):
        if str(step) not in done:
            try:
                published.append(publish(run, step=step, merged=merged, **given))
            except HfRlhfError as error:
                failed.append(f"step {step}: {error}")
                if status_of(error) == 401:
                    failed.append("The token is refused, so the other steps were not tried.")
                    break
                if is_transient(error):
                    given["patience"] = RetryPolicy(
                        seconds=0.0
                    )  # a Hub that is down: waited for once
    if failed:
        raise PublishError("\n".join(failed))
    return published


def push_run(
    hub: Hub,
    run: Path,
    record: RunRecord,
    asked: PublishSpec,
    step: int | None,
    *,
    overwrite: bool = False,
    endpoint: str | None = None,
) -> tuple[Published, bytes, PublishSpec]:
    """Push a run, or its checkpoint of `step`, as `record` tells of it; leave its record alone.

    Returns what stands on the Hub, the card there, and `asked` with the full names. Raises as
    `publish` does.
    """
    hub.patience.restart()
    finish = finish_command(run, asked, step, endpoint, overwrite=overwrite)
    if step is not None and asked.revision is None:
        asked = replace(asked, revision=f"step-{step}")
    try:
        asked = replace(asked, repo_id=hub.writable_repo(str(asked.repo_id)))
        asked = with_base(hub, asked, record.model)
    except failures(Overtaken) as error:
        missing = [f"{repo}/{path}" for repo, path in names(run, record, asked, step)]
        raise PublishError(_unfinished(hub, error, missing, finish)) from error
    with weights_of(run, record, asked, step) as weights:
        prepared = parts(run, record, asked, weights, step, endpoint=hub.endpoint)
        for part in prepared:
            part.bundle.check(secrets_in_use(hub))
        published = _push_all(hub, prepared, asked, str(record.run_id), finish, overwrite)
        card = prepared[0].bundle.files["README.md"].read()
    return published, card, asked


def check_target(spec: PublishSpec, model: ModelSection, run_dir: str | Path | None = None) -> str:
    """Return a line saying where a run will be published; PublishError if it could not be.

    Nothing is written. `model` is the record's section (`base`, `base_is_hub_id`, `revision`);
    `run_dir` is where the run is or will be: what it has published itself is not in its way.
    """
    if spec.repo_id is None:
        raise PublishError("publish.repo_id is not set.")
    hub = connect()
    try:
        repo_id = hub.writable_repo(spec.repo_id)
        with_base(hub, spec, model, look_only=True)
        state = hub.state(repo_id, spec.revision or "main")
        if state is not None:
            begun = run_dir is not None and (Path(run_dir) / RECORD_NAME).exists()
            run_id = load_record(Path(run_dir or ".")).run_id if begun else None
            _stale(hub, repo_id, state, UploadSet(Path()), run_id, overwrite=False)
    except failures() as error:
        raise PublishError(_told(hub, error)) from error
    return f"{hub.endpoint}/{repo_id}: the token may write there"


def publish_settings(record: RunRecord, given: Mapping[str, Any]) -> PublishSpec:
    """Return what is to be pushed where: as given, else as recorded, else as usual."""
    known = {item.name for item in fields(PublishSpec)}
    recorded = {key: value for key, value in record.published().items() if key in known}
    chosen = {key: value for key, value in given.items() if value is not None}
    spec = PublishSpec(**{**recorded, **chosen})
    if spec.repo_id is None:
        raise PublishError("No repository is named. Add --repo_id YOU/NAME.")
    if spec.layout not in ("single", "separate"):
        raise PublishError(f"layout is {spec.layout!r}; expected 'single' or 'separate'.")
    return spec


def _push_all(
    hub: Hub,
    prepared: list[Part],
    asked: PublishSpec,
    run_id: str,
    finish: str,
    overwrite: bool,
) -> Published:
    revision = asked.revision or "main"
    commits: dict[str, str] = {}
    created = 0
    try:
        # All are looked at before anything is sent to one.
        ready = [_ready(hub, part, asked, revision, run_id, overwrite) for part in prepared]
    except failures() as error:
        missing = _missing(hub, prepared, revision)
        raise PublishError(_unfinished(hub, error, missing, finish)) from error
    for index, (part, (state, stale)) in enumerate(zip(prepared, ready, strict=True)):
        try:
            after = push(
                hub, part.repo_id, revision, part.bundle,
                found=state, delete=stale, message=f"hf-rlhf: {part.what} of run {run_id[:8]}",
            )  # fmt: skip
        except failures(Overtaken) as error:
            missing = _missing(hub, prepared[index:], revision)
            raise PublishError(_unfinished(hub, error, missing, finish)) from error
        commits[part.repo_id] = after.commit
        created += after.commit != state.commit
    first = prepared[0]
    branch = "" if revision == "main" else f"/tree/{revision}"
    return Published(
        url=f"{hub.endpoint}/{first.repo_id}{branch}",
        repo_id=first.repo_id,
        revision=revision,
        commits=commits,
        files=tuple(f"{part.repo_id}/{path}" for part in prepared for path in part.bundle.files),
        new_commits=created,
        left_out=tuple(dict.fromkeys(item for part in prepared for item in part.bundle.left_out)),
        notes=tuple(dict.fromkeys(note for part in prepared for note in part.notes)),
    )


def _ready(
    hub: Hub, part: Part, asked: PublishSpec, revision: str, run_id: str, overwrite: bool
) -> tuple[RemoteState, list[str]]:
    """Make the repository and branch; return what they hold, and what of it is to be deleted."""
    new = hub.prepare_repo(part.repo_id, revision, private=asked.private, gated=asked.gated)
    state = hub.state(part.repo_id, revision)
    if state is None:
        raise PublishError(f"{part.repo_id} has no revision {revision!r}.")
    stale = _stale(hub, part.repo_id, state, part.bundle, run_id, overwrite=overwrite, new=new)
    return state, stale


def _missing(hub: Hub, rest: list[Part], revision: str) -> list[str]:
    """Return what is not on the Hub, as far as the Hub can still be asked."""
    missing = []
    for part in rest:
        try:
            state = hub.patience.once(lambda part=part: hub.look(part.repo_id, revision))  # type: ignore[misc]
        except failures():
            state = None
        lacking = state.lacks(part.bundle) if state else list(part.bundle.files)
        missing += [f"{part.repo_id}/{path}" for path in lacking]
    return missing


def _unfinished(hub: Hub, error: Exception, missing: list[str], finish: str) -> str:
    listing = "".join(f"\n  {path}" for path in missing)
    return (
        f"Not everything is on {hub.endpoint}: {_told(hub, error)}\n"
        f"{len(missing)} files are not there:{listing}\nTo finish:\n  {finish}"
    )


def _told(hub: Hub, error: Exception) -> str:
    """Return what went wrong, and what a status of the Hub's means here."""
    cure = {
        401: " The Hub does not accept the token: set HF_TOKEN to a valid one.",
        403: " The token may not do this: it needs the right to write to the repository.",
    }.get(status_of(error) or 0, "")
    return f"{describe_error(error)}.{cure}"


def _stale(
    hub: Hub,
    repo_id: str,
    found: RemoteState,
    bundle: UploadSet,
    run_id: str | None,
    *,
    overwrite: bool,
    new: bool = False,
) -> list[str]:
    """Return the files to delete: an earlier push of this run made them, this one does not.

    PublishError if files stand there that this run did not push, or that were changed since. On
    a `new` branch of this run's repository, they stand on main too, and can go.
    """
    record = hub.record(repo_id, found)
    # A run.json of another run, or of something else: then all content is foreign.
    manifest = listed(record) if run_id and record.get("run_id") == run_id else {}
    overwrite |= new and bool(manifest)
    owned = set(manifest) | ({MANIFEST} if manifest else set())
    others = set(found.files) - owned - set(NOT_CONTENT)
    # Beside a run of ours, somebody's own files may stay, unless they are in the way.
    foreign = others & set(bundle.files) if manifest else others
    foreign |= {
        path
        for path, stated in manifest.items()
        if path in found.files and not found.files[path].holds(stated["sha256"], stated["git"])
    }
    lacking = set(found.lacks(bundle))
    foreign = {path for path in foreign if path not in bundle.files or path in lacking}
    if foreign and not overwrite:
        some = ", ".join(sorted(foreign)[:8])
        raise PublishError(
            f"{hub.endpoint}/{repo_id} has content that this run did not push, or that was changed "
            f"since: {some} ({len(foreign)} files). Nothing was pushed. Choose another "
            "--repo_id, or add --overwrite to replace it (its history keeps it)."
        )
    gone = owned | (others if overwrite else set())
    return sorted((gone & set(found.files)) - set(bundle.files))


def finish_command(
    run: Path,
    asked: PublishSpec,
    step: int | str | None,
    endpoint: str | None = None,
    *,
    overwrite: bool = False,
) -> str:
    """Return the command that repeats a push; the token stays out of it."""
    words = ["hf-rlhf", "publish", str(run), "--repo_id", str(asked.repo_id)]
    options = {
        **{"step": step, "revision": asked.revision, "base_model": asked.base_model},
        **{"gated": asked.gated, "endpoint": endpoint},
        "layout": asked.layout if asked.layout != "single" else None,
    }
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    if asked.private is not None:
        words.append("--private" if asked.private else "--no-private")
    if asked.push_base:
        words.append("--push_base")
    if not asked.merged:
        words.append("--adapter_only")
    if overwrite:
        words.append("--overwrite")
    return shlex.join(words)


def _remember(
    run: Path, asked: PublishSpec, published: Published, card: bytes, step: int | None
) -> None:
    """Write to the run's own record and card where it was published; nothing if nothing changed."""
    # Read again: the upload took a while, and a training under way writes it too.
    record = load_record(run)
    before = record.published()
    if step is None:
        settings = {field.name: getattr(asked, field.name) for field in fields(PublishSpec)}
        first = {"commit": published.commits[published.repo_id]}
        after = {**before, **settings, **published.where(), **first}
        beside = run / "README.md"
        if not beside.exists() or beside.read_bytes() != card:
            atomic_write_bytes(beside, card)
    else:
        note_step(run, step, published.where())
        after = {**before, "steps": published_steps(run, record)}
    if after != before:
        record.publish = after
        write_record(record, run)

"""Push a run from its folder alone; a second call pushes the missing files, or nothing.

Everything that can be refused is refused before anything is uploaded. Each repository gets one
commit; afterwards its files are compared with the local ones by hash.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hf_rlhf.cards.folders import card_is_edited, place_card, public_record
from hf_rlhf.cards.sharing import shared_by
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import HfRlhfError, PublishError
from hf_rlhf.hub.base_model import is_empty, with_base
from hf_rlhf.hub.client import Hub, RemoteState, connect
from hf_rlhf.hub.commit import DamagedCommit, Overtaken, push
from hf_rlhf.hub.finish import describe, finish_command, unfinished
from hf_rlhf.hub.layout import (
    RepoContent,
    Weights,
    check_unchanged,
    expected_files,
    is_pulled_adapter,
    merged_weights,
    repo_contents,
)
from hf_rlhf.hub.outbox import OUTBOX, complete_steps, note_step, published_steps
from hf_rlhf.hub.ownership import stale_files
from hf_rlhf.hub.retries import RetryPolicy, failures, is_transient, status_of
from hf_rlhf.hub.signing import sign_files
from hf_rlhf.hub.upload_set import SIGNATURE, UploadSet
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record, write_record
from hf_rlhf.storage.record_schema import ModelSection


@dataclass(frozen=True)
class Published:
    """The state of a run on the Hub after a push."""

    url: str
    repo_id: str
    revision: str
    commits: Mapping[str, str]
    """Repository -> commit that holds everything; the same as before if nothing had changed."""
    files: tuple[str, ...]
    """Of all repositories, as `repo_id/path`."""
    new_commits: int
    left_out: Mapping[str, str]
    """Path in the run folder -> why the file is not pushed."""
    notes: tuple[str, ...] = ()
    """Notes on the weights, which are also on the card."""

    def where(self) -> dict[str, Any]:
        """Return the URL and commits, as the record keeps them."""
        return {"url": self.url, "commits": dict(self.commits)}


class _How(NamedTuple):
    finish: str
    """The command that repeats the push."""
    overwrite: bool


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
    sign: bool | str | None = None,
    revision: str | None = None,
    step: int | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
    retries: RetryPolicy | None = None,
) -> Published:
    """Publish a run folder: merged weights, adapter, tokenizer, card, record and pictures.

    Arguments that are None are taken from the record, which has them from the run file's
    `publish` section. `step` publishes an intermediate checkpoint, to the branch `step-STEP`
    unless `revision` says otherwise; where `repo_id` names a repository with an empty main, to main
    too. `overwrite` replaces files that this run has not pushed.

    Raises PublishError: for a base model that is not on the Hub, a secret in a file, an adapter
    that is empty, a token that may not write, a repository with other content; and, with the list
    of what is not on the Hub and the command that finishes it, when pushing fails.
    """
    run = Path(run_dir)
    record = load_record(run)
    spec = publish_settings(
        record,
        repo_id=repo_id,
        private=private,
        gated=gated,
        layout=layout,
        base_model=base_model,
        push_base=push_base,
        merged=merged,
        sign=sign,
        revision=revision,
    )
    if step is not None:
        # The recorded branch is that of the finished run.
        spec = replace(spec, revision=revision)
    elif not overwrite and card_is_edited(run, record):
        raise PublishError(
            f"{run / 'README.md'} was changed since it was written, and the card that is pushed is "
            "rendered from the record, without the change. Nothing was pushed. Move the file to "
            "keep it; a card takes the author's own text from the run file's section `card`. Or "
            "add --overwrite: then it is kept as README.edited.md."
        )
    if merged is None and is_pulled_adapter(run):
        spec = replace(spec, merged=False)
    hub = connect(endpoint, token, retries)
    published, card, spec = push_run(
        hub,
        run,
        record,
        spec,
        step,
        overwrite=overwrite,
        endpoint=endpoint,
        fills_main=repo_id is not None and revision is None and step is not None,
    )
    try:
        _update_run(run, spec, published, card, step)
    except (OSError, HfRlhfError) as error:
        note = f"everything is published; only {run} could not be updated: {error}"
        published = replace(published, notes=(*published.notes, note))
    return published


def publish_steps(run_dir: str | Path, **options: Any) -> list[Published]:
    """Publish every complete checkpoint of a run that its record does not list as published.

    `options` are those of `publish`. The others are still tried when one fails; then PublishError
    has the reason for each.
    """
    if options.get("revision") is not None:
        raise PublishError(
            "All steps cannot go to one revision, where each would replace the one before. Omit "
            "--revision: each has a branch step-STEP."
        )
    run = Path(run_dir)
    done = published_steps(run, load_record(run))
    published, failed = [], []
    for step in complete_steps(run):
        if str(step) not in done:
            try:
                branch = {"revision": f"step-{step}"}  # not to main, where the run goes
                published.append(publish(run, step=step, **{**options, **branch}))
            except HfRlhfError as error:
                failed.append(f"step {step}: {error}")
                if status_of(error) == 401:
                    failed.append("The token was rejected, so the other steps were not tried.")
                    break
                if is_transient(error):
                    options["retries"] = RetryPolicy(seconds=0.0)  # one wait for a Hub that is down
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
    fills_main: bool = False,
) -> tuple[Published, bytes, PublishSpec]:
    """Push a run, or its checkpoint of `step`, as `record` describes it; do not change its record.

    A checkpoint goes to a branch, and if it `fills_main` to a main that is empty too: there readers
    look first.

    Returns the state on the Hub, the card there, and `spec` with the full names. Raises as
    `publish` does.
    """
    hub.retries.restart()
    finish = finish_command(run, spec, step, endpoint, overwrite=overwrite)
    how = _How(finish, overwrite)
    if step is not None and spec.revision is None:
        spec = replace(spec, revision=f"step-{step}")
    try:
        spec = replace(spec, repo_id=hub.writable_repo(str(spec.repo_id)))
        spec = with_base(hub, spec, record.model)
        empty = fills_main and is_empty(hub, str(spec.repo_id))
        revisions = [spec.revision, "main"] if empty else [spec.revision]
    except failures(Overtaken) as error:
        missing = [f"{repo}/{path}" for repo, path in expected_files(run, record, spec, step)]
        raise PublishError(unfinished(hub, error, missing, finish)) from error
    with merged_weights(run, record, spec, step) as weights:
        pushed = [
            _push_weights(hub, run, record, replace(spec, revision=revision), weights, step, how)
            for revision in revisions
        ]
    published, card = pushed[0]
    if len(pushed) > 1:
        commits = sum(each.new_commits for each, _ in pushed)
        note = "it is on main too, which was empty"
        published = replace(published, new_commits=commits, notes=(*published.notes, note))
    return published, card, spec


def _push_weights(
    hub: Hub,
    run: Path,
    record: RunRecord,
    spec: PublishSpec,
    weights: Weights,
    step: int | None,
    how: _How,
) -> tuple[Published, bytes]:
    # A pulled folder may hold a checkpoint, as its record says.
    of_step = record.published().get("step") if step is None else step
    contents = repo_contents(run, record, spec, weights, of_step, endpoint=hub.endpoint)
    check_unchanged(record, contents, run)
    for content in contents:
        content.bundle.check(hub.secrets())
        if spec.sign:
            sign_files(content.bundle, spec.sign, content.repo_id, run / OUTBOX)
    steps = published_steps(run, record).values()
    again = any(f"/{spec.repo_id}/tree/" in str(each.get("url")) for each in steps)
    again |= step is not None and spec.revision == "main"  # after its branch
    shares = "" if step is not None and again else shared_by(public_record(record, spec))
    published = _push_all(hub, contents, spec, str(record.run_id), how, shares)
    return published, contents[0].bundle.files["README.md"].read()


def check_target(spec: PublishSpec, model: ModelSection, run_dir: str | Path | None = None) -> str:
    """Return a line saying where a run will be published; PublishError if it could not be.

    Nothing is written. `model` is the record's section (`base`, `base_is_hub_id`, `revision`);
    `run_dir` is where the run is or will be: its own earlier pushes are not in its way.
    """
    if spec.repo_id is None:
        raise PublishError("publish.repo_id is not set.")
    hub = connect()
    try:
        repo_id = hub.writable_repo(spec.repo_id)
        with_base(hub, spec, model, look_only=True)
        state = hub.state(repo_id, spec.revision or "main")
        if state is not None:
            started = run_dir is not None and (Path(run_dir) / RECORD_NAME).exists()
            run_id = load_record(Path(run_dir or ".")).run_id if started else None
            stale_files(hub, repo_id, state, UploadSet(Path()), run_id, overwrite=False)
    except failures() as error:
        raise PublishError(describe(error)) from error
    return f"{hub.endpoint}/{repo_id}: the token may write there"


def publish_settings(record: RunRecord, **options: Any) -> PublishSpec:
    """Return what is to be pushed where: options that are not None, else recorded, else default."""
    keys = {field.name for field in fields(PublishSpec)}
    recorded = {key: value for key, value in record.published().items() if key in keys}
    chosen = {key: value for key, value in options.items() if value is not None}
    spec = PublishSpec(**{**recorded, **chosen})
    if spec.repo_id is None:
        raise PublishError("No repository is named. Add --repo_id YOU/NAME.")
    if spec.layout not in ("single", "separate"):
        raise PublishError(f"layout is {spec.layout!r}; expected 'single' or 'separate'.")
    return spec


def _push_all(
    hub: Hub,
    contents: list[RepoContent],
    spec: PublishSpec,
    run_id: str,
    how: _How,
    shares: str,
) -> Published:
    revision = spec.revision or "main"
    commits: dict[str, str] = {}
    new_commits = 0
    pending = contents
    try:
        for content in contents if shares and spec.private is False else ():
            if hub.exists(content.repo_id) and not hub.is_public(content.repo_id):
                _announce(hub, content.repo_id, shares)  # it becomes public before the push
        # All repositories are examined before anything is sent to one.
        examined = [_examine(hub, repo, spec, revision, run_id, how.overwrite) for repo in contents]
        for index, (content, (before, stale)) in enumerate(zip(contents, examined, strict=True)):
            pending = contents[index:]
            message = f"hf-rlhf: {content.kind} of run {run_id[:8]}"
            if SIGNATURE in stale:
                hub.retries.say(
                    f"{content.repo_id}: its signature is removed, because this push is not signed "
                    "(--sign)"
                )
            sends = stale or before.lacks(content.bundle)
            if shares and sends and hub.is_public(content.repo_id):
                _announce(hub, content.repo_id, shares)
                shares = ""
            after = push(
                hub, content.repo_id, revision, content.bundle,
                before=before, delete=stale, message=message,
            )  # fmt: skip
            commits[content.repo_id] = after.commit
            new_commits += after.commit != before.commit
    except failures(Overtaken) as error:
        missing = _missing(hub, pending, revision)
        finish = how.finish
        if isinstance(error, DamagedCommit) and not how.overwrite:
            finish += " --overwrite"  # what is there now is of this push, but not as it was sent
        raise PublishError(unfinished(hub, error, missing, finish)) from error
    repo_id = contents[0].repo_id
    branch = "" if revision == "main" else f"/tree/{revision}"
    return Published(
        url=f"{hub.endpoint}/{repo_id}{branch}",
        repo_id=repo_id,
        revision=revision,
        commits=commits,
        files=tuple(f"{repo.repo_id}/{path}" for repo in contents for path in repo.bundle.files),
        new_commits=new_commits,
        left_out={path: why for repo in contents for path, why in repo.bundle.left_out.items()},
        notes=contents[0].notes,
    )


def _announce(hub: Hub, repo_id: str, shares: str) -> None:
    """Print, once, what goes along to a repository that everybody may read."""
    if repo_id not in hub.announced:
        hub.announced.add(repo_id)
        hub.retries.say(f"{repo_id} is public. Your content on its card and in run.json: {shares}.")


def _examine(
    hub: Hub,
    content: RepoContent,
    spec: PublishSpec,
    revision: str,
    run_id: str,
    overwrite: bool,
) -> tuple[RemoteState, list[str]]:
    """Make the repository and branch; return their state, and the files to delete."""
    repo_id, bundle = content.repo_id, content.bundle
    new = hub.prepare_repo(repo_id, revision, private=spec.private, gated=spec.gated)
    state = hub.state(repo_id, revision)
    if state is None:
        raise PublishError(f"{repo_id} has no revision {revision!r}.")
    stale = stale_files(hub, repo_id, state, bundle, run_id, overwrite=overwrite, new=new)
    if stale == [SIGNATURE] and (bundle.root / SIGNATURE).exists() and not state.lacks(bundle):
        stale = []  # a pulled folder has the signature, and all files are the signed ones
    return state, stale


def _missing(hub: Hub, contents: list[RepoContent], revision: str) -> list[str]:
    """Return the files that are not on the Hub, as far as it still answers."""
    missing = []
    for content in contents:
        try:
            state = hub.retries.once(partial(hub.state_once, content.repo_id, revision))
        except failures():
            state = None
        lacking = state.lacks(content.bundle) if state else list(content.bundle.files)
        missing += [f"{content.repo_id}/{path}" for path in lacking]
    return missing


def _update_run(
    run: Path, spec: PublishSpec, published: Published, card: bytes, step: int | None
) -> None:
    """Write to the run's own record and card where it was published, if that changed."""
    # Read again: the upload took a while, and a training under way writes it too.
    record = load_record(run)
    before = record.published()
    if step is None:
        commit = published.commits[published.repo_id]
        after = {**before, **asdict(spec), **published.where(), "commit": commit}
        place_card(run, card.decode("utf-8"), record)
    else:
        note_step(run, step, published.where())
        after = {**before, "steps": published_steps(run, record)}
    if after != before:
        record.publish = after
        write_record(record, run)

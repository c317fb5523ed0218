"""Make a single complete commit, even if the Hub's response is lost, of what may be replaced.

A commit whose response is lost still exists. So each try first reads the state, and `parent_commit`
keeps a late first commit from landing twice.

A repository lists its pushed files, which may be replaced and deleted: a run in `run.json`, a
dataset or an index in a separate JSON file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import NOT_CONTENT, Hub, RemoteState
from hf_rlhf.hub.retries import (
    UnexpectedAnswer,
    describe_error,
    failures,
    status_of,
)
from hf_rlhf.hub.upload_set import UploadSet, as_text


class DamagedCommit(UnexpectedAnswer):
    """A commit landed with other content than was sent."""


class Overtaken(PublishError):
    """Another commit landed first."""


def push(
    hub: Hub,
    repo_id: str,
    revision: str,
    bundle: UploadSet,
    *,
    before: RemoteState,
    delete: Iterable[str] = (),
    message: str,
) -> RemoteState:
    """Push the bundle's files and delete the files in `delete`, in at most one commit.

    `before` is the examined state. Raises PublishError if another commit landed since. Transient
    failures are retried by the hub's policy. Returns the verified state after the commit.
    """
    lacking, deleted = before.lacks(bundle), sorted(set(delete) & set(before.files))
    if not lacking and not deleted:
        return before
    operations = _operations(bundle, lacking, deleted)

    def landed() -> RemoteState | None:
        now = hub.state_once(repo_id, revision)
        done = now and not now.lacks(bundle) and not set(deleted) & set(now.files)
        return now if done else None

    def commit() -> RemoteState:
        if (now := landed()) is not None:
            return now
        made = hub.api.create_commit(
            repo_id,
            operations,
            commit_message=message,
            revision=revision,
            parent_commit=before.commit,
            repo_type=hub.kind,
        )
        if (after := landed()) is not None:
            return after
        now = hub.state_once(repo_id, revision)
        if now is not None and now.commit != made.oid:
            raise _overtaken(repo_id, before)
        raise DamagedCommit(
            f"{repo_id} accepted the commit {made.oid[:8]}, but does not list all of its files, "
            "or lists them with other content"
        )

    try:
        size = sum(bundle.files[path].size for path in lacking)
        return hub.retries.call(f"commit to {repo_id}", commit, size=size)
    except failures() as error:
        # The last try may have landed too.
        if (after := hub.look(landed)) is not None:
            return after
        if status_of(error) == 412:
            raise _overtaken(repo_id, before) from error
        raise


def _operations(bundle: UploadSet, lacking: Iterable[str], deleted: Iterable[str]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    adds = []
    for path in lacking:
        adds.append(CommitOperationAdd(path, bundle.files[path].source))
        # The same hash, without reading 100 GB again.
        adds[-1].upload_info.sha256 = bytes.fromhex(bundle.files[path].sha256)
    return [*(CommitOperationDelete(path, is_folder=False) for path in deleted), *adds]


@contextmanager
def or_finish(hub: Hub, repo_id: str, command: str) -> Iterator[None]:
    """Raise PublishError with the command that finishes the push if Hub or network fails."""
    try:
        yield
    except failures(Overtaken) as error:
        raise PublishError(
            f"{repo_id} is incomplete on {hub.endpoint}: {describe_error(error)}.\n"
            f"To finish (uploaded files are not sent again):\n  {command}"
        ) from error


def _overtaken(repo_id: str, before: RemoteState) -> Overtaken:
    return Overtaken(
        f"{repo_id} was changed by another commit since {before.commit[:8]}, during this push. "
        "Check the changes; if they are of this run, repeat the command, else choose another "
        "--repo_id"
    )


def stale_files(
    repo: str,
    state: RemoteState,
    bundle: UploadSet,
    pushed: Mapping[str, Mapping[str, str]],
    manifest: str,
    *,
    overwrite: bool,
    new: bool = False,
    option: str = "--repo_id",
) -> list[str]:
    """Return the files of an earlier push that this push lacks, to delete.

    Args:
        repo: the repository's address, for the message.
        state: its content.
        bundle: the files to push.
        pushed: files that an earlier push listed, with hashes.
        manifest: the file with that list.
        overwrite: replace and delete content that was not pushed from here.
        new: the branch was just created as a copy of main, whose files remain on main.
        option: the command-line option for another repository.

    Raises:
        PublishError: content in the way was not pushed from here, or changed since. Other foreign
            files may stay.
    """
    present = set(state.files) - set(NOT_CONTENT)
    own = {manifest} if pushed else set()
    own |= {
        path
        for path, hashes in pushed.items()
        if path in present and state.files[path].holds(hashes["sha256"], hashes["git"])
    }
    differing = set(state.lacks(bundle))
    in_the_way = differing if pushed else differing | (present - set(bundle.files))
    foreign = (present & in_the_way) - own
    if new and pushed:
        foreign, overwrite = present - own, True
    if foreign and not overwrite:
        first = ", ".join(sorted(foreign)[:8])
        raise PublishError(
            f"{repo} has content that was not pushed from here, or was changed since: {first} "
            f"({len(foreign)} files). Nothing was pushed. Choose another {option}, or add "
            "--overwrite to replace it (its history keeps it)."
        )
    return sorted(((own | foreign) & present) - set(bundle.files))


def push_listed(
    hub: Hub,
    repo_id: str,
    bundle: UploadSet,
    name: str,
    facts: Mapping[str, Any],
    *,
    message: str,
    private: bool | None,
    overwrite: bool,
    option: str,
) -> tuple[str, RemoteState]:
    """Push a bundle and its file list in at most one commit.

    Args:
        hub: a client for the repository's kind.
        repo_id: a writable repository, created if missing.
        bundle: the files, already checked for secrets. The list is added.
        name: the JSON file of the list in the repository.
        facts: other keys of the list.
        message: the commit message.
        private: as in `Hub.prepare_repo`.
        overwrite: replace content that was not pushed from here.
        option: the command-line option for another repository, for errors.

    Returns:
        The previous commit, and the verified new state.

    Raises:
        PublishError: the list contains a secret, or like `stale_files`.
    """
    bundle.add_text(name, as_text({**facts, "files": bundle.manifest()}))
    UploadSet(bundle.root, {name: bundle.files[name]}).check(hub.secrets())
    hub.prepare_repo(repo_id, "main", private=private, gated=None)
    before = hub.existing_state(repo_id, "main")
    try:
        listing = json.loads(hub.read(repo_id, name, before)) if name in before.files else {}
        pushed = {path: dict(hashes) for path, hashes in listing["files"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        pushed = {}
    delete = stale_files(repo_id, before, bundle, pushed, name, overwrite=overwrite, option=option)
    after = push(hub, repo_id, "main", bundle, before=before, delete=delete, message=message)
    return before.commit, after

"""Make a single complete commit, even if the Hub's response is lost.

A commit whose response is lost still exists. So each try first reads the state, and `parent_commit`
keeps a late first commit from landing twice.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import Hub, RemoteState
from hf_rlhf.hub.retries import (
    UnexpectedAnswer,
    describe_error,
    failures,
    status_of,
)
from hf_rlhf.hub.upload_set import UploadSet


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

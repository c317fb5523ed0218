"""One commit that lands once, with everything in it, however often its answer is lost.

A commit whose answer is lost has been made all the same. So each try first reads what is there, and
`parent_commit` keeps a late first commit from becoming two.
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
    """A commit that landed, but with other content than was sent."""


class Overtaken(PublishError):
    """Another commit came first."""


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
    """Make the revision hold the bundle's files and not those of `delete`, by at most one commit.

    `before` is the state that was examined; if another commit came since, PublishError. Transient
    failures are retried, by the hub's policy. Returns the state after, which holds it all.
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
        # The same hash, without reading 100 GB once more.
        adds[-1].upload_info.sha256 = bytes.fromhex(bundle.files[path].sha256)
    return [*(CommitOperationDelete(path, is_folder=False) for path in deleted), *adds]


@contextmanager
def or_finish(hub: Hub, repo_id: str, command: str) -> Iterator[None]:
    """Raise PublishError, with the command that finishes the push, if Hub or network fails."""
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
